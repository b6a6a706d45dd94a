#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "oscar/core/error.h"
#include "oscar/core/float16.h"
#include "run_codec.h"
#include "support.h"
#include "targets.h"

namespace oscar::test {
namespace {

struct CodecCase {
  int dim, group;
  ClipRule rule;
  double ratio;
  ScaleType scale_type;

  CodecSettings settings() const { return {dim, group, ratio, rule, scale_type}; }
};

void PrintTo(const CodecCase& c, std::ostream* out) {
  *out << "dim " << c.dim << ", group " << c.group << ", " << name_of(c.rule) << " " << c.ratio
       << ", " << name_of(c.scale_type);
}

std::vector<CodecCase> codec_cases() {
  std::vector<CodecCase> cases;
  for (const int dim : {64, 80, 96, 128, 192, 256, 512}) {
    for (const int group : {dim, dim / 2, 16}) {
      cases.push_back({dim, group, ClipRule::exact, 0, ScaleType::fp32});
      cases.push_back({dim, group, ClipRule::exact, 0.96, ScaleType::bf16});
      cases.push_back({dim, group, ClipRule::bisect, 0.92, ScaleType::fp16});
      cases.push_back({dim, group, ClipRule::bisect, 0.96, ScaleType::fp32});
    }
  }
  for (const int dim : {4, 8, 12, 68}) {  // tiny models, and dims that fill no vector
    cases.push_back({dim, dim, ClipRule::exact, 0.96, ScaleType::fp32});
  }
  return cases;
}

/// Gaussian, heavy-tailed, constant, two-valued, tiny and huge rows, with zeros of both signs.
std::vector<float> mixed_rows(int rows, int dim, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values = random_rows(static_cast<std::size_t>(rows) * dim, random);
  for (int r = 0; r < rows; ++r) {
    float* row = values.data() + static_cast<std::ptrdiff_t>(r) * dim;
    for (int i = 0; i < dim; ++i) {
      switch (r % 8) {
        case 1:
          row[i] = row[i] * row[i] * row[i];
          break;
        case 2:
          row[i] = 0.75f;
          break;
        case 3:
          row[i] = row[i] < 0 ? -1.0f : 3.0f;
          break;
        case 4:
          row[i] *= 1e-39f;
          break;
        case 5:
          row[i] = row[i] * 1e4f + 3e4f;
          break;
        case 6:
          row[i] = row[i] < 0 ? -0.0f : 0.0f;
          break;
        case 7:
          row[i] = std::fabs(row[i]) < 1 ? -0.0f : row[i];
          break;
        default:
          break;
      }
      row[i] = round_to_bfloat16(row[i]);
    }
  }
  return values;
}

class Codec : public testing::TestWithParam<CodecCase> {
 protected:
  /// Codes, thresholds, scales and decoded values against the plain reference.
  void expect_reference(const Device& device) {
    const CodecSettings settings = GetParam().settings();
    const int rows = 66, heads = 3;
    const std::vector<float> values = mixed_rows(rows, settings.dim, 11);
    const Encoded encoded = run_encode(device, settings, values, heads);
    const std::vector<float> decoded = run_decode(device, settings, encoded, heads);
    ASSERT_EQ(run_encode(device, settings, to_bfloat16(values), heads), encoded);
    const int quarter = settings.dim / 4;
    for (int r = 0; r < rows; ++r) {
      SCOPED_TRACE("row " + std::to_string(r));
      const float* row = values.data() + static_cast<std::ptrdiff_t>(r) * settings.dim;
      const ReferenceRow expected = encode_reference(settings, row);
      ASSERT_EQ(encoded.thresholds[r], expected.threshold);
      ASSERT_TRUE(std::ranges::equal(
          std::span(encoded.codes).subspan(static_cast<std::size_t>(r) * quarter, quarter),
          expected.packed()));
      for (int i = 0; i < settings.dim; ++i) {
        const float s = stored(settings.scale_type, expected.scales[i / settings.group]);
        const float z = stored(settings.scale_type, expected.zeros[i / settings.group]);
        const float value = (static_cast<float>(expected.codes[i]) - z) * s;
        ASSERT_EQ(decoded[static_cast<std::size_t>(r) * settings.dim + i], value)
            << "channel " << i;
      }
    }
  }
};

TEST_P(Codec, CpuEqualsReference) {
  for (const std::int64_t target : cpu_targets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const WithTarget limit(target);
    expect_reference(kCpu);
  }
}

TEST_P(Codec, CudaEqualsReference) {
  OSCAR_NEEDS_CUDA();
  expect_reference(kCuda);
}

/// Any bits at all: no code outside 0 ... 3 can exist, every number written is finite, and CUDA
/// agrees.
TEST_P(Codec, DefinesEveryInput) {
  const CodecSettings settings = GetParam().settings();
  std::mt19937 random(5);
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(64) * settings.dim);
  for (std::uint16_t& value : bits) {
    value = static_cast<std::uint16_t>(random());
    if (random() % 4 == 0) value |= 0x7f80;  // NaN or infinity
  }
  std::fill_n(bits.begin(), settings.dim, 0x7fc0);                 // all NaN
  std::fill_n(bits.begin() + settings.dim, settings.dim, 0x7f80);  // all +inf
  std::fill_n(bits.begin() + 2 * settings.dim, settings.dim, 0xff80);
  const Encoded encoded = run_encode(kCpu, settings, bits, 1);
  for (const float value : run_decode(kCpu, settings, encoded, 1))
    ASSERT_TRUE(std::isfinite(value));
  for (const std::int64_t target : cpu_targets()) {
    const WithTarget limit(target);
    EXPECT_EQ(run_encode(kCpu, settings, bits, 1), encoded) << hwy::TargetName(target);
  }
  if (cuda_device_count() > 0) {
    EXPECT_EQ(run_encode(kCuda, settings, bits, 1), encoded);
    EXPECT_EQ(run_decode(kCuda, settings, encoded, 1), run_decode(kCpu, settings, encoded, 1));
  }
}

TEST_P(Codec, CodesAreMonotoneAndErrorIsBounded) {
  CodecSettings settings = GetParam().settings();
  settings.clip_ratio = 0;
  settings.scale_type = ScaleType::fp32;
  std::mt19937 random(9);
  std::vector<float> values = random_rows(static_cast<std::size_t>(16) * settings.dim, random);
  for (float& value : values) value = round_to_bfloat16(value);
  const std::vector<float> decoded =
      run_decode(kCpu, settings, run_encode(kCpu, settings, values, 1), 1);
  for (std::size_t begin = 0; begin < values.size(); begin += settings.group) {
    std::vector<std::pair<float, float>> pairs;
    for (int i = 0; i < settings.group; ++i)
      pairs.emplace_back(values[begin + i], decoded[begin + i]);
    std::sort(pairs.begin(), pairs.end());
    const float step = (pairs.back().first - pairs.front().first) / 3;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      EXPECT_LE(std::fabs(pairs[i].first - pairs[i].second), step * 0.5001f);
      EXPECT_GE(pairs[i].second, pairs[i == 0 ? 0 : i - 1].second);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Int2, Codec, testing::ValuesIn(codec_cases()));

TEST(CodecRows, Fp32RowsAreRoundedFirst) {
  std::mt19937 random(3);
  const std::vector<float> values = random_rows(std::size_t{128} * 32, random);
  EXPECT_EQ(run_encode(kCpu, CodecSettings{}, values, 2),
            run_encode(kCpu, CodecSettings{}, to_bfloat16(values), 2));
}

TEST(CodecRows, RoundTripOfDecodedRowsKeepsTheCodes) {
  std::mt19937 random(4);
  const CodecSettings settings;
  const Encoded first = run_encode(kCpu, settings, random_rows(std::size_t{128} * 64, random), 1);
  const Encoded second = run_encode(kCpu, settings, run_decode(kCpu, settings, first, 1), 1);
  EXPECT_EQ(first.codes, second.codes);
}

/// [heads, tokens, dim] memory, and codes between guard bytes that must survive.
void expect_strides(const Device& device) {
  const CodecSettings settings{64, 64, 0.96, ClipRule::exact, ScaleType::bf16};
  const int tokens = 19, heads = 3, dim = settings.dim;
  std::mt19937 random(8);
  const std::vector<float> values = random_rows(std::size_t{1} * tokens * heads * dim, random);
  std::vector<float> transposed(values.size());
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < heads; ++h) {
      std::copy_n(values.begin() + (t * heads + h) * dim, dim,
                  transposed.begin() + (h * tokens + t) * dim);
    }
  }
  const int code_stride = dim / 4 + 5, scale_stride = 2 + 3;
  DeviceArray<float> input(device, transposed);
  DeviceArray<std::uint8_t> codes(device, std::size_t{1} * tokens * heads * code_stride);
  DeviceArray<std::uint16_t> scales(device, std::size_t{1} * tokens * heads * scale_stride);
  Int2Codec(settings).encode(
      {input.data(), ElementType::fp32, tokens, heads, dim, dim, tokens * dim},
      {codes.data(), scales.data(), tokens, heads, heads * code_stride, code_stride,
       heads * scale_stride, scale_stride},
      {device, nullptr});
  const Encoded expected = run_encode(kCpu, settings, values, heads);
  const auto codes_out = codes.values();
  const auto scales_out = scales.values();
  for (int r = 0; r < tokens * heads; ++r) {
    for (int i = 0; i < code_stride; ++i) {
      ASSERT_EQ(codes_out[r * code_stride + i],
                i < dim / 4 ? expected.codes[r * (dim / 4) + i] : 0xff);
    }
    for (int i = 2; i < scale_stride; ++i) ASSERT_EQ(scales_out[r * scale_stride + i], 0xffff);
    ASSERT_EQ(std::memcmp(&scales_out[r * scale_stride], &expected.scales_zeros[r * 4], 4), 0);
  }
}

