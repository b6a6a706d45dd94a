#include "oscar/calibrate/recorder.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "oscar/core/error.h"

namespace oscar {

namespace {

/// [T, heads, D] as [kv_heads, T·group, D] in float64: each KV head's rows together.
at::Tensor rows_by_kv_head(const at::Tensor& x, std::int64_t kv_heads) {
  const std::int64_t tokens = x.size(0), group = x.size(1) / kv_heads, dim = x.size(2);
  return x.to(at::kDouble)
      .view({tokens, kv_heads, group, dim})
      .permute({1, 0, 2, 3})
      .reshape({kv_heads, tokens * group, dim});
}

at::Tensor outer(const at::Tensor& rows) {
  return at::bmm(rows.transpose(1, 2), rows);
}

std::vector<Matrix> matrices(const at::Tensor& stacked) {
  const at::Tensor host = stacked.to(at::kCPU).contiguous();
  const auto size = host.size(1);
  std::vector<Matrix> result;
  for (std::int64_t head = 0; head < host.size(0); ++head) {
    const Matrix sum =
        Eigen::Map<const Matrix>(host.data_ptr<double>() + head * size * size, size, size);
    result.push_back((sum + sum.transpose()) /
                     2);  // products of equal factors, summed in other orders
  }
  return result;
}

std::vector<Vector> vectors(const at::Tensor& stacked) {
  const at::Tensor host = stacked.to(at::kCPU).contiguous();
  std::vector<Vector> result;
  for (std::int64_t head = 0; head < host.size(0); ++head) {
    result.push_back(
        Eigen::Map<const Vector>(host.data_ptr<double>() + head * host.size(1), host.size(1)));
  }
  return result;
}

/// What the tokens `index` [n] receive from the queries that read them at two bits, as
/// LayerStatistics::sample_attention: [kv_heads, n, 2]. Queries go block by block, so that no more
/// than some millions of probabilities exist at once.
at::Tensor received_attention(const AttentionEvent& event, const at::Tensor& index) {
  constexpr std::int64_t kSink = 64, kRecent = 256;  // the served windows
  constexpr std::int64_t kProbabilities = std::int64_t{1} << 24;
  const std::int64_t tokens = event.q.size(0), q_heads = event.q.size(1);
  const std::int64_t kv_heads = event.k.size(1), group = q_heads / kv_heads;
  const at::Tensor keys = event.k.to(at::kFloat).permute({1, 2, 0});  // [kv_heads, D, T]
  const at::Tensor position = at::arange(tokens, index.options());
  at::Tensor sums = at::zeros({kv_heads, index.size(0), 2}, keys.options());
  const std::int64_t block = std::max<std::int64_t>(1, kProbabilities / (q_heads * tokens));
  for (std::int64_t first = kSink + kRecent; first < tokens; first += block) {
    const std::int64_t last = std::min(first + block, tokens), count = last - first;
    const at::Tensor queries = event.q.slice(0, first, last)
                                   .to(at::kFloat)
                                   .view({count, kv_heads, group, -1})
                                   .permute({1, 2, 0, 3})
                                   .reshape({kv_heads, group * count, -1});
    const at::Tensor query = position.slice(0, first, last).unsqueeze(1);
    at::Tensor logits = at::matmul(queries, keys.slice(2, 0, last))
                            .mul_(event.scale)
                            .view({kv_heads, group, count, last});
    logits.masked_fill_(position.slice(0, 0, last).unsqueeze(0) > query, -1e30);
    const at::Tensor seen = index.masked_select(index < last);
    const at::Tensor coded = (seen.unsqueeze(0) <= query - kRecent)
                                 .logical_and(seen.unsqueeze(0) >= kSink)
                                 .to(at::kFloat);
    const at::Tensor p = at::softmax(logits, -1).index_select(-1, seen).mul_(coded);
    at::Tensor part = sums.slice(1, 0, seen.size(0));  // `index` ascends
    part.select(-1, 0).add_(p.sum({1, 2}));
    part.select(-1, 1).add_(p.square().sum({1, 2}));
  }
  return sums;
}

/// LayerStatistics::output_metric of W_o [hidden, q_heads·Dv].
at::Tensor output_metric(const at::Tensor& weight, std::int64_t q_heads, std::int64_t kv_heads) {
  const at::Tensor heads =
      weight.to(at::kDouble).view({weight.size(0), q_heads, -1}).transpose(0, 1);
  const at::Tensor costs = at::bmm(heads.transpose(1, 2), heads);
  return costs.view({kv_heads, q_heads / kv_heads, costs.size(1), costs.size(2)}).mean(1);
}

/// Kept rows of all sequences as [kv_heads][n, D].
std::vector<MatrixF> samples_by_head(const std::vector<at::Tensor>& parts) {
  std::vector<MatrixF> result;
  if (parts.empty()) return result;
  const at::Tensor all =
      at::cat(parts).transpose(0, 1).to(at::kCPU).contiguous();  // [kv_heads, n, D]
  for (std::int64_t head = 0; head < all.size(0); ++head) {
    result.push_back(
        Eigen::Map<const MatrixF>(all[head].const_data_ptr<float>(), all.size(1), all.size(2)));
  }
  return result;
}

}  // namespace

struct Recorder::Sums {
  int layer = -1;
  int q_heads = 0;
  std::int64_t tokens = 0;
  at::Tensor query_outer, query_sum, key_outer, key_sum, value_outer, value_sum, output_outer;
  at::Tensor output_metric;
  std::vector<at::Tensor> key_samples, value_samples;  // [n, kv_heads, D]
  std::vector<at::Tensor> sample_attention;            // [n, kv_heads, 2]
  std::vector<at::Tensor> keys,
      values;  // kept until C_Q is complete: the surrogate's weights need it

