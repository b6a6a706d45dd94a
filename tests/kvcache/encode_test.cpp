#include <algorithm>
#include <cmath>
#include <cstring>

#include "kvcache/arithmetic.h"
#include "oscar/core/error.h"
#include "oscar/core/float16.h"
#include "run_codec.h"
#include "support.h"
#include "targets.h"

namespace oscar::test {
namespace {

/// code_boundary against code_of on every bf16 near it, for ranges of all sizes and places.
TEST(CodeBoundary, SplitsTheCodes) {
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 20000; ++trial) {
    const float size = std::ldexp(1.0f, static_cast<int>(random() % 240) - 120);
    float low = round_to_bfloat16(normal(random) * size);
    float high = round_to_bfloat16(normal(random) * size);
    if (trial % 4 == 0) high = -low;
    if (trial % 16 == 1) high = low;
    if (trial % 16 == 2) high = low * 1.0078125f;
    if (low > high) std::swap(low, high);
    const arithmetic::ScaleZero pair = arithmetic::scale_zero(low, high);
    for (int level = 1; level <= 3; ++level) {
      const float boundary = bfloat16_to_float(arithmetic::code_boundary(level, pair, low, high));
      for (int probe = 0; probe < 16; ++probe) {
        float value = round_to_bfloat16(low + (high - low) * static_cast<float>(probe) / 15);
        if (probe < 6 && std::isfinite(boundary)) {  // the values next to the boundary
          auto bits = static_cast<std::uint16_t>(float_to_bfloat16(boundary) + probe - 3);
          value = bfloat16_to_float(bits);
        }
        if (!(value >= low && value <= high)) continue;
        ASSERT_EQ(value >= boundary, arithmetic::code_of(value, pair) >= level)
            << "range " << low << " to " << high << ", level " << level << ", value " << value;
      }
    }
  }
}

std::vector<std::uint16_t> odd_rows(int rows, int dim, std::mt19937& random) {
  std::vector<std::uint16_t> bits =
      to_bfloat16(random_rows(static_cast<std::size_t>(rows) * dim, random));
  for (int r = 0; r < rows; r += 7) {
    for (int i = 0; i < dim; ++i) {
      std::uint16_t& value = bits[static_cast<std::size_t>(r) * dim + i];
      if (r % 2 == 0) value = static_cast<std::uint16_t>(random());  // any bits at all
      if (r % 3 == 0) value &= 0xff7f;                               // few different values
      if (r % 5 == 0) value &= 0x80ff;                               // denormal
    }
  }
  return bits;
}

/// A million rows over the head dimensions: CUDA's fast kernels against the CPU, bit for bit.
TEST(EncodeManyRows, CudaEqualsCpu) {
  OSCAR_NEEDS_CUDA();
  std::mt19937 random(23);
  for (const int dim : {64, 80, 96, 128, 192, 256, 512}) {
    const std::vector<std::uint16_t> bits = odd_rows(24000, dim, random);
    for (const int group : {dim, dim / 2, dim / 4}) {
      for (const double ratio : {0.0, 0.92, 0.96, 0.5, 1.0}) {
        for (const ClipRule rule : {ClipRule::exact, ClipRule::bisect}) {
          const CodecSettings settings{dim, group, ratio, rule, ScaleType::fp32};
          ASSERT_EQ(run_encode(kCuda, settings, bits, 8), run_encode(kCpu, settings, bits, 8))
              << "dim " << dim << ", group " << group << ", ratio " << ratio << ", "
              << name_of(rule);
        }
      }
    }
  }
}

class EncodeJobs : public testing::Test {
 protected:
  /// Keys and values of several layers, different dims and ratios, in one call.
  static void expect_one_by_one(const Device& device) {
    std::mt19937 random(29);
    std::vector<Encoded> expected;
    std::vector<DeviceArray<std::uint16_t>> inputs;
    std::vector<DeviceArray<std::uint8_t>> codes, scales;
    std::vector<EncodeJob> jobs;
    for (int i = 0; i < 60; ++i) {
      const int dim = i % 2 == 0 ? 128 : 64;
      const CodecSettings settings{dim, dim, i % 3 == 0 ? 0.96 : 0.92,
                                   i % 5 == 0 ? ClipRule::bisect : ClipRule::exact};
      const std::vector<std::uint16_t> bits = odd_rows(30 + i, dim, random);
      expected.push_back(run_encode(kCpu, settings, bits, 1));
      inputs.emplace_back(device, bits);
      codes.emplace_back(device, expected.back().codes.size());
      scales.emplace_back(device, expected.back().scales_zeros.size());
      jobs.push_back(
          {settings, ConstRows::packed(inputs.back().data(), ElementType::bf16, 30 + i, 1, dim),
           CodedRows::packed(codes.back().data(), scales.back().data(), 30 + i, 1, settings)});
    }
    encode(jobs, {device, nullptr});
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      ASSERT_EQ(codes[i].values(), expected[i].codes) << "job " << i;
      ASSERT_EQ(scales[i].values(), expected[i].scales_zeros) << "job " << i;
    }
  }
};