TEST(CodecRows, CpuFollowsStrides) {
  expect_strides(kCpu);
}

TEST(CodecRows, CudaFollowsStrides) {
  OSCAR_NEEDS_CUDA();
  expect_strides(kCuda);
}

TEST(CodecRows, RefusesShapesThatDisagree) {
  std::vector<float> rows(1024);
  std::vector<std::uint8_t> codes(256);
  std::vector<float> scales(16);
  const CodecSettings settings;
  const Int2Codec codec(settings);
  const auto coded = CodedRows::packed(codes.data(), scales.data(), 4, 2, settings);
  EXPECT_THROW_WITH(
      codec.encode(ConstRows::packed(rows.data(), ElementType::fp32, 4, 2, 64), coded), InputError,
      "expected [4, 2, 128]");
  EXPECT_THROW_WITH(
      codec.encode(ConstRows::packed(rows.data(), ElementType::fp32, 8, 1, 128), coded), InputError,
      "expected [8, 1]");
  EXPECT_THROW_WITH(codec.encode(ConstRows::packed(nullptr, ElementType::fp32, 4, 2, 128), coded),
                    InputError, "no data");
  EXPECT_THROW_WITH(codec.decode(CodedRows::packed(codes.data(), nullptr, 4, 2, settings),
                                 MutableRows::packed(rows.data(), ElementType::fp32, 4, 2, 128)),
                    InputError, "no scales_zeros");
  codec.encode(ConstRows::packed(nullptr, ElementType::fp32, 0, 2, 128),
               CodedRows::packed(nullptr, nullptr, 0, 2, settings));  // nothing to do is no error
}

TEST(CodecRows, WithoutCudaSaysSo) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is a CUDA device";
  std::vector<float> rows(128);
  std::vector<std::uint8_t> codes(32);
  std::vector<float> scales(2);
  const CodecSettings settings;
  EXPECT_THROW(
      Int2Codec(settings).encode(ConstRows::packed(rows.data(), ElementType::fp32, 1, 1, 128),
                                 CodedRows::packed(codes.data(), scales.data(), 1, 1, settings),
                                 {kCuda, nullptr}),
      Error);
}

}  // namespace
}  // namespace oscar::test
