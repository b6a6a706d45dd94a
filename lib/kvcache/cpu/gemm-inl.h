// A matrix product held in registers, compiled once for each instruction set (no include guard but
// Highway's toggle).
#if defined(OSCAR_KVCACHE_GEMM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_KVCACHE_GEMM_INL_H
#undef OSCAR_KVCACHE_GEMM_INL_H
#else
#define OSCAR_KVCACHE_GEMM_INL_H
#endif

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace oscar {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The left factor: element (row, k) lies at data[row * row_step + k * k_step].
struct Left {
  const float* data;
  std::ptrdiff_t row_step;
  std::ptrdiff_t k_step;
};

/// The rows of accumulators that leave room in the register file for one row of B and a broadcast.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
inline constexpr int kGemmRows = 12;
#else
inline constexpr int kGemmRows = 6;
#endif

/// c[kRows][kVectors vectors] (+)= left · b over `depth`, each element summed in order of k.
template <bool kAdd, int kRows, int kVectors>
HWY_INLINE void gemm_block(const Left& left, const float* HWY_RESTRICT b, std::size_t b_stride,
                           float* HWY_RESTRICT c, std::size_t c_stride, int depth) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const std::size_t lanes = hn::Lanes(d);
  V sum[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      sum[i][j] = kAdd ? hn::LoadU(d, c + i * c_stride + j * lanes) : hn::Zero(d);
    }
  }
  const float* a = left.data;
  for (int k = 0; k < depth; ++k, a += left.k_step, b += b_stride) {
    V right[kVectors];
    for (int j = 0; j < kVectors; ++j) right[j] = hn::LoadU(d, b + j * lanes);
    for (int i = 0; i < kRows; ++i) {
      const V factor = hn::Set(d, a[i * left.row_step]);
      for (int j = 0; j < kVectors; ++j) sum[i][j] = hn::MulAdd(factor, right[j], sum[i][j]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) hn::StoreU(sum[i][j], d, c + i * c_stride + j * lanes);
  }
}

/// One panel of kVectors vectors, all `rows`.
template <bool kAdd, int kVectors>
HWY_INLINE void gemm_panel(Left left, const float* b, std::size_t b_stride, float* c,
                           std::size_t c_stride, int rows, int depth) {
  const auto step = [&](int done) {
    left.data += done * left.row_step;
    c += done * c_stride;
    rows -= done;
  };
  while (rows >= kGemmRows) {
    gemm_block<kAdd, kGemmRows, kVectors>(left, b, b_stride, c, c_stride, depth);
    step(kGemmRows);
  }
  while (rows >= 4) {
    gemm_block<kAdd, 4, kVectors>(left, b, b_stride, c, c_stride, depth);
    step(4);
  }
  while (rows >= 1) {
    gemm_block<kAdd, 1, kVectors>(left, b, b_stride, c, c_stride, depth);
    step(1);
  }
}

/// c[rows][columns] (+)= left · b. `columns` must be a multiple of the vector's lanes.
template <bool kAdd>
void gemm(const Left& left, const float* b, std::size_t b_stride, float* c, std::size_t c_stride,
          int rows, std::size_t columns, int depth) {
  const std::size_t lanes = hn::Lanes(hn::ScalableTag<float>());
  std::size_t column = 0;
  for (; column + 2 * lanes <= columns; column += 2 * lanes) {
    gemm_panel<kAdd, 2>(left, b + column, b_stride, c + column, c_stride, rows, depth);
  }
  for (; column < columns; column += lanes) {
    gemm_panel<kAdd, 1>(left, b + column, b_stride, c + column, c_stride, rows, depth);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar
HWY_AFTER_NAMESPACE();

#endif
