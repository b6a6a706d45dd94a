#pragma once

#include "oscar/rotation/objective.h"

namespace oscar {

/// A transform of keys that is not orthogonal (contract, section 1): with M = C_Q, S the keys'
/// second moment, both at unit mean eigenvalue, and A = X^{1/2} for a metric X of the two, keys are
/// stored as k · A T and read as q · A⁻¹ T, T the composed eigenvectors of A S A. Adding one is
/// saying which X.
class MetricObjective : public Objective {
 public:
  std::string file_name(Composition) const override { return std::string(name()); }
  bool is_orthogonal() const override { return false; }
  std::vector<FittedMatrix> fit(std::span<const FitUnit> units,
                                const FitContext& context) const override;

 private:
  /// S of one KV head.
  virtual Matrix keys(const FitUnit& unit, std::size_t head, bool centred) const;
  /// X of every unit.
  virtual std::vector<Matrix> metrics(const std::vector<Matrix>& queries,
                                      const std::vector<Matrix>& keys,
                                      const Device& device) const = 0;
  /// What becomes of the eigenvectors of A S A.
  virtual Composition composition(Composition chosen) const { return chosen; }
};

}  // namespace oscar
