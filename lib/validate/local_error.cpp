#include "validate/local_error.h"

#include <ATen/ATen.h>

#include <cmath>

namespace oscar {

namespace {

std::vector<double> to_host(const at::Tensor& x) {
  const at::Tensor host = x.to(at::kCPU).contiguous();
  return {host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel()};
}

double ratio(double error, double norm) {
  return norm > 0 ? error / norm : 0;
}

}  // namespace

void LocalError::on_attention(const AttentionEvent& event) {
  if (event.stream != stream_) return;
  const std::int64_t length = event.q.size(0), first = first_scored_position(first_scored_, length);
  if (first >= length) return;
  const auto quantised = attention_.attend(event, first);
  const at::Tensor reference = event.output.slice(0, first).to(at::kDouble);
  const at::Tensor difference = quantised.output.slice(0, first).to(at::kDouble) - reference;
  const auto per_head = [](const at::Tensor& x) { return x.square().sum(at::IntArrayRef{0, 2}); };
  const at::Tensor error = per_head(difference), norm = per_head(reference);
  Sums& s = sums_[event.layer];
  s.error = s.error.defined() ? s.error + error : error;
  s.norm = s.norm.defined() ? s.norm + norm : norm;
  s.logit_error = s.logit_error.defined() ? s.logit_error + quantised.logit_error_sums
                                          : quantised.logit_error_sums;
  s.pairs += attention_.coded_pairs(length, first);
}

std::vector<LayerError> LocalError::layers() const {
  std::vector<LayerError> result;
  for (const auto& [layer, s] : sums_) {
    const auto error = to_host(s.error), norm = to_host(s.norm), logit = to_host(s.logit_error);
    LayerError entry;
    entry.layer = layer;
    double all_error = 0, all_norm = 0, all_logit = 0;
    const auto pairs = static_cast<double>(s.pairs);
    for (std::size_t head = 0; head < error.size(); ++head) {
      entry.heads.push_back({ratio(error[head], norm[head]), std::sqrt(ratio(logit[head], pairs))});
      all_error += error[head];
      all_norm += norm[head];
      all_logit += logit[head];
    }
    entry.all = {ratio(all_error, all_norm),
                 std::sqrt(ratio(all_logit, pairs * static_cast<double>(error.size())))};
    result.push_back(std::move(entry));
  }
  return result;
}

}  // namespace oscar
