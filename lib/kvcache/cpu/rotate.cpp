#include <algorithm>
#include <cstddef>
#include <vector>

#include "kvcache/backend.h"
#include "kvcache/cpu/targets.h"
#include "kvcache/cpu/workspace.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvcache/cpu/rotate.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file again for each instruction set.
#include "hwy/highway.h"
#include "kvcache/cpu/gemm-inl.h"
#include "kvcache/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscar {
namespace HWY_NAMESPACE {

/// Rounds a row to bf16 values.
void round_row(float* row, int dim) {
  std::uint16_t rounded[kMaxHeadDim];
  narrow(row, dim, rounded);
  widen(rounded, dim, row);
}

/// Rotates tokens begin ... end - 1 of one head. `matrix` is [dim][stride], already rounded to
/// bf16; `scratch` holds (dim + stride) floats a token.
void rotate_block(const ConstRows& input, const float* matrix, std::size_t stride,
                  const MutableRows& output, const RotationRounding& rounding, int head,
                  std::int64_t begin, std::int64_t end, float* scratch) {
  const int count = static_cast<int>(end - begin);
  const int dim = input.dim;
  float* rows = scratch;
  float* product = scratch + static_cast<std::size_t>(count) * dim;
  for (int i = 0; i < count; ++i) load_row(input, begin + i, head, rows + i * dim);
  if (rounding.input && input.type == ElementType::fp32) {
    for (int i = 0; i < count; ++i) round_row(rows + i * dim, dim);
  }
  gemm<false>({rows, dim, 1}, matrix, stride, product, stride, count, stride, dim);
  for (int i = 0; i < count; ++i) {
    if (rounding.output && output.type == ElementType::fp32) round_row(product + i * stride, dim);
    store_row(output, begin + i, head, product + i * stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscar {
HWY_EXPORT(rotate_block);

namespace cpu {
namespace {

constexpr std::int64_t kBlock = 48;  // tokens of one head at a time

/// Every matrix as bf16 values, rows padded with zeros to whole vectors of any width.
std::vector<float> padded_matrices(const Rotations& rotations, std::size_t stride) {
  const auto dim = static_cast<std::size_t>(rotations.dim);
  std::vector<float> padded(rotations.matrices * dim * stride);
  for (int m = 0; m < rotations.matrices; ++m) {
    const float* in = rotations.data + m * dim * dim;
    float* out = padded.data() + m * dim * stride;
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::size_t j = 0; j < dim; ++j) {
        out[i * stride + j] =
            round_to_bfloat16(rotations.transposed ? in[j * dim + i] : in[i * dim + j]);
      }
    }
  }
  return padded;
}

}  // namespace

void rotate_rows(const ConstRows& input, const Rotations& rotations, const MutableRows& output,
                 const RotationRounding& rounding) {
  const auto dim = static_cast<std::size_t>(input.dim);
  const std::size_t stride = (dim + 15) / 16 * 16;
  const std::vector<float> matrices = padded_matrices(rotations, stride);
  const int heads_per_matrix = input.heads / rotations.matrices;
  const std::int64_t blocks = (input.tokens + kBlock - 1) / kBlock;
  const std::int64_t items = blocks * input.heads;
  Workspace workspace(static_cast<std::size_t>(kBlock) * (dim + stride));
#pragma omp parallel for schedule(static)
  for (std::int64_t item = 0; item < items; ++item) {
    const int head = static_cast<int>(item / blocks);
    const std::int64_t begin = item % blocks * kBlock;
    HWY_DYNAMIC_DISPATCH(rotate_block)
    (input, matrices.data() + head / heads_per_matrix * dim * stride, stride, output, rounding,
     head, begin, std::min(begin + kBlock, input.tokens), workspace.mine());
  }
}

}  // namespace cpu
}  // namespace oscar
#endif
