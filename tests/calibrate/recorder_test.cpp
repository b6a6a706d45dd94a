#include "oscar/calibrate/recorder.h"

#include <ATen/ATen.h>

#include "oscar/core/error.h"
#include "support.h"

namespace oscar {
namespace {

constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 8, kHidden = 11;

AttentionEvent random_event(std::int64_t tokens, int layer, std::int64_t sequence) {
  const auto noise = [&](std::int64_t heads, double phase) {
    const at::Tensor index = at::arange(tokens * heads * kDim, at::kFloat);
    return at::sin(index * (1.3 + phase) + static_cast<double>(sequence))
        .view({tokens, heads, kDim});
  };
  AttentionEvent event;
  event.layer = layer;
  event.sequence = sequence;
  event.q = noise(kHeads, 0.1);
  event.k = noise(kKvHeads, 0.2);
  event.v = noise(kKvHeads, 0.3);
  event.output = noise(kHeads, 0.4);
  event.output_weight =
      at::sin(at::arange(kHidden * kHeads * kDim, at::kFloat) * 1.7).view({kHidden, kHeads * kDim});
  return event;
}

float at3(const at::Tensor& x, std::int64_t t, std::int64_t h, std::int64_t i) {
  return x[t][h][i].item().toFloat();
}

/// Every sum against loops that say what it is.
TEST(Recorder, RecordsTheContractsMoments) {
  const std::vector<AttentionEvent> events = {random_event(5, 3, 0), random_event(2, 3, 1)};
  Recorder recorder(Recorder::Options{});
  for (const auto& event : events) recorder.on_attention(event);
  const LayerStatistics s = recorder.finish_layer(3);
  EXPECT_EQ(s.tokens, 7);
  EXPECT_EQ(s.group(), 2);
  for (int h = 0; h < kKvHeads; ++h) {
    Matrix query = Matrix::Zero(kDim, kDim), key = query, value = query, output = query,
           weighted = query;
    Vector query_sum = Vector::Zero(kDim), key_sum = query_sum, value_sum = query_sum;
    const auto row = [](const at::Tensor& x, std::int64_t t, std::int64_t head) {
      Vector r(kDim);
      for (int i = 0; i < kDim; ++i) r[i] = at3(x, t, head, i);
      return r;
    };
    for (const auto& e : events) {
      for (std::int64_t t = 0; t < e.q.size(0); ++t) {
        for (int g = 0; g < 2; ++g) {
          const Vector q = row(e.q, t, 2 * h + g), o = row(e.output, t, 2 * h + g);
          query += q * q.transpose();
          output += o * o.transpose();
          query_sum += q;
        }
        const Vector k = row(e.k, t, h), v = row(e.v, t, h);
        key += k * k.transpose();
        value += v * v.transpose();
        key_sum += k;
        value_sum += v;
      }
    }
    double weights = 0;
    for (const auto& e : events) {
      for (std::int64_t t = 0; t < e.q.size(0); ++t) {
        const Vector k = row(e.k, t, h), v = row(e.v, t, h);
        const double w = k.dot(query / 14 * k);
        weights += w;
        weighted += w * v * v.transpose();
      }
    }
    weighted *= 7 / weights;
    const auto head = static_cast<std::size_t>(h);
    EXPECT_LT((s.query_outer[head] - query).norm(), 1e-12 * query.norm());
    EXPECT_LT((s.key_outer[head] - key).norm(), 1e-12 * key.norm());
    EXPECT_LT((s.value_outer[head] - value).norm(), 1e-12 * value.norm());
    EXPECT_LT((s.output_outer[head] - output).norm(), 1e-12 * output.norm());
    EXPECT_LT((s.weighted_value_outer[head] - weighted).norm(), 1e-12 * weighted.norm());
    EXPECT_LT((s.query_sum[head] - query_sum).norm(), 1e-12 * query_sum.norm());
    EXPECT_LT((s.key_sum[head] - key_sum).norm(), 1e-12 * key_sum.norm());
    EXPECT_LT((s.value_sum[head] - value_sum).norm(), 1e-12 * value_sum.norm());
  }
}

/// e · metric · eᵀ is the mean over a KV head's query heads of what W_o makes of e, squared.
TEST(Recorder, MeasuresWhatTheOutputProjectionMakesOfAnError) {
  const AttentionEvent event = random_event(5, 0, 0);
  Recorder recorder(Recorder::Options{});
  recorder.on_attention(event);
  const LayerStatistics s = recorder.finish_layer(0);
  const at::Tensor error = at::sin(at::arange(kDim, at::kDouble));
  Vector e(kDim);
  for (int i = 0; i < kDim; ++i) e[i] = std::sin(i);
  for (std::int64_t h = 0; h < kKvHeads; ++h) {
    double expected = 0;
    for (std::int64_t head = 2 * h; head < 2 * h + 2; ++head) {
      const at::Tensor weight = event.output_weight.slice(1, head * kDim, (head + 1) * kDim);
      expected += at::mv(weight.to(at::kDouble), error).square().sum().item().toDouble() / 2;
    }
    const Matrix& metric = s.output_metric[static_cast<std::size_t>(h)];
    EXPECT_NEAR(e.dot(metric * e), expected, 1e-12 * expected);
  }
}

/// Sequences 0, 3, 5, 6 and 9 are the half, whose samples come first; 1, 2, 4, 7 and 8 are the
/// rest.
TEST(Recorder, KeepsAHalfOfTheSequencesApart) {
  Recorder both(Recorder::Options{.layers = {}, .samples = 60, .total_tokens = 60}),
      half(Recorder::Options{.layers = {}, .samples = 30, .total_tokens = 30}),
      rest(Recorder::Options{.layers = {}, .samples = 30, .total_tokens = 30});
  for (const std::int64_t sequence : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    const AttentionEvent event = random_event(6, 0, sequence);
    both.on_attention(event);
    const bool first = sequence % 3 == 0 || sequence == 5;
    (first ? half : rest).on_attention(event);
  }
  Statistics all;
  all.layers.emplace(0, both.finish_layer(0));
  const auto parts = halves(all);
  ASSERT_TRUE(parts);
  const std::array expected = {half.finish_layer(0), rest.finish_layer(0)};
  for (std::size_t i = 0; i < 2; ++i) {
    const LayerStatistics &found = (*parts)[i].layers.at(0), &wanted = expected[i];
    EXPECT_EQ(found.tokens, 30);
    EXPECT_EQ((*parts)[i].tokens, 30);
    for (std::size_t head = 0; head < kKvHeads; ++head) {
      EXPECT_LT((found.query_outer[head] - wanted.query_outer[head]).norm(), 1e-11);
      EXPECT_LT((found.value_sum[head] - wanted.value_sum[head]).norm(), 1e-11);
      EXPECT_EQ(found.output_metric[head], wanted.output_metric[head]);
      EXPECT_EQ(found.key_samples[head], wanted.key_samples[head]);
      EXPECT_EQ(found.sample_attention[head], wanted.sample_attention[head]);
    }
  }
}

/// The surrogate's weights are the layer's: so the two halves add up to it.
TEST(Recorder, WeighsTheHalfsValuesAsTheLayers) {
  const std::array events = {random_event(6, 0, 0), random_event(4, 0, 1)};
  Recorder recorder(Recorder::Options{});
  for (const AttentionEvent& event : events) recorder.on_attention(event);
  const LayerStatistics layer = recorder.finish_layer(0);
  ASSERT_EQ(layer.half.size(), 1u);
  double weights = 0;
  Matrix of_half = Matrix::Zero(kDim, kDim);
  for (const AttentionEvent& event : events) {
    for (std::int64_t t = 0; t < event.k.size(0); ++t) {
      Vector k(kDim), v(kDim);
      for (int i = 0; i < kDim; ++i) {
        k[i] = at3(event.k, t, 0, i);
        v[i] = at3(event.v, t, 0, i);
      }
      const double weight = k.dot(layer.query_outer[0] * k);
      weights += weight;
      if (event.sequence == 0) of_half += weight * v * v.transpose();
    }
  }
  of_half *= 10 / weights;
  EXPECT_LT((layer.half[0].weighted_value_outer[0] - of_half).norm(), 1e-12 * of_half.norm());
}

TEST(Recorder, KeepsNoHalfOfOneSequence) {
  Recorder recorder(Recorder::Options{});
  recorder.on_attention(random_event(9, 0, 0));
  EXPECT_TRUE(recorder.finish_layer(0).half.empty());
}

TEST(Recorder, TakesWhatItIsAskedFor) {
  Recorder recorder(Recorder::Options{.layers = {1}, .samples = 3, .total_tokens = 9});
  std::int64_t seen = 0;
  recorder.on_progress([&](std::int64_t tokens) { seen += tokens; });
  recorder.on_attention(random_event(9, 0, 0));
  EXPECT_THROW_WITH(recorder.finish_layer(0), Error, "no attention of layer 0");
  AttentionEvent other_stream = random_event(9, 1, 0);
  other_stream.stream = 1;
  recorder.on_attention(other_stream);
  const AttentionEvent event = random_event(9, 1, 0);
  recorder.on_attention(event);
  const LayerStatistics s = recorder.finish_layer(1);
  EXPECT_EQ(s.tokens, 9);
  EXPECT_EQ(seen, 18);
  ASSERT_EQ(s.samples(), 3);
  for (int i = 0; i < kDim; ++i) {
    EXPECT_EQ(s.key_samples[1](0, i), at3(event.k, 2, 1, i));
    EXPECT_EQ(s.value_samples[0](2, i), at3(event.v, 8, 0, i));
  }
}

/// Against loops over the causal softmax and the served windows: 64 tokens of sink, 256 recent.
TEST(Recorder, SumsTheAttentionThatSamplesReceive) {
  constexpr std::int64_t kTokens = 400, kSamples = 8;
  AttentionEvent event = random_event(kTokens, 0, 0);
  event.scale = 0.35;
  Recorder recorder(Recorder::Options{.layers = {}, .samples = kSamples, .total_tokens = kTokens});
  recorder.on_attention(event);
  const LayerStatistics s = recorder.finish_layer(0);
  ASSERT_EQ(s.samples(), kSamples);
  for (std::int64_t n = 0; n < kSamples; ++n) {
    const std::int64_t key = (n + 1) * kTokens / kSamples - 1;  // 49, 99, ...
    for (std::int64_t head = 0; head < kKvHeads; ++head) {
      double sum = 0, squares = 0;
      for (std::int64_t query = key + 256; query < kTokens && key >= 64; ++query) {
        for (std::int64_t g = 0; g < 2; ++g) {
          const at::Tensor logits =
              at::mv(event.k.slice(0, 0, query + 1).select(1, head), event.q[query][2 * head + g]) *
              event.scale;
          const double p = at::softmax(logits, 0)[key].item().toDouble();
          sum += p;
          squares += p * p;
        }
      }
      const MatrixF& found = s.sample_attention[static_cast<std::size_t>(head)];
      EXPECT_NEAR(found(n, 0), sum, 1e-5 * sum + 1e-9) << "token " << key;
      EXPECT_NEAR(found(n, 1), squares, 1e-5 * squares + 1e-9) << "token " << key;
    }
  }
}

}  // namespace
}  // namespace oscar
