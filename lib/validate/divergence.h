#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "oscar/validate/report.h"

namespace oscar {

/// Collects what a stream predicts against what the reference predicts, position by position.
class Divergence {
 public:
  /// `reference` and `candidate`: logits [n, vocabulary]; `targets`: int64 [n], the tokens that
  /// came next.
  void add(const at::Tensor& reference, const at::Tensor& candidate, const at::Tensor& targets);
  PropagatedError result() const;

 private:
  std::vector<double> divergence_;  ///< KL(reference ‖ candidate) of every position, nats
  double likelihood_ = 0;           ///< summed negative log-likelihood of the targets
  std::int64_t agreed_ = 0;
};

/// Value below which `percent` of the sorted values lie, interpolated as numpy does.
double percentile(const std::vector<double>& sorted, double percent);

}  // namespace oscar
