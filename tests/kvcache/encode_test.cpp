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
