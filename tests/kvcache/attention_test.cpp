#include "oscar/kvcache/attention.h"

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "oscar/core/error.h"
#include "oscar/core/float16.h"
#include "run_codec.h"
#include "support.h"
#include "targets.h"

namespace oscar::test {
namespace {

enum class Precision { fp32, bf16 };

struct AttentionCase {
  std::int64_t tokens;
  int query_heads, kv_heads, dim, value_dim, group;
  ScaleType scale_type;
  Precision precision;
  MixedWindow window;
  std::int64_t first_query = 0;
  std::int64_t first_output = 0;
  bool one_space = false;  ///< one query and one output for both tiers, as served
};

void PrintTo(const AttentionCase& c, std::ostream* out) {
  *out << c.tokens << " tokens, heads " << c.query_heads << "/" << c.kv_heads << ", dims " << c.dim
       << "/" << c.value_dim << ", group " << c.group << ", " << name_of(c.scale_type)
       << (c.precision == Precision::fp32 ? ", fp32" : ", bf16") << ", sink " << c.window.sink
       << ", recent " << c.window.recent << ", sliding " << c.window.sliding << ", errors from "
       << c.first_query << ", outputs from " << c.first_output
       << (c.one_space ? ", one space" : "");
}

std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> cases;
  for (const std::int64_t tokens : {1, 63, 64, 65, 319, 320, 321, 777}) {
    cases.push_back({tokens, 6, 2, 64, 64, 64, ScaleType::fp32, Precision::fp32, {}, tokens / 2});
    cases.push_back({tokens, 2, 2, 128, 128, 32, ScaleType::bf16, Precision::bf16, {}});
  }
  for (const int dim : {8, 80, 96, 128, 192, 256, 512}) {
    cases.push_back({150, 2, 1, dim, dim, dim, ScaleType::fp32, Precision::fp32, {16, 32, 0}, 40});
  }
  cases.push_back({150, 2, 1, 192, 128, 64, ScaleType::fp16, Precision::bf16, {16, 32, 0}});
  cases.push_back({150, 2, 1, 64, 256, 64, ScaleType::fp16, Precision::fp32, {16, 32, 0}});
  for (const int grouped : {1, 3, 4, 7, 8, 16}) {
    cases.push_back(
        {333, grouped, 1, 64, 64, 64, ScaleType::fp32, Precision::fp32, {8, 64, 0}, 100});
  }
  for (const MixedWindow window :
       {MixedWindow{0, 1, 0}, MixedWindow{0, 0, 0}, MixedWindow{40, 0, 0}, MixedWindow{7, 13, 50},
        MixedWindow{64, 256, 300}, MixedWindow{0, 8, 1}, MixedWindow{1000, 8, 0}}) {
    cases.push_back({400, 2, 1, 64, 64, 64, ScaleType::fp32, Precision::fp32, window, 90});
    cases.push_back({400, 2, 1, 64, 64, 64, ScaleType::fp32, Precision::bf16, window, 390, 350});
  }
  // What tensor cores take.
  for (const int dim : {64, 128}) {
    for (const std::int64_t tokens : {1, 65, 320, 321, 777}) {
      for (const int grouped : {1, 3, 4, 16}) {
        const int kv_heads = grouped == 16 ? 1 : 2;
        AttentionCase c{tokens, kv_heads * grouped, kv_heads,        dim, dim,
                        dim,    ScaleType::fp32,    Precision::bf16, {}};
        c.first_query = tokens / 3;
        c.one_space = true;
        cases.push_back(c);
      }
    }
    for (const MixedWindow window :
         {MixedWindow{0, 1, 0}, MixedWindow{0, 0, 0}, MixedWindow{7, 13, 50},
          MixedWindow{64, 256, 300}, MixedWindow{0, 8, 1}, MixedWindow{1000, 8, 0}}) {
      cases.push_back(
          {400, 2, 1, dim, dim, dim, ScaleType::bf16, Precision::bf16, window, 390, 350, true});
    }
  }
  return cases;
}

/// A random problem in plain memory with its answer, and its run on a device.
class Problem {
 public:
  explicit Problem(const AttentionCase& c)
      : case_(c),
        key_codec_{c.dim, std::min(c.group, c.dim), 0.96, ClipRule::exact, c.scale_type},
        value_codec_{c.value_dim, std::min(c.group, c.value_dim), 0.92, ClipRule::exact,
                     c.scale_type} {
    std::mt19937 random(static_cast<unsigned>(c.tokens + c.dim));
    const auto rows = [&](int heads, int dim) {
      std::vector<float> values =
          random_rows(static_cast<std::size_t>(c.tokens) * heads * dim, random);
      return c.precision == Precision::bf16 ? from_bfloat16(to_bfloat16(values)) : values;
    };
    reference_.tokens = c.tokens;
    reference_.query_heads = c.query_heads;
    reference_.kv_heads = c.kv_heads;
    reference_.dim = c.dim;
    reference_.value_dim = c.value_dim;
    reference_.scale = 1.5f / std::sqrt(static_cast<float>(c.dim));
    reference_.window = c.window;
    reference_.first_query = c.first_query;
    reference_.query_exact = rows(c.query_heads, c.dim);
    // In fp32 the tiers live in different spaces: reversing the channels stands for the rotation.
    reference_.query_coded =
        c.one_space ? reference_.query_exact : reversed(reference_.query_exact, c.dim);
    reference_.key_exact = rows(c.kv_heads, c.dim);
    reference_.value_exact = rows(c.kv_heads, c.value_dim);
    keys_ = run_encode(kCpu, key_codec_,
                       c.one_space ? reference_.key_exact : reversed(reference_.key_exact, c.dim),
                       c.kv_heads);
    values_ = run_encode(kCpu, value_codec_, reference_.value_exact, c.kv_heads);
    reference_.key_coded = run_decode(kCpu, key_codec_, keys_, c.kv_heads);
    reference_.value_coded = run_decode(kCpu, value_codec_, values_, c.kv_heads);
    reference_.compute();
  }

