#include "oscar/rotation/mixture.h"

#include <algorithm>

#include "oscar/core/error.h"

namespace oscar {

namespace {

/// One entry a KV head.
template <typename T>
void widen(std::vector<T>& parts, int kv_heads) {
  if (parts.size() == 1) parts.resize(static_cast<std::size_t>(kv_heads), parts[0]);
}

}  // namespace

RotationSet mix(const std::map<int, const RotationSet*>& sources, int kv_heads) {
  const auto any = [&](auto property) {
    return std::any_of(sources.begin(), sources.end(),
                       [&](const auto& item) { return property(*item.second); });
  };
  const bool per_head =
      any([](const RotationSet& set) { return set.granularity == Granularity::head; });
  const bool centred = any([](const RotationSet& set) { return set.is_centred(); });
  const bool orthogonal = !any([](const RotationSet& set) { return !set.is_orthogonal(); });
  RotationSet mixed;
  mixed.side = sources.begin()->second->side;
  mixed.granularity = per_head ? Granularity::head : Granularity::layer;
  for (const auto& [id, source] : sources) {
    const auto found = source->layers.find(id);
    if (found == source->layers.end()) fail_input("there is no rotation for layer {} to mix", id);
    LayerRotation layer = found->second;
    if (!orthogonal) layer.read = layer.read_side();
    if (centred && layer.mean.empty()) {
      layer.mean.assign(static_cast<std::size_t>(kv_heads),
                        VectorF::Zero(layer.rotation[0].rows()));
    }
    if (per_head) {
      widen(layer.rotation, kv_heads);
      widen(layer.eigenvalues, kv_heads);
      widen(layer.read, kv_heads);
    }
    mixed.layers.emplace(id, std::move(layer));
    if (mixed.objective.empty()) mixed.objective = source->objective;
    if (mixed.objective != source->objective) mixed.objective = "mixed";
  }
  return mixed;
}

}  // namespace oscar
