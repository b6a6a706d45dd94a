#include "oscar/rotation/key_offset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace oscar {

std::vector<KeyOffset> large_key_offsets(const Statistics& statistics) {
  std::vector<KeyOffset> result;
  for (const auto& [id, layer] : statistics.layers) {
    for (int head = 0; head < layer.kv_heads; ++head) {
      const auto at = static_cast<std::size_t>(head);
      const auto tokens = static_cast<double>(layer.tokens);
      const double offset = (layer.key_sum[at] / tokens).squaredNorm();
      const double spread = layer.key_outer[at].trace() / tokens - offset;
      const double ratio = spread > 0   ? std::sqrt(offset / spread)
                           : offset > 0 ? std::numeric_limits<double>::infinity()
                                        : 0;
      if (ratio > kLargeKeyOffset) result.push_back({id, head, ratio});
    }
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const KeyOffset& a, const KeyOffset& b) { return a.ratio > b.ratio; });
  return result;
}

std::string key_offset_warning(const Statistics& statistics, const FitOptions& options) {
  if (options.centred || options.composition == Composition::r_o) return "";
  const std::vector<KeyOffset> found = large_key_offsets(statistics);
  if (found.empty()) return "";
  return fmt::format(
      "in {} heads the mean key is more than {:.0f} times as long as keys are spread around it "
      "(layer "
      "{}, head {}: {:.1f} times); this rotation spreads that constant over all channels, and two "
      "bits will not carry it. Where the engine loads format v3, use --center-keys or --target; "
      "else take what RoPE barely turns out of the key biases (oscar-calibrate key-bias) or use "
      "--composition r_o; validate before serving",
      found.size(), kLargeKeyOffset, found[0].layer, found[0].head, found[0].ratio);
}

}  // namespace oscar