  struct Answer {
    std::vector<float> exact, coded;
    std::vector<double> errors;
    bool operator==(const Answer&) const = default;
  };

  Answer run(const Device& device, bool one_output = false) const {
    return case_.precision == Precision::fp32 ? run_as<float>(device, one_output)
                                              : run_as<std::uint16_t>(device, one_output);
  }

  /// Compares queries from first_output on; earlier rows must be untouched.
  void expect_reference(const Answer& answer, bool one_output = false) const {
    const double tolerance = case_.precision == Precision::fp32 ? 3e-6 : 4e-3;
    const std::size_t skipped =
        static_cast<std::size_t>(case_.first_output) * case_.query_heads * case_.value_dim;
    for (std::size_t i = 0; i < skipped; ++i) ASSERT_TRUE(std::isnan(answer.exact[i]));
    const auto rest = [&](const auto& all) {
      using List = std::decay_t<decltype(all)>;
      return List(all.begin() + static_cast<std::ptrdiff_t>(skipped), all.end());
    };
    const std::vector<double> exact = rest(reference_.output_exact);
    const std::vector<double> coded = rest(reference_.output_coded);
    std::vector<double> both = exact;
    for (std::size_t i = 0; i < both.size(); ++i) both[i] += coded[i];
    if (one_output) {
      EXPECT_LE(relative_error(rest(answer.exact), both), tolerance);
    } else {
      // Each part against the size of the whole: a tier may hold almost nothing.
      EXPECT_LE(part_error(rest(answer.exact), exact, both), tolerance);
      EXPECT_LE(part_error(rest(answer.coded), coded, both), tolerance);
    }
    // Served, both logits are of one query: their difference may be far smaller than they are.
    const double usual = *std::ranges::max_element(reference_.error_sums);
    for (int head = 0; head < case_.query_heads; ++head) {
      const double sum = reference_.error_sums[head];
      const double allowed = 1e-5 * (case_.one_space ? std::sqrt(sum * usual) : sum);
      EXPECT_NEAR(answer.errors[head], sum, allowed + 1e-12);
    }
  }