TEST_F(EncodeJobs, CpuEqualsOneByOne) {
  expect_one_by_one(kCpu);
}

TEST_F(EncodeJobs, CudaEqualsOneByOne) {
  OSCAR_NEEDS_CUDA();
  expect_one_by_one(kCuda);
}

struct RotateEncodeCase {
  int dim, group, heads, matrices;
  bool transposed;
  double ratio;
  ClipRule rule;
};

/// The rotated rows within a bf16 step of the CPU's, the codes those of these very rows.
void expect_rotated(const Device& device, const RotateEncodeCase& c) {
  std::mt19937 random(59);
  const std::int64_t tokens = 203;
  const CodecSettings settings{c.dim, c.group, c.ratio, c.rule};
  const std::size_t count = static_cast<std::size_t>(tokens) * c.heads * c.dim;
  const std::vector<std::uint16_t> bits = to_bfloat16(random_rows(count, random));
  std::vector<float> matrix = random_rows(std::size_t{1} * c.matrices * c.dim * c.dim, random);
  for (float& entry : matrix) entry /= std::sqrt(static_cast<float>(c.dim));
  DeviceArray<std::uint16_t> input(device, bits), rotated(device, count);
  DeviceArray<float> matrices(device, matrix), thresholds(device, count / c.dim);
  DeviceArray<std::uint8_t> codes(device, count / 4), scales(device, count / c.group * 8);
  EncodeJob job{
      settings, ConstRows::packed(input.data(), ElementType::bf16, tokens, c.heads, c.dim),
      CodedRows::packed(codes.data(), scales.data(), tokens, c.heads, settings), thresholds.data()};
  job.rotation = {matrices.data(), c.matrices, c.dim, c.transposed};
  job.rotated = MutableRows::packed(rotated.data(), ElementType::bf16, tokens, c.heads, c.dim);
  encode({&job, 1}, {device, nullptr});
  const std::vector<std::uint16_t> rows = rotated.values();
  const Encoded own{codes.values(), scales.values(), thresholds.values()};
  EXPECT_EQ(own, run_encode(kCpu, settings, rows, c.heads));
  std::vector<float> expected(count);
  rotate_rows(ConstRows::packed(bits.data(), ElementType::bf16, tokens, c.heads, c.dim),
              {matrix.data(), c.matrices, c.dim, c.transposed},
              MutableRows::packed(expected.data(), ElementType::fp32, tokens, c.heads, c.dim));
  for (std::size_t i = 0; i < count; ++i) {
    // Sums near zero differ by the rounding of their terms.
    const float allowed = std::fabs(expected[i]) * 0x1p-7f + 1e-6f;
    ASSERT_NEAR(bfloat16_to_float(rows[i]), expected[i], allowed) << "element " << i;
  }
  // The same without the rotated rows.
  job.rotated = {};
  encode({&job, 1}, {device, nullptr});
  EXPECT_EQ((Encoded{codes.values(), scales.values(), thresholds.values()}), own);
}

