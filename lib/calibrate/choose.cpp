#include "oscar/calibrate/choose.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "oscar/core/log.h"
#include "oscar/rotation/mixture.h"

namespace oscar {

namespace {

/// Presets that are always tried, where the target loads them.
constexpr const char* kPresets[] = {"hadamard", "reference", "layer-offset", "head-offset",
                                    "stretch"};
constexpr double kClipStep = 0.02;

/// Trials that were scored, and those that wait for it.
class Trials {
 public:
  Trials(const Checkpoint& checkpoint, const Statistics& statistics, const TokenBatch& held_out,
         const ScoreOptions& options)
      : checkpoint_(checkpoint), statistics_(statistics), held_out_(held_out), options_(options) {}

  void fit_preset(const std::string& name, const FitOptions& fit_options) {
    Trial trial;
    trial.fit = fit_options;
    trial.candidate.pair = fit(statistics_, fit_options, options_.device);
    trial.candidate.settings.k_clip = fit_options.k_clip;
    trial.candidate.settings.v_clip = fit_options.v_clip;
    add(name, std::move(trial));
  }

  void add(const std::string& name, Trial trial) {
    trial.name = trial.candidate.name = name;
    check_fits(trial.candidate.pair, checkpoint_.config(), name);
    waiting_.push_back(std::move(trial));
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
    const auto best = std::min_element(
        choice_.trials.begin(), choice_.trials.end(),
        [](const Trial& a, const Trial& b) { return a.lost.kld_mean < b.lost.kld_mean; });
    choice_.chosen = static_cast<std::size_t>(best - choice_.trials.begin());
  }

  const std::vector<Trial>& scored() const { return choice_.trials; }
  const Trial& best() const { return choice_.best(); }
  Choice take() { return std::move(choice_); }

 private:
  const Checkpoint& checkpoint_;
  const Statistics& statistics_;
  const TokenBatch& held_out_;
  ScoreOptions options_;
  std::vector<Trial> waiting_;
  Choice choice_;
  int round_ = 0;
};

/// A change to one setting of the best trial, which the others of its aspect replace.
struct Change {
  enum class Aspect { key_clip, value_clip, group, layers } aspect;
  std::string what;
  std::size_t trial;  ///< its number among the trials
};

bool same_settings(const ServedSettings& a, const ServedSettings& b) {
  return a.k_clip == b.k_clip && a.v_clip == b.v_clip && a.group == b.group;
}

/// Each layer from the trial with the smallest error of the attention output there, among those
/// that are served like the best: what different clip ratios do locally does not tell what the
/// model loses. Nothing to mix where one trial wins everywhere.
std::optional<Trial> mixture(const std::vector<Trial>& trials, const Trial& best,
                             const Statistics& statistics) {
  std::map<int, const RotationSet*> keys, values;
  Trial mixed;
  mixed.fit = best.fit;
  mixed.candidate.settings = best.candidate.settings;
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
    mixed.source_of_layer[layer] = winner->name;
    differs = differs || winner != &best;
  }
  if (!differs) return std::nullopt;
  const int kv_heads = statistics.layers.begin()->second.kv_heads;
  RotationPair& pair = mixed.candidate.pair;
  pair = {mix(keys, kv_heads), mix(values, kv_heads)};
  pair.key.calibration = pair.value.calibration = calibration_of(statistics, pair);
  return mixed;
}

/// The best pair with one setting of the cache changed.
Trial with_settings(const Trial& best, const ServedSettings& settings) {
  Trial trial = best;
  trial.candidate.settings = settings;
  trial.layers.clear();
  return trial;
}

double clip_beside(double ratio, double step) {
  return std::clamp(std::round((ratio + step) * 100) / 100, 0.5, 1.0);
}

}  // namespace

