#include "oscar/kvcache/rotate.h"

#include <cmath>

#include "device_memory.h"
#include "oscar/core/error.h"
#include "oscar/core/float16.h"
#include "reference.h"
#include "support.h"
#include "targets.h"

namespace oscar::test {
namespace {

struct RotateCase {
  int dim, heads, matrices;
  std::int64_t tokens;
  bool bf16_input, round_input, round_output, transposed;
};

void PrintTo(const RotateCase& c, std::ostream* out) {
  *out << "dim " << c.dim << ", heads " << c.heads << ", matrices " << c.matrices << ", tokens "
       << c.tokens << (c.bf16_input ? ", bf16" : ", fp32") << (c.round_input ? ", x rounded" : "")
       << (c.round_output ? ", y rounded" : "") << (c.transposed ? ", transposed" : "");
}

std::vector<RotateCase> rotate_cases() {
  std::vector<RotateCase> cases;
  for (const int dim : {8, 64, 80, 96, 128, 192, 256, 512}) {
    cases.push_back({dim, 2, 1, 33, true, true, true, false});
    cases.push_back({dim, 4, 2, 17, false, false, false, false});
    cases.push_back({dim, 3, 3, 65, false, true, true, true});
  }
  cases.push_back({20, 1, 1, 1, false, false, true, false});
  cases.push_back({64, 9, 3, 130, false, false, false, true});
  return cases;
}

/// The bf16 next to a value, away from zero: what "within one bf16 step" allows.
float bfloat16_step(double value) {
  const float rounded = round_to_bfloat16(static_cast<float>(std::fabs(value)));
  return bfloat16_to_float(static_cast<std::uint16_t>(float_to_bfloat16(rounded) + 1)) - rounded;
}

class Rotate : public testing::TestWithParam<RotateCase> {
 protected:
  void expect_reference(const Device& device) {
    const RotateCase& c = GetParam();
    std::mt19937 random(21);
    const std::size_t count = static_cast<std::size_t>(c.tokens) * c.heads * c.dim;
    std::vector<float> input = random_rows(count, random);
    if (c.bf16_input) input = from_bfloat16(to_bfloat16(input));
    std::vector<float> matrices =
        random_rows(static_cast<std::size_t>(c.matrices) * c.dim * c.dim, random);
    for (float& entry : matrices) entry /= std::sqrt(static_cast<float>(c.dim));

    DeviceArray<float> matrix_memory(device, matrices);
    DeviceArray<float> input_memory(device, input);
    DeviceArray<std::uint16_t> input_bits(device, to_bfloat16(input));
    DeviceArray<float> output(device, count);
    rotate_rows(ConstRows::packed(
                    c.bf16_input ? static_cast<void*>(input_bits.data()) : input_memory.data(),
                    c.bf16_input ? ElementType::bf16 : ElementType::fp32, c.tokens, c.heads, c.dim),
                {matrix_memory.data(), c.matrices, c.dim, c.transposed},
                MutableRows::packed(output.data(), ElementType::fp32, c.tokens, c.heads, c.dim),
                {c.round_input, c.round_output}, {device, nullptr});
    const std::vector<float> result = output.values();

    for (std::int64_t row = 0; row < c.tokens * c.heads; ++row) {
      const int matrix = static_cast<int>(row % c.heads) / (c.heads / c.matrices);
      for (int j = 0; j < c.dim; ++j) {
        double sum = 0, size = 0;
        for (int i = 0; i < c.dim; ++i) {
          const float x = input[row * c.dim + i];
          const float r =
              matrices[(static_cast<std::size_t>(matrix) * c.dim + (c.transposed ? j : i)) * c.dim +
                       (c.transposed ? i : j)];
          const double product =
              double{c.round_input ? round_to_bfloat16(x) : x} * double{round_to_bfloat16(r)};
          sum += product;
          size += std::fabs(product);
        }
        const double allowed = c.round_output ? bfloat16_step(sum) + size * 1e-6 : size * 1e-6;
        const float y = result[row * c.dim + j];
        ASSERT_NEAR(y, sum, allowed) << "row " << row << ", channel " << j;
        ASSERT_EQ(y, c.round_output ? round_to_bfloat16(y) : y);
      }
    }
  }
};

TEST_P(Rotate, CpuMatchesReference) {
  for (const std::int64_t target : cpu_targets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const WithTarget limit(target);
    expect_reference(kCpu);
  }
}

TEST_P(Rotate, CudaMatchesReference) {
  OSCAR_NEEDS_CUDA();
  expect_reference(kCuda);
}

INSTANTIATE_TEST_SUITE_P(Rows, Rotate, testing::ValuesIn(rotate_cases()));

TEST(RotateChecks, RefusesShapesThatDisagree) {
  std::vector<float> memory(4096), matrix(64 * 64);
  const auto rows = MutableRows::packed(memory.data(), ElementType::fp32, 4, 3, 64);
  const auto other = MutableRows::packed(memory.data(), ElementType::fp32, 4, 2, 64);
  EXPECT_THROW_WITH(rotate_rows(rows, {matrix.data(), 1, 128}, rows), InputError, "128");
  EXPECT_THROW_WITH(rotate_rows(rows, {matrix.data(), 2, 64}, rows), InputError,
                    "can't be shared out among 3 heads");
  EXPECT_THROW_WITH(rotate_rows(rows, {matrix.data(), 1, 64}, other), InputError, "expected");
  EXPECT_THROW_WITH(rotate_rows(rows, {nullptr, 1, 64}, rows), InputError, "no data");
}

}  // namespace
}  // namespace oscar::test
