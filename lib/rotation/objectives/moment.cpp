#include "rotation/objectives/moment.h"

#include <fmt/format.h>

#include "oscar/linalg/eigh.h"

namespace oscar {

std::string MomentObjective::file_name(Composition composition) const {
  return fmt::format("{}_{}", file_prefix(), name_of(composition));
}

Matrix mean_over_heads(const FitUnit& unit, const std::function<Matrix(std::size_t)>& moment) {
  Matrix sum = moment(static_cast<std::size_t>(unit.heads.front()));
  for (std::size_t i = 1; i < unit.heads.size(); ++i) {
    sum += moment(static_cast<std::size_t>(unit.heads[i]));
  }
  sum /= static_cast<double>(unit.heads.size());
  return (sum + sum.transpose()) / 2;
}

Matrix key_moment(const LayerStatistics& layer, std::size_t head, bool centred) {
  const auto tokens = static_cast<double>(layer.tokens);
  const Matrix moment = layer.key_outer[head] / tokens;
  if (!centred) return moment;
  const Vector mean = layer.key_sum[head] / tokens;
  return moment - mean * mean.transpose();
}

Matrix error_cost(const LayerStatistics& layer, std::size_t head, Side side) {
  if (side == Side::key) return layer.query_outer[head] / static_cast<double>(layer.query_rows());
  if (!layer.output_metric.empty()) return layer.output_metric[head];
  return Matrix::Identity(layer.value_dim, layer.value_dim);
}

Matrix value_moment(const LayerStatistics& layer, std::size_t head) {
  return layer.value_outer[head] / static_cast<double>(layer.tokens);
}

std::vector<FittedMatrix> MomentObjective::fit(std::span<const FitUnit> units,
                                               const FitContext& context) const {
  std::vector<Matrix> moments;
  for (const FitUnit& unit : units) {
    moments.push_back(mean_over_heads(
        unit, [&](std::size_t head) { return moment(unit, head, context.centred); }));
  }
  std::vector<FittedMatrix> result;
  for (const auto& [values, vectors] : eigh(moments, context.device)) {
    result.push_back({compose(context.composition, vectors, values), values});
  }
  return result;
}

}  // namespace oscar
