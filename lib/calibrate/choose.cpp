#include "oscar/calibrate/choose.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

#include "oscar/core/log.h"
#include "oscar/rotation/mixture.h"

namespace oscar {

namespace {

/// Presets that are always tried, where the target loads them.
constexpr const char* kPresets[] = {"hadamard", "reference", "layer-offset", "head-offset",
                                    "stretch"};
constexpr double kClipStep = 0.02;

/// What is scored first: the presets that the target loads, trained too if asked for.
std::vector<std::pair<std::string, FitOptions>> presets_to_try(const Selection& selection) {
  std::vector<std::pair<std::string, FitOptions>> result;
  for (const char* name : kPresets) {
    FitOptions options;
    apply_objective(options, name);
    if (!can_load(selection.target, options)) continue;
    result.emplace_back(name, options);
    if (selection.training_steps > 0 && options.composition == Composition::r_o) {
      options.training.steps = selection.training_steps;
      result.emplace_back(fmt::format("{}, trained", name), options);
    }
  }
  return result;
}

/// Trials that were scored, and those that wait for it.
class Trials {
 public:
  Trials(const Checkpoint& checkpoint, std::shared_ptr<const CheckpointPatch> patch,
         const Statistics& statistics, const TokenBatch& held_out, const ScoreOptions& options)
      : checkpoint_(checkpoint),
        patch_(std::move(patch)),
        statistics_(statistics),
        held_out_(held_out),
        options_(options) {}

  void fit_preset(const std::string& name, const FitOptions& fit_options) {
    Trial trial;
    trial.fit = fit_options;
    trial.candidate.pair = fit(statistics_, fit_options, options_.device);
    trial.candidate.settings.k_clip = fit_options.k_clip;
    trial.candidate.settings.v_clip = fit_options.v_clip;
    add(name, std::move(trial));
  }

  /// Returns the trial's number.
  std::size_t add(const std::string& name, Trial trial) {
    trial.name = trial.candidate.name = name;
    trial.candidate.patch = patch_;
    check_fits(trial.candidate.pair, checkpoint_.config(), name);
    waiting_.push_back(std::move(trial));
    return choice_.trials.size() + waiting_.size() - 1;
  }

  /// Scores what waits, in one pass over the model.
  void score_waiting(bool local_errors) {
    if (waiting_.empty()) return;
    std::vector<Candidate> candidates;
    for (Trial& trial : waiting_) candidates.push_back(std::move(trial.candidate));
    ScoreOptions options = options_;
    options.local_errors = local_errors;
    options.task = fmt::format("choosing, round {}", ++round_);
    options.noise_floor = round_ == 1;
    const Scores scores = score(checkpoint_, held_out_, candidates, options);
    if (round_ == 1) {
      choice_.scored_positions = scores.positions;
      choice_.perplexity_reference = scores.perplexity_reference;
      if (scores.noise_floor) choice_.noise_floor = scores.noise_floor->kld_mean;
    }
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
      waiting_[i].candidate = std::move(candidates[i]);
      waiting_[i].lost = scores.candidates[i].propagated;
      if (local_errors) waiting_[i].layers = scores.candidates[i].layers;
    }
    std::move(waiting_.begin(), waiting_.end(), std::back_inserter(choice_.trials));
    waiting_.clear();
  }

  const Trial& operator[](std::size_t trial) const { return choice_.trials[trial]; }
  const std::vector<Trial>& scored() const { return choice_.trials; }
  Choice take() { return std::move(choice_); }

