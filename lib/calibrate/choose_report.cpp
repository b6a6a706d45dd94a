#include "oscar/calibrate/choose.h"

#include <fmt/format.h>

#include <algorithm>

namespace oscar {

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
      {"criterion",
       "the smallest mean KL divergence on text held out from the fit; changes to the best preset "
       "only where the gain is above twice its standard error"},
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
