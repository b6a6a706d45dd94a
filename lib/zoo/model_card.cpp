#include "zoo/model_card.h"

#include <fmt/format.h>

#include "oscar/core/version.h"
#include "oscar/zoo/rotation_file.h"

namespace oscar {

namespace {

std::string perplexity(const std::optional<OrderedJson>& validation, const char* key) {
  if (!validation || !validation->contains(key) || !validation->at(key).is_number())
    return "not measured";
  return fmt::format("{:.3f}", validation->at(key).get<double>());
}

}  // namespace

std::string model_card(const std::string& model_name, const PairFolder& folder) {
  const PairInfo& info = folder.info.value();
  const ServedSettings& s = info.settings;
  const auto& first = folder.pair.key.layers.begin()->second.rotation;
  const bool per_head = folder.pair.key.granularity == Granularity::head;
  const std::string key = folder.key_file.filename().string(),
                    value = folder.value_file.filename().string();
  std::string card = R"(---
license: apache-2.0
tags:
- oscar
- int2
- kv-cache
- quantization
- rotation
- sglang
---

)";
  card += fmt::format("# {}: rotations for an INT2 KV cache\n\n", model_name);
  card +=
      "Keys and values are multiplied by these matrices before they are clipped and stored at two "
      "bits an element; "
      "queries are multiplied by the key's, and outputs taken back by the value's. Perplexities, "
      "lower is better:\n\n";
  card += "| Model | Calibration | BF16 | INT2 |\n| --- | --- | --- | --- |\n";
  card +=
      fmt::format("| {} | {} tokens, {} sequences of up to {} | {} | {} |\n\n", model_name,
                  info.tokens, info.sequences, info.sequence_length,
                  perplexity(info.validation, "ppl_reference"), perplexity(info.validation, "ppl"));
  if (info.validation) {
    card += fmt::format(
        "Measured by `oscar-validate` on {} tokens that it names by their hash in manifest.json: "
        "mean KL divergence "
        "{:.5f} nats, the same most likely token at {:.1f} % of the positions.\n\n",
        info.validation->value("tokens", std::int64_t{0}), info.validation->value("kld_mean", 0.0),
        100 * info.validation->value("top1_agreement", 0.0));
  }
  card += fmt::format(
      "## Files\n\n"
      "`{}` and `{}` are read by `torch.load(path, map_location=\"cpu\", weights_only=True)`: "
      "formats "
      "{} and {}, {} layers, a float32 matrix of {}x{} {}. `manifest.json` has their hashes and "
      "where "
      "they come from.\n\n",
      key, value, format_of(folder.pair.key), format_of(folder.pair.value),
      folder.pair.key.layers.size(), first[0].rows(), first[0].cols(),
      per_head ? "for each KV head" : "a layer");
  if (folder.pair.key.is_general() || folder.pair.value.is_general()) {
    card +=
        "An engine must know format 3: keys are stored as (k - k_mean) · rotation and queries read "
        "with q · q_rotation; outputs come back by o · o_rotation'. A part that is absent is zero "
        "(the "
        "mean) or the rotation itself (the read sides).\n\n";
  }
  if (folder.patch_file) {
    const std::string patch = folder.patch_file->filename().string();
    card += fmt::format(
        "**The weights must be patched.** `{}` holds other values for some tensors of the model, "
        "under their own names; serve a copy of the model with them, or the rotations do not "
        "work. Weights patched in this way attend almost as before over the context that the "
        "patch was made for.\n\n",
        patch);
  }
  card += fmt::format(
      "## How to use it\n\n"
      "Point the serving engine's OSCAR option for key and value rotations at the two files, with "
      "the settings they "
      "were made for: K clip {}, V clip {} (rule {}), group {}, the first {} and the last {} "
      "tokens in bf16, {} "
      "scales.\n\n",
      s.k_clip, s.v_clip, s.clip_rule, s.group, s.sink, s.recent, s.scale_type);
  card += fmt::format("Made with oscar {} from a model with fingerprint `{}`.\n", kVersion,
                      info.model_fingerprint);
  return card;
}

}  // namespace oscar