class RotateEncode : public testing::TestWithParam<RotateEncodeCase> {};

TEST_P(RotateEncode, CpuEqualsTwoSteps) {
  expect_rotated(kCpu, GetParam());
}

TEST_P(RotateEncode, CudaEqualsTwoSteps) {
  OSCAR_NEEDS_CUDA();
  expect_rotated(kCuda, GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Rows, RotateEncode,
    testing::Values(RotateEncodeCase{128, 128, 1, 1, false, 0, ClipRule::exact},
                    RotateEncodeCase{128, 128, 8, 1, false, 0.96, ClipRule::exact},
                    RotateEncodeCase{128, 128, 8, 8, true, 0.92, ClipRule::bisect},
                    RotateEncodeCase{128, 64, 6, 2, false, 0.96, ClipRule::exact},
                    RotateEncodeCase{128, 32, 3, 3, true, 0, ClipRule::exact},
                    RotateEncodeCase{64, 64, 4, 2, true, 0.96, ClipRule::exact}));

/// Contract, section 2, step 5, against float64.
TEST(LloydMax, FollowsTheContract) {
  std::mt19937 random(31);
  CodecSettings settings;
  settings.clip_ratio = 0.96;
  settings.levels = LevelRule::lloyd_max;
  const std::vector<std::uint16_t> bits = to_bfloat16(random_rows(std::size_t{128} * 50, random));
  const Encoded encoded = run_encode(kCpu, settings, bits, 1);
  for (const std::int64_t target : cpu_targets()) {
    const WithTarget limit(target);
    EXPECT_EQ(run_encode(kCpu, settings, bits, 1), encoded) << hwy::TargetName(target);
  }
  for (int r = 0; r < 50; ++r) {
    double mean = 0, variance = 0;
    std::vector<double> row(128);
    for (int i = 0; i < 128; ++i) {
      const double limit = encoded.thresholds[r];
      row[i] = std::clamp(double{bfloat16_to_float(bits[r * 128 + i])}, -limit, limit);
      mean += row[i] / 128;
    }
    for (const double value : row) variance += (value - mean) * (value - mean) / 128;
    const double deviation = std::sqrt(variance + 1e-8);
    float pair[2];
    std::memcpy(pair, encoded.scales_zeros.data() + 8 * r, 8);
    const double scale = 3.01912 / 3 * 1.16 * deviation;
    EXPECT_NEAR(pair[0], scale, 1e-6 * scale);
    EXPECT_NEAR(pair[1], 1.5 - mean / scale, 1e-5);
    for (int i = 0; i < 128; ++i) {
      const double outer = 0.98107 * deviation, centred = row[i] - mean;
      if (std::fabs(std::fabs(centred) - outer) < 1e-6 || std::fabs(centred) < 1e-6) continue;
      const int code = (centred > -outer) + (centred > 0) + (centred > outer);
      ASSERT_EQ(encoded.codes[r * 32 + i % 32] >> (2 * (i / 32)) & 3, code);
    }
  }
}

TEST(LloydMax, CudaEqualsCpu) {
  OSCAR_NEEDS_CUDA();
  std::mt19937 random(37);
  for (const int dim : {64, 80, 128, 512}) {
    const std::vector<std::uint16_t> bits = odd_rows(2000, dim, random);
    CodecSettings settings{dim, dim, 0.96};
    settings.levels = LevelRule::lloyd_max;
    EXPECT_EQ(run_encode(kCuda, settings, bits, 2), run_encode(kCpu, settings, bits, 2));
  }
}

TEST(LloydMax, NeedsOneGroup) {
  CodecSettings settings;
  settings.group = 64;
  settings.levels = LevelRule::lloyd_max;
  EXPECT_THROW_WITH(settings.check(), InputError, "one group");
}

}  // namespace
}  // namespace oscar::test
