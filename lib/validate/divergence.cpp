#include "validate/divergence.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "oscar/core/error.h"

namespace oscar {

void Divergence::add(const at::Tensor& reference, const at::Tensor& candidate,
                     const at::Tensor& targets) {
  const at::Tensor log_p = reference.log_softmax(-1), log_q = candidate.log_softmax(-1);
  const at::Tensor divergence =
      (log_p.exp() * (log_p - log_q)).sum(-1, false, at::kDouble).to(at::kCPU).contiguous();
  const double* values = divergence.const_data_ptr<double>();
  // Rounding can leave a tiny negative number where the two agree.
  for (std::int64_t i = 0; i < divergence.numel(); ++i)
    divergence_.push_back(std::max(values[i], 0.0));
  likelihood_ -= log_q.gather(1, targets.unsqueeze(1)).sum(at::kDouble).item().toDouble();
  agreed_ += reference.argmax(-1).eq(candidate.argmax(-1)).sum().item().toLong();
}

namespace {

struct Mean {
  double value, standard_error;
};

Mean mean_of(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, values.size() > 1 ? std::sqrt(squares / (count - 1) / count) : 0};
}

}  // namespace

PropagatedError Divergence::result() const {
  PropagatedError result;
  std::vector<double> sorted = divergence_;
  std::sort(sorted.begin(), sorted.end());
  const auto count = static_cast<double>(sorted.size());
  result.perplexity = std::exp(likelihood_ / count);
  const Mean mean = mean_of(sorted);
  result.kld_mean = mean.value;
  result.kld_standard_error = mean.standard_error;
  result.kld = divergence_;
  for (const char* name : {"50", "90", "95", "99", "99.9"}) {
    result.kld_percentiles[name] = percentile(sorted, std::atof(name));
  }
  result.kld_percentiles["max"] = sorted.back();
  result.top1_agreement = static_cast<double>(agreed_) / count;
  return result;
}

PairedGain paired_gain(const PropagatedError& better, const PropagatedError& worse) {
  if (better.kld.empty() || better.kld.size() != worse.kld.size()) {
    fail("{} scored positions against {}: not the same text", better.kld.size(), worse.kld.size());
  }
  std::vector<double> gains(better.kld.size());
  for (std::size_t i = 0; i < gains.size(); ++i) gains[i] = worse.kld[i] - better.kld[i];
  const Mean mean = mean_of(gains);
  return {mean.value, mean.standard_error};
}

double percentile(const std::vector<double>& sorted, double percent) {
  const double at = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace oscar
