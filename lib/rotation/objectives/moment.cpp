#include "rotation/objectives/moment.h"

#include <fmt/format.h>

#include "oscar/linalg/eigh.h"

namespace oscar {

std::string MomentObjective::file_name(Composition composition) const {
  return fmt::format("{}_{}", file_prefix(), name_of(composition));
}

Matrix MomentObjective::mean_moment(const FitUnit& unit) const {
  Matrix sum;
  for (const int head : unit.heads) {
    const Matrix part = moment(*unit.statistics, static_cast<std::size_t>(head));
    if (sum.size() == 0) {
      sum = part;
    } else {
      sum += part;
    }
  }
  sum /= static_cast<double>(unit.heads.size());
  return (sum + sum.transpose()) / 2;
}

std::vector<FittedMatrix> MomentObjective::fit(std::span<const FitUnit> units,
                                               const FitContext& context) const {
  std::vector<Matrix> moments;
  for (const FitUnit& unit : units) moments.push_back(mean_moment(unit));
  std::vector<FittedMatrix> result;
  for (const auto& [values, vectors] : eigh(moments, context.device)) {
    result.push_back({compose(context.composition, vectors, values), values});
  }
  return result;
}

}  // namespace oscar