  /// V^T diag(w) V with w_t = k_t C_Q k_tᵀ, scaled so that the weights sum to the number of tokens.
  at::Tensor weighted_value_outer() const {
    at::Tensor total;
    at::Tensor weight_sum;
    const at::Tensor c_q =
        query_outer / static_cast<double>(tokens * (q_heads / query_outer.size(0)));
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const at::Tensor k = rows_by_kv_head(keys[i], keys[i].size(1));
      const at::Tensor v = rows_by_kv_head(values[i], values[i].size(1));
      const at::Tensor weight = (at::bmm(k, c_q) * k).sum(-1, true);  // [kv_heads, T, 1]
      const at::Tensor part = at::bmm(v.transpose(1, 2), v * weight);
      total = i == 0 ? part : total + part;
      weight_sum = i == 0 ? weight.sum(1, true) : weight_sum + weight.sum(1, true);
    }
    return total / weight_sum.clamp_min(1e-12) * static_cast<double>(tokens);
  }
};

Recorder::Recorder(Options options) : options_(std::move(options)) {}
Recorder::~Recorder() = default;

void Recorder::on_progress(std::function<void(std::int64_t)> callback) {
  progress_ = std::move(callback);
}

void Recorder::on_attention(const AttentionEvent& event) {
  if (event.stream != 0) return;
  if (progress_) progress_(event.q.size(0));
  if (!options_.layers.empty() && !options_.layers.contains(event.layer)) return;
  const std::int64_t kv_heads = event.k.size(1);
  const at::Tensor q = rows_by_kv_head(event.q, kv_heads), k = rows_by_kv_head(event.k, kv_heads),
                   v = rows_by_kv_head(event.v, kv_heads),
                   o = rows_by_kv_head(event.output, kv_heads);
  const bool first = !sums_;
  if (first) {
    sums_ = std::make_unique<Sums>();
    sums_->layer = event.layer;
    sums_->q_heads = static_cast<int>(event.q.size(1));
    sums_->output_metric = output_metric(event.output_weight, event.q.size(1), kv_heads);
  }
  Sums& s = *sums_;
  if (s.layer != event.layer) fail("layer {} ended without finish_layer()", s.layer);
  const auto add = [first](at::Tensor& sum, const at::Tensor& part) {
    if (first) {
      sum = part;
    } else {
      sum += part;
    }
  };
  add(s.query_outer, outer(q));
  add(s.query_sum, q.sum(1));
  add(s.key_outer, outer(k));
  add(s.key_sum, k.sum(1));
  add(s.value_outer, outer(v));
  add(s.value_sum, v.sum(1));
  add(s.output_outer, outer(o));
  if (const auto rows = sampled(s.tokens, event.k.size(0)); !rows.empty()) {
    const at::Tensor index = at::tensor(rows, at::kLong).to(event.k.device());
    const auto keep = [&index](const at::Tensor& x) {
      return x.index_select(0, index).to(at::kFloat);
    };
    s.key_samples.push_back(keep(event.k));
    s.value_samples.push_back(keep(event.v));
    s.sample_attention.push_back(received_attention(event, index).transpose(0, 1));
  }
  s.tokens += event.q.size(0);
  s.keys.push_back(event.k.clone());
  s.values.push_back(event.v.clone());
}

std::vector<std::int64_t> Recorder::sampled(std::int64_t first, std::int64_t count) const {
  std::vector<std::int64_t> rows;
  const std::int64_t total = std::max<std::int64_t>(options_.total_tokens, 1);
  const std::int64_t samples = std::min(options_.samples, total);
  for (std::int64_t t = first; t < first + count; ++t) {
    if ((t + 1) * samples / total > t * samples / total) rows.push_back(t - first);
  }
  return rows;
}

LayerStatistics Recorder::finish_layer(int layer) {
  if (!sums_ || sums_->layer != layer) fail("no attention of layer {} was recorded", layer);
  const std::unique_ptr<Sums> s = std::move(sums_);
  LayerStatistics result;
  result.kv_heads = static_cast<int>(s->key_outer.size(0));
  result.q_heads = s->q_heads;
  result.head_dim = static_cast<int>(s->key_outer.size(1));
  result.value_dim = static_cast<int>(s->value_outer.size(1));
  result.tokens = s->tokens;
  result.query_outer = matrices(s->query_outer);
  result.query_sum = vectors(s->query_sum);
  result.key_outer = matrices(s->key_outer);
  result.key_sum = vectors(s->key_sum);
  result.value_outer = matrices(s->value_outer);
  result.value_sum = vectors(s->value_sum);
  result.output_outer = matrices(s->output_outer);
  result.weighted_value_outer = matrices(s->weighted_value_outer());
  result.output_metric = matrices(s->output_metric);
  result.key_samples = samples_by_head(s->key_samples);
  result.value_samples = samples_by_head(s->value_samples);
  result.sample_attention = samples_by_head(s->sample_attention);
  return result;
}

}  // namespace oscar
