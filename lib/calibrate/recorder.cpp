#include "oscar/calibrate/recorder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <bit>

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

/// Sums over some sequences of a layer, as tensors where the events were computed.
struct Moments {
  std::int64_t tokens = 0;
  at::Tensor query_outer, query_sum, key_outer, key_sum, value_outer, value_sum, output_outer;
  std::vector<at::Tensor> key_samples, value_samples;  // [n, kv_heads, D]
  std::vector<at::Tensor> sample_attention;            // [n, kv_heads, 2]
  std::vector<at::Tensor> keys,
      values;  // kept until C_Q is complete: the surrogate's weights need it

  static constexpr std::array kSums = {
      &Moments::query_outer, &Moments::query_sum, &Moments::key_outer,   &Moments::key_sum,
      &Moments::value_outer, &Moments::value_sum, &Moments::output_outer};
  static constexpr std::array kRows = {&Moments::key_samples, &Moments::value_samples,
                                       &Moments::sample_attention, &Moments::keys,
                                       &Moments::values};

  void add(const Moments& other) {
    for (const auto sum : kSums) {
      if (tokens == 0) {
        this->*sum = other.*sum;
      } else if (other.tokens > 0) {
        this->*sum = this->*sum + other.*sum;
      }
    }
    for (const auto rows : kRows) {
      (this->*rows).insert((this->*rows).end(), (other.*rows).begin(), (other.*rows).end());
    }
    tokens += other.tokens;
  }
};

/// Σ w_t v_tᵀ v_t and Σ w_t with the surrogate's weights w_t = k_t C_Q k_tᵀ. Zeros broadcast where
/// there are no tokens.
struct WeightedValues {
  at::Tensor outer;  // [kv_heads, Dv, Dv]
  at::Tensor sum;    // [kv_heads, 1, 1]
};

WeightedValues weighted_values(const Moments& moments, const at::Tensor& c_q) {
  const at::Tensor zero = at::zeros({1, 1, 1}, c_q.options());
  WeightedValues result{zero, zero};
  for (std::size_t i = 0; i < moments.keys.size(); ++i) {
    const at::Tensor k = rows_by_kv_head(moments.keys[i], moments.keys[i].size(1));
    const at::Tensor v = rows_by_kv_head(moments.values[i], moments.values[i].size(1));
    const at::Tensor weight = (at::bmm(k, c_q) * k).sum(-1, true);  // [kv_heads, T, 1]
    result.outer = result.outer + at::bmm(v.transpose(1, 2), v * weight);
    result.sum = result.sum + weight.sum(1, true);
  }
  return result;
}

LayerStatistics statistics_of(const Moments& moments, int q_heads,
                              const at::Tensor& weighted_value_outer) {
  LayerStatistics result;
  result.kv_heads = static_cast<int>(moments.key_outer.size(0));
  result.q_heads = q_heads;
  result.head_dim = static_cast<int>(moments.key_outer.size(1));
  result.value_dim = static_cast<int>(moments.value_outer.size(1));
  result.tokens = moments.tokens;
  result.query_outer = matrices(moments.query_outer);
  result.query_sum = vectors(moments.query_sum);
  result.key_outer = matrices(moments.key_outer);
  result.key_sum = vectors(moments.key_sum);
  result.value_outer = matrices(moments.value_outer);
  result.value_sum = vectors(moments.value_sum);
  result.output_outer = matrices(moments.output_outer);
  result.weighted_value_outer = matrices(weighted_value_outer);
  result.key_samples = samples_by_head(moments.key_samples);
  result.value_samples = samples_by_head(moments.value_samples);
  result.sample_attention = samples_by_head(moments.sample_attention);
  return result;
}

/// Which half of the data a sequence belongs to: balanced against any period in their order (Thue
/// and Morse).
std::size_t half_of(std::int64_t sequence) {
  return static_cast<std::size_t>(std::popcount(static_cast<std::uint64_t>(sequence)) & 1);
}

}  // namespace

struct Recorder::Sums {
  int layer = -1;
  int q_heads = 0;
  at::Tensor output_metric;
  std::array<Moments, 2> halves;

  std::int64_t tokens() const { return halves[0].tokens + halves[1].tokens; }
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
  if (!sums_) {
    sums_ = std::make_unique<Sums>();
    sums_->layer = event.layer;
    sums_->q_heads = static_cast<int>(event.q.size(1));
    sums_->output_metric = output_metric(event.output_weight, event.q.size(1), kv_heads);
  }
  if (sums_->layer != event.layer) fail("layer {} ended without finish_layer()", sums_->layer);
  Moments part{.tokens = event.q.size(0),
               .query_outer = outer(q),
               .query_sum = q.sum(1),
               .key_outer = outer(k),
               .key_sum = k.sum(1),
               .value_outer = outer(v),
               .value_sum = v.sum(1),
               .output_outer = outer(o),
               .key_samples = {},
               .value_samples = {},
               .sample_attention = {},
               .keys = {event.k.clone()},
               .values = {event.v.clone()}};
  if (const auto rows = sampled(sums_->tokens(), part.tokens); !rows.empty()) {
    const at::Tensor index = at::tensor(rows, at::kLong).to(event.k.device());
    const auto keep = [&index](const at::Tensor& x) {
      return x.index_select(0, index).to(at::kFloat);
    };
    part.key_samples.push_back(keep(event.k));
    part.value_samples.push_back(keep(event.v));
    part.sample_attention.push_back(received_attention(event, index).transpose(0, 1));
  }
  sums_->halves[half_of(event.sequence)].add(part);
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
  const std::unique_ptr<Sums> sums = std::move(sums_);
  const auto& [first, second] = sums->halves;
  Moments all = first;
  all.add(second);
  const at::Tensor c_q =
      all.query_outer / static_cast<double>(all.tokens * (sums->q_heads / all.query_outer.size(0)));
  const WeightedValues of_first = weighted_values(first, c_q),
                       of_second = weighted_values(second, c_q);
  // Makes the weights of both halves together sum to the number of tokens.
  const at::Tensor factor =
      static_cast<double>(all.tokens) / (of_first.sum + of_second.sum).clamp_min(1e-12);
  LayerStatistics result =
      statistics_of(all, sums->q_heads, (of_first.outer + of_second.outer) * factor);
  result.output_metric = matrices(sums->output_metric);
  if (first.tokens > 0 && second.tokens > 0) {
    result.half.push_back(statistics_of(first, sums->q_heads, of_first.outer * factor));
  }
  return result;
}

}  // namespace oscar
