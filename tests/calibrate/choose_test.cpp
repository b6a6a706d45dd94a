#include "oscar/calibrate/choose.h"

#include <algorithm>
#include <cmath>

#include "oscar/calibrate/recorder.h"
#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "support.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

/// The tiny Llama, made to take sequences that are longer than the bf16 windows.
class Choosing : public testing::Test {
 protected:
  Choosing() {
    fs::copy(test::fixture("checkpoint/tiny-llama"), folder_ / "model");
    Json config = read_json(folder_ / "model" / "config.json");
    config["max_position_embeddings"] = 1024;
    write_file(folder_ / "model" / "config.json", config.dump());
    checkpoint_ = Checkpoint::open(folder_ / "model");
    const TokenBatch batch = text(4, 1);
    DecoderStream stream(*checkpoint_, batch, {});
    Recorder recorder({{}, 256, batch.tokens()});
    const auto registration = stream.add_hook(recorder);
    while (stream.next_layer() < stream.layer_count()) {
      const int layer = stream.next_layer();
      stream.run_layer();
      statistics_.layers.emplace(layer, recorder.finish_layer(layer));
    }
    statistics_.tokens = batch.tokens();
  }
  static TokenBatch text(int sequences, unsigned step) {
    TokenBatch batch;
    batch.sequence_length = 400;
    for (int s = 0; s < sequences; ++s) {
      std::vector<TokenId> sequence;
      std::uint32_t state = step + static_cast<unsigned>(s);
      for (int i = 0; i < 400; ++i) {
        state = state * 1664525u + 1013904223u;
        sequence.push_back(static_cast<TokenId>((state >> 16) % 48));
      }
      batch.sequences.push_back(std::move(sequence));
    }
    return batch;
  }
  Choice choose_for(const Selection& selection) const {
    return choose(*checkpoint_, nullptr, statistics_, text(2, 77), selection, {});
  }

  test::TemporaryFolder folder_;
  std::unique_ptr<Checkpoint> checkpoint_;
  Statistics statistics_;
};

const Trial* find(const Choice& choice, const std::string& name) {
  for (const Trial& trial : choice.trials) {
    if (trial.name == name) return &trial;
  }
  return nullptr;
}

TEST_F(Choosing, TakesTheBestOfWhatItTried) {
  const Choice choice = choose_for({.groups = {4}});
  const Trial* reference = find(choice, "reference");
  ASSERT_NE(reference, nullptr);
  EXPECT_LE(choice.best().lost.kld_mean, reference->lost.kld_mean);
  EXPECT_GT(choice.best().lost.kld_mean, 0);
  EXPECT_EQ(choice.scored_positions, 2 * 199);
  double best_preset = 1e9;
  std::string preset;
  for (const Trial& trial : choice.trials) {
    if (trial.name.find(',') != std::string::npos) continue;
    if (trial.lost.kld_mean < best_preset) preset = trial.name;
    best_preset = std::min(best_preset, trial.lost.kld_mean);
  }
  EXPECT_LE(choice.best().lost.kld_mean, best_preset);
  EXPECT_TRUE(choice.best().name.starts_with(preset)) << choice.best().name;
  const ServedSettings& served = find(choice, preset)->candidate.settings;
  const auto tried = [&](double k_clip, double v_clip, int group) {
    return std::ranges::any_of(choice.trials, [&](const Trial& trial) {
      const ServedSettings& s = trial.candidate.settings;
      return trial.name.starts_with(preset + ",") && std::abs(s.k_clip - k_clip) < 1e-9 &&
             std::abs(s.v_clip - v_clip) < 1e-9 && s.group == group;
    });
  };
  for (const double step : {-0.02, 0.02}) {
    EXPECT_TRUE(tried(served.k_clip + step, served.v_clip, 128)) << to_text(choice);
    EXPECT_TRUE(tried(served.k_clip, served.v_clip + step, 128)) << to_text(choice);
  }
  EXPECT_TRUE(tried(served.k_clip, served.v_clip, 4)) << to_text(choice);
  EXPECT_NE(to_text(choice).find("Chosen: " + choice.best().name), std::string::npos);
  EXPECT_EQ(to_json(choice)["chosen"], choice.best().name);
}

TEST_F(Choosing, TriesOnlyWhatTheTargetLoads) {
  const Selection selection{find_target("llama.cpp")};
  const Choice choice = choose_for(selection);
  EXPECT_NE(find(choice, "layer-offset"), nullptr);
  for (const Trial& trial : choice.trials) {
    const RotationPair& pair = trial.candidate.pair;
    EXPECT_FALSE(pair.key.is_general() || pair.value.is_general()) << trial.name;
    EXPECT_EQ(pair.key.granularity, Granularity::layer) << trial.name;
  }
  EXPECT_LE(static_cast<int>(choice.trials.size()), most_trials(selection));
}

TEST_F(Choosing, TriesTrainedRotationsWhenAsked) {
  const Selection selection{.training_steps = 2};
  const Choice choice = choose_for(selection);
  EXPECT_NE(find(choice, "stretch, trained"), nullptr) << to_text(choice);
  EXPECT_LE(static_cast<int>(choice.trials.size()), most_trials(selection));
}

}  // namespace
}  // namespace oscar
