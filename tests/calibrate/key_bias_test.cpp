#include "oscar/calibrate/key_bias.h"

#include <cmath>
#include <cstring>

#include "oscar/core/error.h"
#include "support.h"

namespace oscar {
namespace {

constexpr int kDim = 8, kHalf = kDim / 2;

/// One layer with two KV heads and key biases, in memory. RoPE's planes turn by 1, 0.1, 0.01 and
/// 0.001 rad a position.
class Biased : public Checkpoint {
 public:
  Biased() {
    config_.layers = 1;
    config_.q_heads = config_.kv_heads = 2;
    config_.head_dim = config_.value_dim = kDim;
    config_.qkv_bias = true;
    tensor_.name = "bias";
    tensor_.shape = {2 * kDim};
    for (int i = 0; i < 2 * kDim; ++i) {
      bias.push_back(static_cast<float>(std::pow(3, i % kHalf) * (i % kDim < kHalf ? 1 : 2)));
    }
  }
  const ModelConfig& config() const override { return config_; }
  const std::filesystem::path& path() const override { return path_; }
  const TensorView& tensor(const std::string& name) const override {
    EXPECT_EQ(name, "model.layers.0.self_attn.k_proj.bias");
    tensor_.data = std::as_bytes(std::span(bias));
    return tensor_;
  }
  bool has(const std::string&) const override { return true; }
  std::string fingerprint() const override { return "xxh3:1"; }
  void prefetch_layer(int) const override {}
  void release_layer(int) const override {}

  std::vector<float> bias;
  ModelConfig config_;

 private:
  std::filesystem::path path_ = "biased";
  mutable TensorView tensor_;
};

/// Keys of `tokens` positions: the bias, turned by RoPE, and a spread of `spread` along channel 0.
/// Head 1's bias is left out of its keys.
Statistics statistics_of(const Biased& model, int tokens, double spread) {
  Statistics result;
  result.model_fingerprint = "xxh3:1";
  result.sequence_length = result.tokens = tokens;
  LayerStatistics layer = LayerStatistics::zeros(2, 2, kDim, kDim);
  layer.tokens = tokens;
  for (int head = 0; head < 2; ++head) {
    const auto at = static_cast<std::size_t>(head);
    for (int t = 0; t < tokens; ++t) {
      Vector key = Vector::Zero(kDim);
      for (int i = 0; head == 0 && i < kHalf; ++i) {
        const double angle = t * std::pow(10.0, -i);
        const double x = model.bias[static_cast<std::size_t>(i)],
                     y = model.bias[static_cast<std::size_t>(i + kHalf)];
        key[i] = x * std::cos(angle) - y * std::sin(angle);
        key[i + kHalf] = y * std::cos(angle) + x * std::sin(angle);
      }
      key[0] += t % 2 == 0 ? spread : -spread;
      layer.key_outer[at] += key * key.transpose();
      layer.key_sum[at] += key;
    }
    layer.query_outer[at] = Matrix::Identity(kDim, kDim) * tokens;  // each plane √2 long
  }
  result.layers.emplace(0, std::move(layer));
  return result;
}

/// Length of a plane's bias: channels i and i + 4 hold 3^i and 2·3^i.
double plane(int i) {
  return std::sqrt(5) * std::pow(3, i);
}

TEST(KeyBias, TakesTheSlowPlanesOfHeadsInDanger) {
  Biased model;
  const Statistics statistics = statistics_of(model, 20, 0.5);
  const KeyBiasPatch patch = take_key_biases(model, statistics, {.context = 40, .max_angle = 0.5});
  EXPECT_EQ(patch.planes, 2);  // 0.4 and 0.04 rad
  EXPECT_NEAR(patch.angle, 0.4, 1e-12);
  ASSERT_EQ(patch.heads.size(), 1u);
  const TakenBias& head = patch.heads[0];
  EXPECT_EQ(head.head, 0);
  EXPECT_NEAR(head.bias, std::hypot(std::hypot(plane(0), plane(1)), std::hypot(plane(2), plane(3))),
              1e-12);
  EXPECT_NEAR(head.bias_left, std::hypot(plane(0), plane(1)), 1e-12);
  EXPECT_NEAR(head.logit_bound,
              2 * std::sqrt(2.0 / kDim) * (plane(2) * std::sin(0.1) + plane(3) * std::sin(0.01)),
              1e-12);
  ASSERT_EQ(patch.tensors.size(), 1u);
  EXPECT_EQ(patch.tensors[0].name, "model.layers.0.self_attn.k_proj.bias");
  std::vector<float> expected = model.bias;
  for (const std::size_t channel : {2u, 3u, 6u, 7u}) expected[channel] = 0;
  EXPECT_EQ(patch.tensors[0].values, expected);
}

TEST(KeyBias, ForeseesTheOffsetThatIsLeft) {
  Biased model;
  const Statistics before = statistics_of(model, 20, 0.5);
  const KeyBiasPatch patch = take_key_biases(model, before, {.context = 40, .max_angle = 0.5});
  model.bias = patch.tensors.at(0).values;
  const LayerStatistics after = statistics_of(model, 20, 0.5).layers.at(0);
  const double offset = (after.key_sum[0] / 20).squaredNorm();
  const double spread = after.key_outer[0].trace() / 20 - offset;
  EXPECT_NEAR(patch.heads.at(0).ratio_left, std::sqrt(offset / spread), 1e-9);
}

TEST(KeyBias, SaysWhereNothingCanBeDone) {
  Biased model;
  const Statistics calm = statistics_of(model, 20, 100);
  EXPECT_TRUE(take_key_biases(model, calm, {.context = 40}).heads.empty());
  const Statistics statistics = statistics_of(model, 20, 0.5);
  const KeyBiasPatch none = take_key_biases(model, statistics, {.context = 1'000'000});
  EXPECT_TRUE(none.tensors.empty());
  EXPECT_NE(to_text(none).find("slowest RoPE plane turns by 1e+03 rad"), std::string::npos)
      << to_text(none);
}

TEST(KeyBias, RefusesWhatItCannotBeFor) {
  Biased model;
  Statistics statistics = statistics_of(model, 20, 0.5);
  statistics.patch_sha256 = "1";
  EXPECT_THROW_WITH(take_key_biases(model, statistics, {.context = 40}), InputError,
                    "recorded with patched weights");
  statistics.model_fingerprint = "xxh3:2";
  EXPECT_THROW_WITH(take_key_biases(model, statistics, {.context = 40}), InputError,
                    "of another model");
  model.config_.qkv_bias = false;
  EXPECT_THROW_WITH(take_key_biases(model, statistics, {.context = 40}), InputError,
                    "has no key biases");
}

}  // namespace
}  // namespace oscar