Choice choose(const Checkpoint& checkpoint, const Statistics& statistics,
              const TokenBatch& held_out, const Selection& selection, const ScoreOptions& options) {
  Trials trials(checkpoint, statistics, held_out, options);
  for (const char* name : kPresets) {
    FitOptions fit_options;
    apply_objective(fit_options, name);
    if (!can_load(selection.target, fit_options)) continue;
    trials.fit_preset(name, fit_options);
    if (selection.training_steps > 0 && fit_options.composition == Composition::r_o) {
      fit_options.training.steps = selection.training_steps;
      trials.fit_preset(fmt::format("{}, trained", name), fit_options);
    }
  }
  trials.score_waiting(true);

  // One change at a time to the best, and then all that helped.
  const Trial best = trials.best();
  const ServedSettings& served = best.candidate.settings;
  std::vector<Change> changes;
  std::size_t next = trials.scored().size();
  const auto change = [&](Change::Aspect aspect, std::string what, Trial trial) {
    trials.add(fmt::format("{}, {}", best.name, what), std::move(trial));
    changes.push_back({aspect, std::move(what), next++});
  };
  for (const double step : {-kClipStep, kClipStep}) {
    ServedSettings settings = served;
    settings.k_clip = clip_beside(served.k_clip, step);
    change(Change::Aspect::key_clip, fmt::format("K clip {}", settings.k_clip),
           with_settings(best, settings));
    settings = served;
    settings.v_clip = clip_beside(served.v_clip, step);
    change(Change::Aspect::value_clip, fmt::format("V clip {}", settings.v_clip),
           with_settings(best, settings));
  }
  for (const int group : selection.groups) {
    ServedSettings settings = served;
    settings.group = group;
    change(Change::Aspect::group, fmt::format("groups of {}", group),
           with_settings(best, settings));
  }
  if (auto mixed = mixture(trials.scored(), best, statistics)) {
    change(Change::Aspect::layers, "mixed by layer", std::move(*mixed));
  }
  trials.score_waiting(false);

  std::map<Change::Aspect, const Change*> helped;  // the best of each aspect
  for (const Change& item : changes) {
    const double lost = trials.scored()[item.trial].lost.kld_mean;
    const auto [found, is_new] = helped.try_emplace(item.aspect, &item);
    if (!is_new && lost < trials.scored()[found->second->trial].lost.kld_mean) {
      found->second = &item;
    }
  }
  std::erase_if(helped, [&](const auto& item) {
    return trials.scored()[item.second->trial].lost.kld_mean >= best.lost.kld_mean;
  });
  if (helped.size() > 1) {
    Trial combined = best;
    std::vector<std::string> what;
    for (const auto& [aspect, item] : helped) {
      const Trial& trial = trials.scored()[item->trial];
      ServedSettings& settings = combined.candidate.settings;
      const ServedSettings& changed = trial.candidate.settings;
      switch (aspect) {
        case Change::Aspect::key_clip:
          settings.k_clip = changed.k_clip;
          break;
        case Change::Aspect::value_clip:
          settings.v_clip = changed.v_clip;
          break;
        case Change::Aspect::group:
          settings.group = changed.group;
          break;
        case Change::Aspect::layers:
          combined.candidate.pair = trial.candidate.pair;
          combined.source_of_layer = trial.source_of_layer;
          break;
      }
      what.push_back(item->what);
    }
    combined.layers.clear();
    trials.add(fmt::format("{}, {}", best.name, fmt::join(what, ", ")), std::move(combined));
    trials.score_waiting(false);
  }
  Choice choice = trials.take();
  choice.dataset_sha256 = held_out.sha256();
  choice.tokens = held_out.tokens();
  return choice;
}

OrderedJson to_json(const Choice& choice) {
  OrderedJson trials = OrderedJson::array();
  for (const Trial& trial : choice.trials) {
    const ServedSettings& served = trial.candidate.settings;
    trials.push_back({{"name", trial.name},
                      {"k_clip", served.k_clip},
                      {"v_clip", served.v_clip},
                      {"group", served.group},
                      {"kld_mean", trial.lost.kld_mean},
                      {"kld_standard_error", trial.lost.kld_standard_error},
                      {"ppl", trial.lost.perplexity}});
  }
  OrderedJson layers = OrderedJson::object();
  for (const auto& [layer, source] : choice.best().source_of_layer) {
    layers[std::to_string(layer)] = source;
  }
  return {
      {"criterion", "the smallest mean KL divergence on text held out from the fit"},
      {"dataset_sha256", choice.dataset_sha256},
      {"tokens", choice.tokens},
      {"scored_positions", choice.scored_positions},
      {"ppl_reference", choice.perplexity_reference},
      {"noise_floor", choice.noise_floor ? OrderedJson(*choice.noise_floor) : OrderedJson(nullptr)},
      {"chosen", choice.best().name},
      {"layers", layers},
      {"trials", trials}};
}

std::string to_text(const Choice& choice) {
  std::size_t width = 4;
  for (const Trial& trial : choice.trials) width = std::max(width, trial.name.size());
  std::string text = fmt::format(
      "\nTried on {} held-out tokens ({} scored), by what the model loses:\n  {:<{}}  {:>17}  "
      "{:>10}\n",
      choice.tokens, choice.scored_positions, "", width, "KL divergence", "perplexity");
  for (std::size_t i = 0; i < choice.trials.size(); ++i) {
    const Trial& trial = choice.trials[i];
    text +=
        fmt::format("{} {:<{}}  {:>8.4f} ± {:.4f}  {:>+8.2f} %\n", i == choice.chosen ? '*' : ' ',
                    trial.name, width, trial.lost.kld_mean, trial.lost.kld_standard_error,
                    100 * (trial.lost.perplexity / choice.perplexity_reference - 1));
  }
  text += fmt::format("Chosen: {}", choice.best().name);
  if (choice.noise_floor) {
    text += fmt::format(" (rotating without quantising costs {:.4f})", *choice.noise_floor);
  }
  return text + ".\n";
}

}  // namespace oscar
