#include <algorithm>

#include "oscar/core/error.h"
#include "oscar/rotation/fit.h"

namespace oscar {

const std::vector<Preset>& presets() {
  // Keys that lie along the constant direction are clipped on one side alone, hence a lower ratio.
  constexpr double kClip = 0.94;
  static const FitOptions layer_offset{"ktk-attended",   "vtv-attended", Granularity::layer,
                                       Composition::r_o, false,          kClip};
  static const FitOptions head_offset{"ktk-attended",   "vtv-attended", Granularity::head,
                                      Composition::r_o, false,          kClip};
  static const FitOptions stretch{"stretch-attended", "vtv-attended", Granularity::head,
                                  Composition::r_o,   true,           kClip};
  static const std::vector<Preset> all = {
      {"oscar", {"qqt", "sst"}, "the paper's recipe, with the exact C_S (default)"},
      {"reference", {"qqt", "sst-surrogate"}, "what the released code computes"},
      {"ktk-vtv", {"ktk", "vtv"}, "second moments of keys and values"},
      {"layer-offset", layer_offset,
       "attended keys and values, the leading direction where the zero point absorbs it (format "
       "v1)"},
      {"head-offset", head_offset, "the same, one rotation a KV head (format v2)"},
      {"stretch", stretch,
       "centred keys balanced against queries, one transform a KV head (format v3)"},
      {"uresidual",
       {"uresidual", "uresidual"},
       "the released code's residual pairing; needs row samples"},
      {"hadamard", {"hadamard", "hadamard"}, "Hadamard matrices, no data"},
      {"identity", {"identity", "identity"}, "no rotation"},
  };
  return all;
}

void apply_objective(FitOptions& options, std::string_view word) {
  std::vector<const char*> names;
  for (const Preset& preset : presets()) {
    if (word == preset.name) {
      options = preset.options;
      return;
    }
    names.push_back(preset.name);
  }
  const std::size_t plus = word.find('+');
  if (plus == std::string_view::npos) {
    fail_input("\"{}\" is not an objective; there are {}, or KEY+VALUE (such as ktk+sst)", word,
               fmt::join(names, ", "));
  }
  options.key = find_objective(Side::key, word.substr(0, plus)).name();
  options.value = find_objective(Side::value, word.substr(plus + 1)).name();
}

Granularity parse_granularity(std::string_view word) {
  if (word == "layer") return Granularity::layer;
  if (word == "head") return Granularity::head;
  fail_input("\"{}\" is not a granularity; there are layer and head", word);
}

const char* name_of(Granularity granularity) {
  return granularity == Granularity::layer ? "layer" : "head";
}

}  // namespace oscar
