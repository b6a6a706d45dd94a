#pragma once

#include <cmath>
#include <cstdint>

#include "oscar/core/float16.h"
#include "oscar/kvcache/codec.h"
#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

/// The codec's arithmetic (contract, section 2), one function for both back ends. Each rounding
/// step is an IEEE operation that no compiler may fuse with its neighbour: C++ is compiled without
/// contraction, and device code names the rounding.
namespace oscar::arithmetic {

/// The largest bf16: a zero is limited to it, so that it stays finite in every scale type but fp16.
inline constexpr float kLargest = 0x1.fep127f;
/// The largest magnitude that a row may hold: the last bf16 below 2^127, so that max - min stays
/// finite.
inline constexpr std::uint16_t kLargestMagnitude = 0x7eff;

OSCAR_HOST_DEVICE inline float add(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

OSCAR_HOST_DEVICE inline float multiply(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

OSCAR_HOST_DEVICE inline float divide(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

/// The bf16 bits that the codec reads for these bf16 bits: NaN is +0, and huge magnitudes are
/// limited.
OSCAR_HOST_DEVICE inline std::uint16_t sanitise(std::uint16_t bits) {
  const std::uint16_t magnitude = bits & 0x7fffu;
  if (magnitude > 0x7f80u) return 0;
  if (magnitude > kLargestMagnitude) {
    return static_cast<std::uint16_t>((bits & 0x8000u) | kLargestMagnitude);
  }
  return bits;
}

/// The clip threshold of rule `exact` as bf16 bits: the magnitude at `index` in ascending order.
/// count_below(bits) returns how many magnitudes of the row are below these bits (bf16 magnitudes
/// order as their bits do).
template <typename CountBelow>
OSCAR_HOST_DEVICE inline std::uint16_t exact_threshold(int index, CountBelow count_below) {
  std::uint16_t threshold = 0;
  for (std::uint16_t bit = 0x4000u; bit != 0; bit = static_cast<std::uint16_t>(bit >> 1)) {
    const std::uint16_t candidate = static_cast<std::uint16_t>(threshold | bit);
    if (count_below(candidate) <= index) threshold = candidate;
  }
  return threshold;
}

/// The clip threshold of rule `bisect`: the demotion kernel's search, started at the row's largest
/// magnitude `high`. count_above(bits) returns how many magnitudes are above these bf16 bits; as
/// magnitudes are bf16 themselves, being above a float is being above its upper half.
template <typename CountAbove>
OSCAR_HOST_DEVICE inline float bisect_threshold(int dim, int index, float high,
                                                CountAbove count_above) {
  float low = 0;
  for (int remaining = dim >> 1; remaining != 0; remaining >>= 1) {  // bit_length(dim) - 1 times
    const float middle = multiply(add(low, high), 0.5f);
#ifdef __CUDA_ARCH__
    const std::uint32_t bits = __float_as_uint(middle);
#else
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(middle);
#endif
    const bool above = count_above(static_cast<std::uint16_t>(bits >> 16)) > dim - index;
    low = above ? middle : low;  // no branch: it would go either way
    high = above ? high : middle;
  }
  return high;
}

/// A group's scale and (unrounded) zero.
struct ScaleZero {
  float scale;
  float zero;
};

/// From the smallest and the largest clipped value of a group.
OSCAR_HOST_DEVICE inline ScaleZero scale_zero(float low, float high) {
  if (low == 0) low = 0;  // -0 and +0 give one zero, whichever of them a back end's minimum met
  const float range = add(high, -low);
  const float scale = divide(range > 1e-8f ? range : 1e-8f, 3.0f);
  float zero = divide(-low, scale);
  if (zero > kLargest) zero = kLargest;
  if (zero < -kLargest) zero = -kLargest;
  return {scale, zero};
}

/// trunc(y/s + z + 0.5), limited to 0 ... 3.
OSCAR_HOST_DEVICE inline int code_of(float value, ScaleZero group) {
  const float level = add(add(divide(value, group.scale), group.zero), 0.5f);
  return (level >= 1.0f) + (level >= 2.0f) + (level >= 3.0f);
}

/// Whole numbers in the order of the bf16 values that they stand for; -1 is -0.
OSCAR_HOST_DEVICE inline float ordered_bfloat16(int key) {
  return bfloat16_to_float(static_cast<std::uint16_t>(key < 0 ? key ^ 0x7fff : key));
}

/// The bits of the smallest bf16 whose code is at least `level` (1 ... 3) for a group whose clipped
/// values lie in [low, high]; infinite where none or all of them reach it, so that values need no
/// clipping before they are compared with it. Codes rise with the value, because each rounding in
/// code_of does, so three comparisons replace a division an element.
OSCAR_HOST_DEVICE inline std::uint16_t code_boundary(int level, ScaleZero group, float low,
                                                     float high) {
  // The level rounds up to `level` from just below it: by half a step of each of the two sums.
  const float slack = level == 1 ? 0x1.8p-25f : level == 2 ? 0x1p-24f : 0x1p-23f;
  const float distance = add(add(static_cast<float>(level) - 0.5f, -group.zero), -slack);
  const float guess = multiply(group.scale, distance);
#ifdef __CUDA_ARCH__
  const std::int32_t bits = __float_as_int(guess);
#else
  const std::int32_t bits = std::bit_cast<std::int32_t>(guess);
#endif
  const std::int32_t ordered = bits ^ ((bits >> 31) & 0x7fffffff);
  constexpr int kHighest = 0x7f7f, kLowest = ~kHighest;
  int key = (ordered >> 16) + ((ordered & 0xffff) != 0);
  key = key > kHighest ? kHighest : key < kLowest + 1 ? kLowest + 1 : key;
  // The guess is right to a few units of fp32, so at most one bf16 away.
  while (key < kHighest && code_of(ordered_bfloat16(key), group) < level) ++key;
  while (key > kLowest + 1 && code_of(ordered_bfloat16(key - 1), group) >= level) --key;
  const float boundary = ordered_bfloat16(key);
  if (boundary > high) return 0x7f80;
  if (boundary <= low) return 0xff80;
  return static_cast<std::uint16_t>(key < 0 ? key ^ 0x7fff : key);
}

/// (code - z)·s
OSCAR_HOST_DEVICE inline float value_of(int code, ScaleZero group) {
  return multiply(add(static_cast<float>(code), -group.zero), group.scale);
}

/// How many partial sums a row's mean and variance are added in: sum l takes channels l, l + 32,
/// ..., then the upper half of the sums is added to the lower until one is left.
inline constexpr int kPartialSums = 32;

/// The levels that Lloyd and Max place for a Gaussian row (contract, section 2, step 5).
class LloydMax {
 public:
  OSCAR_HOST_DEVICE LloydMax(float mean, float variance) : mean_(mean) {
    // Rows near the largest number have no finite variance: limit it so that all stays defined.
    const float limited = add(variance < kLargest ? variance : kLargest, 1e-8f);
#ifdef __CUDA_ARCH__
    deviation_ = __fsqrt_rn(limited);
#else
    deviation_ = std::sqrt(limited);
#endif
  }
  OSCAR_HOST_DEVICE ScaleZero scale_zero() const {
    const float scale = multiply(static_cast<float>(3.01912 / 3 * 1.16), deviation_);
    float zero = add(1.5f, -divide(mean_, scale));
    if (zero > kLargest) zero = kLargest;
    if (zero < -kLargest) zero = -kLargest;
    return {scale, zero};
  }
  OSCAR_HOST_DEVICE int code_of(float value) const {
    const float centred = add(value, -mean_);
    const float outer = multiply(0.98107f, deviation_);
    return (centred > -outer) + (centred > 0) + (centred > outer);
  }

 private:
  float mean_, deviation_;
};

/// Rounds to IEEE half; what would become infinite becomes ±65504 instead.
OSCAR_HOST_DEVICE inline std::uint16_t saturate_to_half(float value) {
  if (value > 65504.0f) value = 65504.0f;
  if (value < -65504.0f) value = -65504.0f;
#ifdef __CUDA_ARCH__
  return __half_as_ushort(__float2half_rn(value));
#else
  return float_to_half(value);
#endif
}

OSCAR_HOST_DEVICE inline float widen_half(std::uint16_t bits) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(bits));
#else
  return half_to_float(bits);
#endif
}

/// Writes the scale and zero of group `group` of a row whose first number lies at `row`.
OSCAR_HOST_DEVICE inline void store_scale_zero(void* row, ScaleType type, int group,
                                               ScaleZero value) {
  if (type == ScaleType::fp32) {
    float* out = static_cast<float*>(row) + 2 * group;
    out[0] = value.scale;
    out[1] = value.zero;
    return;
  }
  std::uint16_t* out = static_cast<std::uint16_t*>(row) + 2 * group;
  const bool half = type == ScaleType::fp16;
  out[0] = half ? saturate_to_half(value.scale) : float_to_bfloat16(value.scale);
  out[1] = half ? saturate_to_half(value.zero) : float_to_bfloat16(value.zero);
}

OSCAR_HOST_DEVICE inline ScaleZero load_scale_zero(const void* row, ScaleType type, int group) {
  if (type == ScaleType::fp32) {
    const float* in = static_cast<const float*>(row) + 2 * group;
    return {in[0], in[1]};
  }
  const std::uint16_t* in = static_cast<const std::uint16_t*>(row) + 2 * group;
  if (type == ScaleType::fp16) return {widen_half(in[0]), widen_half(in[1])};
  return {bfloat16_to_float(in[0]), bfloat16_to_float(in[1])};
}

}  // namespace oscar::arithmetic
