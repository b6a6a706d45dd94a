#include <algorithm>
#include <utility>

#include "statistics/fields.h"

namespace oscar {

namespace {

/// Leaves what is in the layer and not in its half, which is returned.
LayerStatistics take_half(LayerStatistics& layer) {
  LayerStatistics half = std::move(layer.half[0]);
  layer.half.clear();
  half.output_metric = layer.output_metric;
  layer.tokens -= half.tokens;
  const auto heads = static_cast<std::size_t>(layer.kv_heads);
  for (std::size_t h = 0; h < heads; ++h) {
    for (const auto& field : kOuterFields) (layer.*field.member)[h] -= (half.*field.member)[h];
    for (const auto& field : kSumFields) (layer.*field.member)[h] -= (half.*field.member)[h];
  }
  const std::int64_t rows = layer.samples() - half.samples();
  const auto keep_last = [rows](std::vector<MatrixF>& samples) {
    for (MatrixF& head : samples) head = MatrixF(head.bottomRows(rows));
    if (rows == 0) samples.clear();
  };
  for (const auto& field : kSampleFields) keep_last(layer.*field.member);
  keep_last(layer.sample_attention);
  return half;
}

}  // namespace

std::optional<std::array<Statistics, 2>> halves(const Statistics& statistics) {
  const auto keeps_none = [](const auto& entry) { return entry.second.half.empty(); };
  if (std::any_of(statistics.layers.begin(), statistics.layers.end(), keeps_none)) {
    return std::nullopt;
  }
  Statistics rest = statistics;
  auto layers = std::exchange(rest.layers, {});
  Statistics half = rest;
  for (auto& [id, layer] : layers) {
    half.layers.emplace(id, take_half(layer));
    rest.layers.emplace(id, std::move(layer));
  }
  for (Statistics* part : {&half, &rest}) {
    part->tokens = part->layers.empty() ? 0 : part->layers.begin()->second.tokens;
  }
  return std::array{std::move(half), std::move(rest)};
}

}  // namespace oscar