 private:
  const Checkpoint& checkpoint_;
  std::shared_ptr<const CheckpointPatch> patch_;
  const Statistics& statistics_;
  const TokenBatch& held_out_;
  ScoreOptions options_;
  std::vector<Trial> waiting_;
  Choice choice_;
  int round_ = 0;
};

bool same_settings(const ServedSettings& a, const ServedSettings& b) {
  return a.k_clip == b.k_clip && a.v_clip == b.v_clip && a.group == b.group;
}

struct Mixture {
  RotationPair pair;
  std::map<int, std::string> source_of_layer;
};

/// Each layer from the trial with the smallest error of the attention output there, among those
/// that are served like the best: what different clip ratios do locally does not tell what the
/// model loses. Nothing to mix where one trial wins everywhere.
std::optional<Mixture> mixture(const std::vector<Trial>& trials, const Trial& best,
                               const Statistics& statistics) {
  std::map<int, const RotationSet*> keys, values;
  Mixture result;
  bool differs = false;
  for (std::size_t i = 0; i < best.layers.size(); ++i) {
    const Trial* winner = &best;
    for (const Trial& trial : trials) {
      if (trial.layers.size() == best.layers.size() &&
          same_settings(trial.candidate.settings, best.candidate.settings) &&
          trial.layers[i].all.output_relative_error < winner->layers[i].all.output_relative_error) {
        winner = &trial;
      }
    }
    const int layer = best.layers[i].layer;
    keys[layer] = &winner->candidate.pair.key;
    values[layer] = &winner->candidate.pair.value;
    result.source_of_layer[layer] = winner->name;
    differs = differs || winner != &best;
  }
  if (!differs) return std::nullopt;
  const int kv_heads = statistics.layers.begin()->second.kv_heads;
  result.pair = {mix(keys, kv_heads), mix(values, kv_heads)};
  result.pair.key.calibration = result.pair.value.calibration =
      calibration_of(statistics, result.pair);
  return result;
}

/// Something that could be different about the best trial. Of one aspect, one change is made.
struct Change {
  enum class Aspect { key_clip, value_clip, group, layers } aspect;
  std::string what;
  std::function<void(Trial&)> apply;
};

double clip_beside(double ratio, double step) {
  return std::clamp(std::round((ratio + step) * 100) / 100, 0.5, 1.0);
}

std::vector<Change> changes_of(const Trial& best, const std::vector<Trial>& trials,
                               const Statistics& statistics, const Selection& selection) {
  std::vector<Change> result;
  for (const double step : {-kClipStep, kClipStep}) {
    const ServedSettings& served = best.candidate.settings;
    const double key = clip_beside(served.k_clip, step), value = clip_beside(served.v_clip, step);
    result.push_back({Change::Aspect::key_clip, fmt::format("K clip {}", key),
                      [key](Trial& trial) { trial.candidate.settings.k_clip = key; }});
    result.push_back({Change::Aspect::value_clip, fmt::format("V clip {}", value),
                      [value](Trial& trial) { trial.candidate.settings.v_clip = value; }});
  }
  for (const int group : selection.groups) {
    result.push_back({Change::Aspect::group, fmt::format("groups of {}", group),
                      [group](Trial& trial) { trial.candidate.settings.group = group; }});
  }
  if (auto mixed = mixture(trials, best, statistics)) {
    result.push_back(
        {Change::Aspect::layers, "mixed by layer", [mixed = std::move(*mixed)](Trial& trial) {
           trial.candidate.pair = mixed.pair;
           trial.source_of_layer = mixed.source_of_layer;
         }});
  }
  return result;
}

std::string joined(const std::vector<const Change*>& changes) {
  std::vector<std::string> what;
  for (const Change* change : changes) what.push_back(change->what);
  return fmt::format("{}", fmt::join(what, ", "));
}

std::size_t add_changed(Trials& trials, const Trial& best,
                        const std::vector<const Change*>& changes) {
  Trial trial = best;
  trial.layers.clear();
  for (const Change* change : changes) change->apply(trial);
  return trials.add(fmt::format("{}, {}", best.name, joined(changes)), std::move(trial));
}

/// Tries one change at a time to the best trial, then all together that gained clearly. Returns the
/// number of the trial to take: the best one itself, unless something gained clearly.
std::size_t refine(Trials& trials, std::size_t chosen, const Statistics& statistics,
                   const Selection& selection) {
  const Trial best = trials[chosen];
  const std::vector<Change> changes = changes_of(best, trials.scored(), statistics, selection);
  std::vector<std::size_t> numbers;
  for (const Change& change : changes) numbers.push_back(add_changed(trials, best, {&change}));
  trials.score_waiting(false);

  std::map<Change::Aspect, std::size_t> gained;  // the change of each aspect that gained most
  const auto lost = [&](std::size_t change) { return trials[numbers[change]].lost.kld_mean; };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    if (!paired_gain(trials[numbers[i]].lost, best.lost).is_clear()) continue;
    const auto [found, is_new] = gained.try_emplace(changes[i].aspect, i);
    if (!is_new && lost(i) < lost(found->second)) found->second = i;
  }
  std::vector<const Change*> together;
  for (const auto& [aspect, i] : gained) {
    together.push_back(&changes[i]);
    if (lost(i) < trials[chosen].lost.kld_mean) chosen = numbers[i];
  }
  if (together.size() > 1) {
    const std::size_t number = add_changed(trials, best, together);
    trials.score_waiting(false);
    if (trials[number].lost.kld_mean < trials[chosen].lost.kld_mean) chosen = number;
  }
  return chosen;
}

}  // namespace

int most_trials(const Selection& selection) {
  constexpr int kClips = 4, kMixture = 1, kTogether = 1;
  return static_cast<int>(presets_to_try(selection).size() + selection.groups.size()) + kClips +
         kMixture + kTogether;
}

Choice choose(const Checkpoint& checkpoint, const std::shared_ptr<const CheckpointPatch>& patch,
              const Statistics& statistics, const TokenBatch& held_out, const Selection& selection,
              const ScoreOptions& options) {
  Trials trials(checkpoint, patch, statistics, held_out, options);
  for (const auto& [name, fit_options] : presets_to_try(selection)) {
    trials.fit_preset(name, fit_options);
  }
  trials.score_waiting(true);
  const auto best = std::min_element(
      trials.scored().begin(), trials.scored().end(),
      [](const Trial& a, const Trial& b) { return a.lost.kld_mean < b.lost.kld_mean; });
  const std::size_t chosen = refine(
      trials, static_cast<std::size_t>(best - trials.scored().begin()), statistics, selection);
  Choice choice = trials.take();
  choice.chosen = chosen;
  choice.dataset_sha256 = held_out.sha256();
  choice.tokens = held_out.tokens();
  return choice;
}

}  // namespace oscar