 private:
  static std::vector<float> reversed(std::vector<float> rows, int dim) {
    for (auto row = rows.begin(); row != rows.end(); row += dim) std::reverse(row, row + dim);
    return rows;
  }

  static double part_error(const std::vector<float>& a, const std::vector<double>& b,
                           const std::vector<double>& whole) {
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < b.size(); ++i) {
      difference += (a[i] - b[i]) * (a[i] - b[i]);
      norm += whole[i] * whole[i];
    }
    return std::sqrt(difference / norm);
  }

  template <typename T>
  Answer run_as(const Device& device, bool one_output) const {
    constexpr ElementType kType = sizeof(T) == 4 ? ElementType::fp32 : ElementType::bf16;
    const auto put = [&](const std::vector<float>& values) {
      if constexpr (sizeof(T) == 4) {
        return DeviceArray<T>(device, values);
      } else {
        return DeviceArray<T>(device, to_bfloat16(values));
      }
    };
    const auto get = [](const DeviceArray<T>& memory) {
      if constexpr (sizeof(T) == 4) {
        return memory.values();
      } else {
        return from_bfloat16(memory.values());
      }
    };
    const AttentionCase& c = case_;
    DeviceArray<T> query_exact = put(reference_.query_exact),
                   query_coded = put(reference_.query_coded);
    DeviceArray<T> key = put(reference_.key_exact), value = put(reference_.value_exact);
    DeviceArray<std::uint8_t> key_codes(device, keys_.codes),
        key_scales(device, keys_.scales_zeros);
    DeviceArray<std::uint8_t> value_codes(device, values_.codes),
        value_scales(device, values_.scales_zeros);
    const std::size_t outputs = reference_.output_exact.size();
    DeviceArray<T> exact(device, outputs), coded(device, outputs);
    DeviceArray<double> errors(device, static_cast<std::size_t>(c.query_heads));
    TeacherForcedAttention problem;
    problem.query_exact =
        ConstRows::packed(query_exact.data(), kType, c.tokens, c.query_heads, c.dim);
    problem.query_coded =
        ConstRows::packed(query_coded.data(), kType, c.tokens, c.query_heads, c.dim);
    if (c.one_space) problem.query_coded = problem.query_exact;
    problem.key_exact = ConstRows::packed(key.data(), kType, c.tokens, c.kv_heads, c.dim);
    problem.value_exact = ConstRows::packed(value.data(), kType, c.tokens, c.kv_heads, c.value_dim);
    problem.key_codec = key_codec_;
    problem.value_codec = value_codec_;
    problem.key_coded =
        CodedRows::packed(key_codes.data(), key_scales.data(), c.tokens, c.kv_heads, key_codec_);
    problem.value_coded = CodedRows::packed(value_codes.data(), value_scales.data(), c.tokens,
                                            c.kv_heads, value_codec_);
    problem.output_exact =
        MutableRows::packed(exact.data(), kType, c.tokens, c.query_heads, c.value_dim);
    problem.output_coded =
        one_output ? problem.output_exact
                   : MutableRows::packed(coded.data(), kType, c.tokens, c.query_heads, c.value_dim);
    problem.scale = reference_.scale;
    problem.window = c.window;
    problem.first_query = c.first_query;
    problem.first_output = c.first_output;
    problem.logit_error_sums = errors.data();
    attend(problem, {device, nullptr});
    return {get(exact), get(coded), errors.values()};
  }

  AttentionCase case_;
  CodecSettings key_codec_, value_codec_;
  ReferenceAttention reference_{};
  Encoded keys_, values_;
};

class Attention : public testing::TestWithParam<AttentionCase> {};

TEST_P(Attention, CpuMatchesReference) {
  const Problem problem(GetParam());
  for (const std::int64_t target : cpu_targets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const WithTarget limit(target);
    problem.expect_reference(problem.run(kCpu));
    problem.expect_reference(problem.run(kCpu, true), true);
  }
}

