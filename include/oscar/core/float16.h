#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define OSCAR_HOST_DEVICE __host__ __device__
#else
#define OSCAR_HOST_DEVICE
#endif

namespace oscar {

/// The float that a bfloat16 bit pattern stands for.
OSCAR_HOST_DEVICE inline float bfloat16_to_float(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
#ifdef __CUDA_ARCH__
  return __uint_as_float(wide);
#else
  return std::bit_cast<float>(wide);
#endif
}

/// Rounds to bfloat16, ties to even; NaN stays NaN (quiet), infinities stay.
OSCAR_HOST_DEVICE inline std::uint16_t float_to_bfloat16(float value) {
#ifdef __CUDA_ARCH__
  const std::uint32_t bits = __float_as_uint(value);
#else
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
#endif
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// The nearest bfloat16 value, as a float.
OSCAR_HOST_DEVICE inline float round_to_bfloat16(float value) {
  return bfloat16_to_float(float_to_bfloat16(value));
}

/// The float that an IEEE half bit pattern stands for (subnormals, infinities and NaN included).
inline float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

/// Rounds to IEEE half, ties to even; overflow becomes infinity, NaN stays NaN.
inline std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint16_t sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude <
      0x38800000u) {  // subnormal half: add a power of two so that the hardware rounds for us
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

}  // namespace oscar
