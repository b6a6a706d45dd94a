#include "rotation/objectives/metric.h"

#include "oscar/core/error.h"
#include "oscar/linalg/eigh.h"
#include "oscar/linalg/power.h"
#include "rotation/objectives/attended.h"
#include "rotation/objectives/list.h"
#include "rotation/objectives/moment.h"

namespace oscar {

namespace {

Matrix at_unit_mean(const Matrix& moment) {
  return moment / (moment.trace() / static_cast<double>(moment.rows()));
}

std::vector<Matrix> products(const std::vector<Matrix>& outer, const std::vector<Matrix>& inner) {
  std::vector<Matrix> result;
  for (std::size_t i = 0; i < outer.size(); ++i) {
    const Matrix product = outer[i] * inner[i] * outer[i];
    result.push_back((product + product.transpose()) / 2);
  }
  return result;
}

}  // namespace

Matrix MetricObjective::rows(const FitUnit& unit, std::size_t head, bool centred) const {
  return side_ == Side::key ? key_moment(*unit.statistics, head, centred)
                            : value_moment(*unit.statistics, head);
}

std::vector<FittedMatrix> MetricObjective::fit(std::span<const FitUnit> units,
                                               const FitContext& context) const {
  std::vector<Matrix> costs, moments;
  for (const FitUnit& unit : units) {
    if (side_ == Side::value && unit.statistics->output_metric.empty()) {
      fail_input(
          "layer {}: the objective {} for values needs the output projection's metric, which these "
          "statistics of an older program do not hold; calibrate again",
          unit.layer, name());
    }
    costs.push_back(at_unit_mean(mean_over_heads(
        unit, [&](std::size_t head) { return error_cost(*unit.statistics, head, side_); })));
    moments.push_back(at_unit_mean(mean_over_heads(
        unit, [&](std::size_t head) { return rows(unit, head, context.centred); })));
  }
  std::vector<Matrix> roots, inverse_roots;
  for (const Eigensystem& x : eigh(metrics(costs, moments, context.device), context.device)) {
    roots.push_back(symmetric_power(x, 0.5));
    inverse_roots.push_back(symmetric_power(x, -0.5));
  }
  std::vector<FittedMatrix> result;
  for (const auto& [values, vectors] : eigh(products(roots, moments), context.device)) {
    const std::size_t i = result.size();
    const Matrix turn = compose(composition(context.composition), vectors, values);
    result.push_back({roots[i] * turn, values, inverse_roots[i] * turn});
  }
  return result;
}

namespace {

/// X = M: the metric of the reading side becomes the identity, so that every error of a stored row
/// costs the same.
class Flat : public MetricObjective {
 public:
  using MetricObjective::MetricObjective;
  std::string_view name() const override { return "flat"; }
  std::string_view summary() const override {
    return side() == Side::key ? "keys in the metric of the queries; not orthogonal (format v3)"
                               : "values in the metric of the output projection (format v3)";
  }

 private:
  std::vector<Matrix> metrics(const std::vector<Matrix>& costs, const std::vector<Matrix>&,
                              const Device&) const override {
    return costs;
  }
};

/// Flat without the Hadamard matrix: the eigenvectors alone.
class Whiten : public Flat {
 public:
  using Flat::Flat;
  std::string_view name() const override { return "whiten"; }
  std::string_view summary() const override {
    return "flat without a Hadamard matrix; not orthogonal (format v3, an ablation)";
  }

 private:
  Composition composition(Composition) const override { return Composition::plain; }
};

/// X = S^{-1/2} (S^{1/2} M S^{1/2})^{1/2} S^{-1/2}, the geometric mean of M and S^{-1}. Where the
/// quantisation error of a row is isotropic and proportional to the row's length, the error of
/// logits or outputs is proportional to tr(X S) · tr(X^{-1} M), which this X makes smallest.
class Stretch : public MetricObjective {
 public:
  using MetricObjective::MetricObjective;
  std::string_view name() const override { return "stretch"; }
  std::string_view summary() const override {
    return side() == Side::key
               ? "the balance of queries and keys that makes the logit error smallest; not "
                 "orthogonal (format v3)"
               : "the balance of values and output projection; not orthogonal (format v3)";
  }

 private:
  std::vector<Matrix> metrics(const std::vector<Matrix>& costs, const std::vector<Matrix>& rows,
                              const Device& device) const override {
    std::vector<Matrix> roots, inverse_roots;
    for (const Eigensystem& s : eigh(rows, device)) {
      roots.push_back(symmetric_power(s, 0.5));
      inverse_roots.push_back(symmetric_power(s, -0.5));
    }
    return products(inverse_roots, symmetric_powers(products(roots, costs), 0.5, device));
  }
};

/// Stretch over the rows that attention reads.
class StretchAttended : public Stretch {
 public:
  using Stretch::Stretch;
  std::string_view name() const override { return "stretch-attended"; }
  std::string_view summary() const override {
    return "stretch, rows weighted by the attention that they receive (format v3)";
  }
  std::string file_name(Composition) const override { return "stretch_attended"; }
  bool needs_samples() const override { return true; }

 private:
  Matrix rows(const FitUnit& unit, std::size_t head, bool centred) const override {
    return attended_moment(unit, head, side(), centred);
  }
};

/// The one instance for each side.
template <typename T>
const Objective& instance(Side side) {
  static const T key(Side::key), value(Side::value);
  return side == Side::key ? key : value;
}

}  // namespace

const Objective& flat_objective(Side side) {
  return instance<Flat>(side);
}
const Objective& whiten_objective(Side side) {
  return instance<Whiten>(side);
}
const Objective& stretch_objective(Side side) {
  return instance<Stretch>(side);
}
const Objective& stretch_attended_objective(Side side) {
  return instance<StretchAttended>(side);
}

}  // namespace oscar
