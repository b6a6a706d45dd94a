#pragma once

#include "oscar/rotation/objective.h"

namespace oscar {

/// A transform that is not orthogonal (contract, section 1). With S the rows' second moment and M
/// what their errors cost (for keys C_Q, of the queries that read them; for values the output
/// projection's metric), both at unit mean eigenvalue, and A = X^{1/2} for a metric X of the two,
/// rows are stored as x · A T and read through A⁻¹ T, T the composed eigenvectors of A S A. Adding
/// one is saying which X.
class MetricObjective : public Objective {
 public:
  explicit MetricObjective(Side side) : side_(side) {}
  std::string file_name(Composition) const override { return std::string(name()); }
  bool is_orthogonal() const override { return false; }
  std::vector<FittedMatrix> fit(std::span<const FitUnit> units,
                                const FitContext& context) const override;

 protected:
  Side side() const { return side_; }

 private:
  /// S of one KV head.
  virtual Matrix rows(const FitUnit& unit, std::size_t head, bool centred) const;
  /// X of every unit, from M and S.
  virtual std::vector<Matrix> metrics(const std::vector<Matrix>& costs,
                                      const std::vector<Matrix>& rows,
                                      const Device& device) const = 0;
  /// What becomes of the eigenvectors of A S A.
  virtual Composition composition(Composition chosen) const { return chosen; }

  Side side_;
};

}  // namespace oscar
