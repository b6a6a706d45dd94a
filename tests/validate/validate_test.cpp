#include <ATen/ATen.h>

#include <cmath>

#include "oscar/core/error.h"
#include "support.h"
#include "validate/candidate.h"
#include "validate/divergence.h"
#include "validate/quantised_attention.h"
#include "validate/verdict.h"

namespace oscar {
namespace {

TEST(Divergence, KnownAnswer) {
  const at::Tensor reference = at::log(at::tensor({0.5f, 0.5f, 0.9f, 0.1f}).view({2, 2}));
  const at::Tensor candidate = at::log(at::tensor({0.25f, 0.75f, 0.9f, 0.1f}).view({2, 2}));
  Divergence divergence;
  divergence.add(reference, candidate, at::tensor({0, 0}, at::kLong));
  const PropagatedError result = divergence.result();
  const double first = 0.5 * std::log(2.0) + 0.5 * std::log(0.5 / 0.75);
  EXPECT_NEAR(result.kld_mean, first / 2, 1e-6);
  EXPECT_NEAR(result.kld_percentiles.at("max"), first, 1e-6);
  EXPECT_NEAR(result.perplexity, std::exp(-(std::log(0.25) + std::log(0.9)) / 2), 1e-5);
}

TEST(Divergence, GainsArePairedByPosition) {
  PropagatedError small, large;
  small.kld = {1, 2, 3, 4};
  large.kld = {2, 2, 5, 5};  // gains 1, 0, 2, 1
  const PairedGain gain = paired_gain(small, large);
  EXPECT_DOUBLE_EQ(gain.mean, 1);
  EXPECT_DOUBLE_EQ(gain.standard_error, std::sqrt(2.0 / 3 / 4));
  EXPECT_TRUE(gain.is_clear());
  EXPECT_FALSE(paired_gain(large, small).is_clear());
  small.kld = {2, 1, 5, 4};  // gains 0, 1, 0, 1: twice the standard error is 0.58
  EXPECT_FALSE(paired_gain(small, large).is_clear());
  small.kld.pop_back();
  EXPECT_THROW_WITH(paired_gain(small, large), Error, "not the same text");
}

TEST(Divergence, PercentilesAsNumpy) {
  const std::vector<double> sorted = {1, 2, 3, 4, 10};
  EXPECT_DOUBLE_EQ(percentile(sorted, 50), 3);
  EXPECT_DOUBLE_EQ(percentile(sorted, 90), 7.6);
  EXPECT_DOUBLE_EQ(percentile(sorted, 0), 1);
  EXPECT_DOUBLE_EQ(percentile({5}, 99.9), 5);
}

ModelConfig tiny_config() {
  ModelConfig config;
  config.layers = 1;
  config.q_heads = 4;
  config.kv_heads = 2;
  config.head_dim = config.value_dim = 64;
  return config;
}

AttentionEvent random_event(std::int64_t tokens, at::ScalarType type) {
  const at::Tensor seed = at::arange(tokens * 4 * 64, at::kFloat);
  const auto noise = [&](std::int64_t heads, float phase) {
    return at::sin(seed.slice(0, 0, tokens * heads * 64) * (1.7f + phase))
        .mul(2)
        .view({tokens, heads, 64})
        .to(type);
  };
  AttentionEvent event;
  event.q = noise(4, 0.1f);
  event.k = noise(2, 0.4f);
  event.v = noise(2, 0.7f);
  event.scale = 0.125;
  return event;
}

at::Tensor exact_output(const AttentionEvent& event) {
  const auto heads_first = [](const at::Tensor& x) {
    return x.to(at::kFloat).transpose(0, 1).unsqueeze(0);
  };
  return at::scaled_dot_product_attention(
             heads_first(event.q), heads_first(event.k.repeat_interleave(2, 1)),
             heads_first(event.v.repeat_interleave(2, 1)), std::nullopt, 0.0, true, event.scale)
      .squeeze(0)
      .transpose(0, 1);
}

struct PrecisionCase {
  Precision precision;
  double tolerance;
  friend std::ostream& operator<<(std::ostream& out, const PrecisionCase& c) {
    return out << name_of(c.precision);
  }
};
class Quantised : public testing::TestWithParam<PrecisionCase> {};

/// Without quantisation only rounding is left; with it there is an error, and the sums say so.
TEST_P(Quantised, UnquantisedIsExactAttention) {
  const auto [precision, tolerance] = GetParam();
  const RotationPair pair = baseline_pair("hadamard", tiny_config());
  const AttentionEvent event =
      random_event(100, precision == Precision::bf16 ? at::kBFloat16 : at::kFloat);
  const at::Tensor expected = exact_output(event);
  QuantisedAttention unquantised(pair, {}, precision, {}, false);
  const at::Tensor found = unquantised.attend(event, 0).output.to(at::kFloat);
  EXPECT_LE((found - expected).norm().item().toDouble(),
            tolerance * expected.norm().item().toDouble());

  ServedSettings small;
  small.sink = 8;
  small.recent = 16;
  QuantisedAttention quantised(pair, small, precision, {});
  const auto result = quantised.attend(event, 50);
  EXPECT_GT((result.output.to(at::kFloat) - expected).slice(0, 50).norm().item().toDouble(), 0.01);
  EXPECT_GT(result.logit_error_sums.min().item().toDouble(), 0);
  EXPECT_EQ(quantised.coded_pairs(100, 98), 2 * (100 - 8 - 16) - 1);
}

INSTANTIATE_TEST_SUITE_P(Validate, Quantised,
                         testing::Values(PrecisionCase{Precision::fp32, 1e-5},
                                         PrecisionCase{Precision::bf16, 1e-2}));

/// Centred keys and transforms that are not orthogonal change no attention (format v3).
TEST(Transforms, LeaveUnquantisedAttentionAsItIs) {
  RotationPair pair = baseline_pair("hadamard", tiny_config());
  for (RotationSet* set : {&pair.key, &pair.value}) {
    for (auto& [id, layer] : set->layers) {
      const VectorF stretch = VectorF::LinSpaced(64, 0.25f, 2.0f);
      const MatrixF turn = layer.rotation[0];
      layer.rotation = {stretch.asDiagonal() * turn};
      layer.read = {stretch.cwiseInverse().asDiagonal() * turn};
    }
  }
  for (auto& [id, layer] : pair.key.layers) {
    layer.mean = {VectorF::LinSpaced(64, -3, 3), VectorF::LinSpaced(64, 5, -1)};
  }
  const AttentionEvent event = random_event(100, at::kFloat);
  const at::Tensor expected = exact_output(event);
  // R is rounded to bf16 as engines do, so only an exact tier that is not rotated is exact.
  QuantisedAttention exact(pair, {}, Precision::fp32, {}, false);
  EXPECT_LE((exact.attend(event, 0).output - expected).abs().max().item().toDouble(),
            1e-5 * expected.abs().max().item().toDouble());
  const AttentionEvent served = random_event(100, at::kBFloat16);
  const at::Tensor served_expected = exact_output(served);
  QuantisedAttention rotated(pair, {}, Precision::bf16, {}, false);
  EXPECT_LE(
      (rotated.attend(served, 0).output.to(at::kFloat) - served_expected).norm().item().toDouble(),
      3e-2 * served_expected.norm().item().toDouble());
}

CandidateReport candidate(const char* name, double kld, double perplexity, bool baseline = false) {
  CandidateReport c;
  c.name = name;
  c.baseline = baseline;
  c.propagated.kld_mean = kld;
  c.propagated.perplexity = perplexity;
  c.propagated.kld_percentiles = {{"50", 0}, {"90", 0},   {"95", 0},
                                  {"99", 0}, {"99.9", 0}, {"max", 0}};
  return c;
}

TEST(Verdict, JudgesCandidatesNotBaselines) {
  ValidationReport report;
  report.perplexity_reference = 10;
  report.candidates = {candidate("mine", 0.1, 11), candidate("identity", 9, 900, true)};
  judge(report);
  EXPECT_TRUE(report.passed);
  EXPECT_NE(report.verdict.find("mine costs +10.00 % perplexity"), std::string::npos)
      << report.verdict;
  report.max_kld = 0.05;
  judge(report);
  EXPECT_FALSE(report.passed);
  EXPECT_NE(report.verdict.find("FAIL: mine"), std::string::npos);
  report.max_kld = 0.2;
  report.max_perplexity_increase = 9;
  judge(report);
  EXPECT_FALSE(report.passed);
  report.max_perplexity_increase = 11;
  judge(report);
  EXPECT_TRUE(report.passed);
}

TEST(Verdict, AModelThatIsLostFails) {
  ValidationReport report;
  report.perplexity_reference = 10;
  report.candidates = {candidate("mine", std::nan(""), std::nan(""))};
  report.max_kld = 1;
  judge(report);
  EXPECT_FALSE(report.passed);
}

TEST(Report, JsonHasTheContractsFields) {
  ValidationReport report;
  report.perplexity_reference = 10;
  report.sequence_length = 1024;
  report.candidates = {candidate("mine", 0.1, 11)};
  report.candidates[0].layers = {{0, {0.1, 0.2}, {{0.1, 0.2}}}};
  const OrderedJson json = to_json(report);
  EXPECT_EQ(json.at("schema"), "oscar-validation");
  EXPECT_EQ(json.at("first_scored_position"), 512);
  EXPECT_EQ(json.at("candidates").at("mine").at("layers")[0].at("heads")[0].at("logit_rmse"), 0.2);
  EXPECT_EQ(summary_json(report, "mine").at("ppl"), 11);
  EXPECT_TRUE(summary_json(report, "other").is_null());
  EXPECT_NE(to_text(report).find("mine"), std::string::npos);
}

TEST(Candidates, UnknownBaselineIsRefused) {
  EXPECT_THROW_WITH(baseline_pair("magic", tiny_config()), InputError,
                    "use identity, hadamard or none");
}

TEST(Settings, WindowsAreMultiplesOfEight) {
  SettingOverrides overrides;
  overrides.sink = 60;
  EXPECT_THROW_WITH(overrides.apply({}), InputError, "multiples of 8");
}

}  // namespace
}  // namespace oscar