TEST_P(Attention, CudaMatchesReference) {
  OSCAR_NEEDS_CUDA();
  const Problem problem(GetParam());
  problem.expect_reference(problem.run(kCuda));
  problem.expect_reference(problem.run(kCuda, true), true);
}

INSTANTIATE_TEST_SUITE_P(TeacherForced, Attention, testing::ValuesIn(attention_cases()));

TEST(AttentionBits, AreTheSameWithAnyNumberOfThreads) {
  const Problem problem({500, 6, 2, 64, 64, 64, ScaleType::fp32, Precision::fp32, {}, 100});
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const auto one = problem.run(kCpu);
  omp_set_num_threads(5);
  const auto five = problem.run(kCpu);
  omp_set_num_threads(before);
  EXPECT_EQ(one.errors, five.errors);
  EXPECT_EQ(one.exact, five.exact);
  EXPECT_EQ(one.coded, five.coded);
}

TEST(AttentionBits, AreTheSameOnEveryCudaRun) {
  OSCAR_NEEDS_CUDA();
  const Problem problem({500, 6, 2, 64, 64, 64, ScaleType::fp32, Precision::fp32, {}, 100});
  EXPECT_EQ(problem.run(kCuda), problem.run(kCuda));
}

TEST(MixedWindow, CountsItsPairs) {
  for (const MixedWindow window : {MixedWindow{}, MixedWindow{0, 0, 0}, MixedWindow{7, 13, 50},
                                   MixedWindow{64, 256, 300}, MixedWindow{0, 8, 1}}) {
    for (const std::int64_t first : {0, 1, 200, 399, 400}) {
      std::int64_t pairs = 0;
      for (std::int64_t t = first; t < 400; ++t) {
        for (std::int64_t j = 0; j <= t; ++j) pairs += window.sees(t, j) && !window.is_exact(t, j);
      }
      EXPECT_EQ(window.coded_pairs(400, first), pairs);
    }
  }
}

TEST(AttentionChecks, RefusesShapesThatDisagree) {
  std::vector<float> memory(4096);
  std::vector<std::uint8_t> codes(4096);
  const CodecSettings codec{64, 64, 0, ClipRule::exact, ScaleType::fp32};
  const auto rows = [&](int heads, int dim) {
    return MutableRows::packed(memory.data(), ElementType::fp32, 4, heads, dim);
  };
  TeacherForcedAttention good;
  good.query_exact = good.query_coded = rows(4, 64);
  good.key_exact = good.value_exact = rows(2, 64);
  good.key_codec = good.value_codec = codec;
  good.key_coded = good.value_coded = CodedRows::packed(codes.data(), memory.data(), 4, 2, codec);
  good.output_exact = good.output_coded = rows(4, 64);
  const auto expect_refused = [&](auto change, const char* message) {
    TeacherForcedAttention bad = good;
    change(bad);
    EXPECT_THROW_WITH(attend(bad), InputError, message);
  };
  expect_refused([&](auto& p) { p.query_exact = rows(3, 64); }, "can't be shared out");
  expect_refused([&](auto& p) { p.query_coded = rows(2, 64); }, "query_coded");
  expect_refused([&](auto& p) { p.key_exact.tokens = 3; }, "key_exact");
  expect_refused([&](auto& p) { p.value_exact.dim = 128; }, "value_exact");
  expect_refused([&](auto& p) { p.key_coded.tokens = 5; }, "key_coded");
  expect_refused([&](auto& p) { p.value_coded.codes = nullptr; }, "no codes");
  expect_refused([&](auto& p) { p.output_exact.heads = 2; }, "output_exact");
  expect_refused([&](auto& p) { p.output_coded.token_stride = 512; }, "not their layout");
  expect_refused([&](auto& p) { p.window.recent = -8; }, "recent -8");
  expect_refused([&](auto& p) { p.first_query = -1; }, "first_query -1");
  expect_refused(
      [&](auto& p) {
        static double sums[4];
        p.logit_error_sums = sums;
        p.first_output = 2;
      },
      "need outputs from there on");
}

}  // namespace
}  // namespace oscar::test
