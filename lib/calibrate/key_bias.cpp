#include "oscar/calibrate/key_bias.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <map>
#include <numbers>

#include "oscar/core/error.h"
#include "oscar/model/rope.h"
#include "oscar/rotation/key_offset.h"

namespace oscar {

namespace {

void check_input(const Checkpoint& checkpoint, const Statistics& statistics,
                 const KeyBiasOptions& options) {
  if (options.context < 1) fail_input("--context must be at least 1 token");
  if (!checkpoint.config().qkv_bias) {
    fail_input("{}: the model has no key biases (k_proj.bias), so there is nothing to take out",
               checkpoint.path().string());
  }
  if (statistics.model_fingerprint != checkpoint.fingerprint()) {
    fail_input("the statistics are of another model (fingerprint {}, this model {})",
               statistics.model_fingerprint, checkpoint.fingerprint());
  }
  if (!statistics.patch_sha256.empty()) {
    fail_input(
        "the statistics were recorded with patched weights; use those of the model as it is");
  }
}

/// Mean of the planes' turns over a sequence, as complex numbers.
std::complex<double> mean_turn(double frequency, std::int64_t positions) {
  std::complex<double> sum = 0;
  for (std::int64_t t = 0; t < positions; ++t) {
    sum += std::polar(1.0, frequency * static_cast<double>(t));
  }
  return sum / static_cast<double>(positions);
}

/// The planes that turn by at most `angle` over the context: those from `first` on are slower.
struct SlowPlanes {
  std::vector<double> frequency;
  std::vector<std::complex<double>> turn;  ///< mean over the calibration's positions
  std::vector<bool> slow;
  double attention_factor = 1;
};

SlowPlanes slow_planes(const ModelConfig& config, const Statistics& statistics,
                       const KeyBiasOptions& options) {
  const RopeFrequencies rope = rope_frequencies(config);
  SlowPlanes result{rope.inverse, {}, {}, rope.attention_factor};
  for (const double frequency : rope.inverse) {
    result.slow.push_back(frequency * static_cast<double>(options.context) <= options.max_angle);
    result.turn.push_back(
        mean_turn(frequency, std::max<std::int64_t>(statistics.sequence_length, 1)));
  }
  return result;
}

/// Takes the slow planes out of one head's bias, and says what that changes.
TakenBias take(const KeyOffset& offset, const LayerStatistics& layer, const SlowPlanes& planes,
               std::int64_t context, std::span<float> bias) {
  TakenBias taken{offset.layer, offset.head};
  taken.ratio = offset.ratio;
  const auto head = static_cast<std::size_t>(offset.head);
  const auto tokens = static_cast<double>(layer.tokens);
  const Eigen::Index half = layer.head_dim / 2;
  Vector mean = layer.key_sum[head] / tokens;
  double spread = layer.key_outer[head].trace() / tokens - mean.squaredNorm();
  double length = 0, left = 0;
  for (Eigen::Index i = 0; i < half; ++i) {
    const auto at = static_cast<std::size_t>(i), other = static_cast<std::size_t>(i + half);
    const std::complex<double> part(bias[at], bias[other]);
    length += std::norm(part);
    if (!planes.slow[at]) {
      left += std::norm(part);
      continue;
    }
    // What this part of the bias adds to rotated keys: its mean and its own spread.
    const std::complex<double> share = planes.attention_factor * part * planes.turn[at];
    mean[i] -= share.real();
    mean[i + half] -= share.imag();
    spread -= std::norm(planes.attention_factor * part) - std::norm(share);
    const double query =
        std::sqrt((layer.query_outer[head](i, i) + layer.query_outer[head](i + half, i + half)) /
                  static_cast<double>(layer.query_rows()));
    const double angle = planes.frequency[at] * static_cast<double>(context);
    taken.logit_bound += query * planes.attention_factor * std::abs(part) * 2 *
                         std::sin(std::min(angle / 4, std::numbers::pi / 2)) /
                         std::sqrt(static_cast<double>(layer.head_dim));
    bias[at] = bias[other] = 0;
  }
  taken.bias = std::sqrt(length);
  taken.bias_left = std::sqrt(left);
  taken.ratio_left = spread > 0 ? mean.norm() / std::sqrt(spread) : 0;
  return taken;
}

}  // namespace

KeyBiasPatch take_key_biases(const Checkpoint& checkpoint, const Statistics& statistics,
                             const KeyBiasOptions& options) {
  check_input(checkpoint, statistics, options);
  const SlowPlanes planes = slow_planes(checkpoint.config(), statistics, options);
  KeyBiasPatch result{options.context, options.max_angle};
  double slowest = planes.frequency.front();
  for (std::size_t i = 0; i < planes.slow.size(); ++i) {
    slowest = std::min(slowest, planes.frequency[i]);
    if (!planes.slow[i]) continue;
    ++result.planes;
    result.angle =
        std::max(result.angle, planes.frequency[i] * static_cast<double>(options.context));
  }
  result.slowest = slowest * static_cast<double>(options.context);
  std::map<int, PatchTensor> tensors;
  for (const KeyOffset& offset : large_key_offsets(statistics)) {
    const LayerStatistics& layer = statistics.layers.at(offset.layer);
    PatchTensor& tensor = tensors[offset.layer];
    if (tensor.values.empty()) {
      tensor.name = fmt::format("model.layers.{}.self_attn.k_proj.bias", offset.layer);
      const TensorView& view = checkpoint.tensor(tensor.name);
      tensor.shape = view.shape;
      tensor.values.resize(static_cast<std::size_t>(view.elements()));
      read_rows(view, 0, view.rows(), tensor.values.data());
    }
    const auto dim = static_cast<std::size_t>(layer.head_dim);
    result.heads.push_back(
        take(offset, layer, planes, options.context,
             std::span(tensor.values).subspan(static_cast<std::size_t>(offset.head) * dim, dim)));
  }
  if (result.planes == 0) return result;
  for (auto& [layer, tensor] : tensors) result.tensors.push_back(std::move(tensor));
  return result;
}

std::string to_text(const KeyBiasPatch& patch) {
  if (patch.heads.empty()) {
    return "No head's mean key is large against the spread of its keys: no patch is needed.\n";
  }
  if (patch.planes == 0) {
    return fmt::format(
        "Over {} tokens even the slowest RoPE plane turns by {:.2g} rad, more than {:.2g}: nothing "
        "can be taken out of the key biases. Serve shorter contexts, allow a larger --max-angle, "
        "or use an engine that loads format v3.\n",
        patch.context, patch.slowest, patch.max_angle);
  }
  std::string text = fmt::format(
      "Over {} tokens, {} RoPE planes of a head turn by at most {:.2g} rad; they are taken out of "
      "the key biases of {} heads:\n\n{:>5} {:>4}  {:>8}  {:>8}  {:>15}  {:>8}  {:>19}\n",
      patch.context, patch.planes, patch.angle, patch.heads.size(), "layer", "head", "bias", "left",
      "mean key/spread", "left", "logits move at most");
  for (const TakenBias& head : patch.heads) {
    text += fmt::format("{:>5} {:>4}  {:>8.2f}  {:>8.2f}  {:>15.2f}  {:>8.2f}  {:>19.3f}\n",
                        head.layer, head.head, head.bias, head.bias_left, head.ratio,
                        head.ratio_left, head.logit_bound);
  }
  return text;
}

OrderedJson to_json(const KeyBiasPatch& patch) {
  OrderedJson heads = OrderedJson::array();
  for (const TakenBias& head : patch.heads) {
    heads.push_back({{"layer", head.layer},
                     {"head", head.head},
                     {"bias", head.bias},
                     {"bias_left", head.bias_left},
                     {"ratio", head.ratio},
                     {"ratio_left", head.ratio_left},
                     {"logit_bound", head.logit_bound}});
  }
  return {{"schema", "oscar-key-bias"},
          {"schema_version", 1},
          {"context", patch.context},
          {"max_angle", patch.max_angle},
          {"planes", patch.planes},
          {"angle", patch.angle},
          {"heads", heads}};
}

}  // namespace oscar
