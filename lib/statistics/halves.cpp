#include "statistics/fields.h"

namespace oscar {

namespace {

/// What is in `whole` and not in its half.
LayerStatistics rest_of(const LayerStatistics& whole) {
  const LayerStatistics& half = whole.half[0];
  LayerStatistics rest = whole;
  rest.half.clear();
  rest.tokens -= half.tokens;
  const auto heads = static_cast<std::size_t>(whole.kv_heads);
  for (std::size_t h = 0; h < heads; ++h) {
    for (const auto& field : kOuterFields) (rest.*field.member)[h] -= (half.*field.member)[h];
    for (const auto& field : kSumFields) (rest.*field.member)[h] -= (half.*field.member)[h];
  }
  const std::int64_t rows = whole.samples() - half.samples();
  const auto keep_last = [rows](std::vector<MatrixF>& samples) {
    for (MatrixF& head : samples) head = MatrixF(head.bottomRows(rows));
    if (rows == 0) samples.clear();
  };
  for (const auto& field : kSampleFields) keep_last(rest.*field.member);
  keep_last(rest.sample_attention);
  return rest;
}

}  // namespace

std::optional<std::array<Statistics, 2>> halves(const Statistics& statistics) {
  std::array<Statistics, 2> result = {statistics, statistics};
  for (const auto& [id, layer] : statistics.layers) {
    if (layer.half.empty()) return std::nullopt;
    result[0].layers[id] = layer.half[0];
    result[0].layers[id].output_metric = layer.output_metric;
    result[1].layers[id] = rest_of(layer);
  }
  for (Statistics& half : result) {
    half.tokens = half.layers.empty() ? 0 : half.layers.begin()->second.tokens;
  }
  return result;
}

}  // namespace oscar
