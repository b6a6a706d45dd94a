#pragma once

#include <cstdint>

/// The few instructions that C++ has no word for.
namespace oscar::cuda {

/// accumulator[16 x 8] += a[16 x 16] · b[16 x 8], fp16. Lane l = 4·g + t holds of a the rows g, g +
/// 8 at columns 2t, 2t+1 (a0, a1), then at columns 2t+8, 2t+9 (a2, a3); of b the rows 2t, 2t+1 (b0)
/// and 2t+8, 2t+9 (b1) at column g; of the accumulator the rows g (0, 1) and g + 8 (2, 3) at
/// columns 2t, 2t+1.
__device__ inline void multiply_half(float (&accumulator)[4], std::uint32_t a0, std::uint32_t a1,
                                     std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                     std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(accumulator[0]), "+f"(accumulator[1]), "+f"(accumulator[2]), "+f"(accumulator[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// The same in bf16.
__device__ inline void multiply_bfloat16(float (&accumulator)[4], std::uint32_t a0,
                                         std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                                         std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(accumulator[0]), "+f"(accumulator[1]), "+f"(accumulator[2]), "+f"(accumulator[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// The transpose of an 8 x 8 matrix of 16-bit numbers: row g, columns 2t, 2t+1 on lane 4·g + t.
__device__ inline std::uint32_t transpose(std::uint32_t rows) {
  std::uint32_t columns;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(columns) : "r"(rows));
  return columns;
}

__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float logarithm_of_two(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Starts a copy to shared memory; kBytes is 4, 8 or 16.
template <int kBytes>
__device__ inline void copy_async(std::uint32_t shared, const void* global) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(global), "n"(kBytes)
                 : "memory");
  }
}
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most kPending groups of copies are under way.
template <int kPending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// 2^exponent, for exponents from -126 to 127.
__device__ inline float power(int exponent) {
  return __int_as_float((exponent + 127) << 23);
}

}  // namespace oscar::cuda
