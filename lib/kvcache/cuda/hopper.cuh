#pragma once

#include <cstdint>

/// Products of a warpgroup, four warps together, that only Hopper has; code that uses them is
/// compiled for sm_90a alone.
namespace oscar::cuda {

#ifdef OSCAR_HOPPER
inline constexpr bool kBuiltForHopper = true;
#else
inline constexpr bool kBuiltForHopper = false;
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/// Makes this thread's writes to shared memory visible to products; a barrier must follow.
__device__ inline void fence_shared_for_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// An operand in shared memory without swizzle: 8 by 8 blocks of 16-bit numbers, 128 bytes each,
/// rows of 16 bytes along the summed dimension. Bytes between blocks along that and along the
/// other.
__device__ inline std::uint64_t matrix_descriptor(const void* shared, std::uint64_t along_sum,
                                                  std::uint64_t across) {
  const std::uint64_t address = __cvta_generic_to_shared(shared);
  return (address & 0x3ffff) >> 4 | along_sum >> 4 << 16 | across >> 4 << 32;
}

__device__ inline void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// d[64 x 128] = rows[64 x 16] · the operand [16 x 128], plus d if `add`, in bf16. Each warp holds
/// 16 rows, a0 to a3 as in multiply_bfloat16; d[4n ...] are its sums of columns 8n to 8n + 7.
__device__ inline void multiply_rows_128(float (&d)[64], std::uint32_t a0, std::uint32_t a1,
                                         std::uint32_t a2, std::uint32_t a3, std::uint64_t operand,
                                         bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(operand), "r"(static_cast<int>(add)));
}

/// Ends the products under way; their sums may be read then.
__device__ inline void finish_products(float (&d)[64]) {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#endif

}  // namespace oscar::cuda
