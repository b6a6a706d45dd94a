#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kvcache/arithmetic.h"

/// The codec on one row held in the registers of neighbouring lanes.
namespace oscar::cuda {

inline constexpr unsigned kEveryLane = 0xffffffffu;

__device__ inline __nv_bfloat162 as_pair(std::uint32_t bits) {
  __nv_bfloat162 pair;
  *reinterpret_cast<std::uint32_t*>(&pair) = bits;
  return pair;
}
__device__ inline std::uint32_t as_bits(__nv_bfloat162 pair) {
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
/// Minimum and maximum of both halves; NaN if either is.
__device__ inline std::uint32_t min_pair(std::uint32_t a, std::uint32_t b) {
  return as_bits(__hmin2_nan(as_pair(a), as_pair(b)));
}
__device__ inline std::uint32_t max_pair(std::uint32_t a, std::uint32_t b) {
  return as_bits(__hmax2_nan(as_pair(a), as_pair(b)));
}
__device__ inline std::uint32_t both_halves(std::uint16_t bits) {
  return bits * 0x00010001u;
}
__device__ inline std::uint32_t swap_halves(std::uint32_t pair) {
  return __byte_perm(pair, pair, 0x1032);
}
__device__ inline float low_half(std::uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ inline float high_half(std::uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

/// What the codec needs to know of a row beside its values.
struct RowCodecSettings {
  int dim;
  int clip_index;  ///< -1: no clipping
  ClipRule rule;
  ScaleType scale_type;
  int quarters_per_group;  ///< 4, 2 or 1
};

/// A row on kLanes neighbouring lanes (a power of two). Lane l holds channels l·2kPairs ... of each
/// quarter, so that every byte of codes is formed within a lane. Lanes that are not `active` repeat
/// channels of lane 0.
template <int kPairs, int kLanes, bool kGrouped>
struct RegisterRow {
  std::uint32_t x[4][kPairs];
  bool active;

  /// Encodes the row. The lane's bytes of codes go to `bytes`; lane 0 of the row writes scales,
  /// zeros and threshold.
  __device__ void encode(const RowCodecSettings& settings, bool store, void* scales,
                         float* threshold_out, std::uint32_t (&bytes)[kPairs / 2]) {
    constexpr int kParts = kGrouped ? 4 : 1;
    std::uint32_t range[kParts];  // low half: the smallest value; high half: minus the largest
    ranges(range);
    std::uint32_t whole = range[0];
    if constexpr (kGrouped) {
      whole = min_pair(min_pair(range[0], range[1]), min_pair(range[2], range[3]));
    }
    const std::uint16_t limit = arithmetic::kLargestMagnitude;
    const float largest = bfloat16_to_float(limit);
    const bool clean = low_half(whole) >= -largest && high_half(whole) >= -largest;
    if (__any_sync(kEveryLane, !clean)) {
      sanitise();
      ranges(range);
      whole = range[0];
      if constexpr (kGrouped) {
        whole = min_pair(min_pair(range[0], range[1]), min_pair(range[2], range[3]));
      }
    }
    float threshold = __int_as_float(0x7f800000);
    if (settings.clip_index >= 0) {
      threshold = clip_threshold(settings, fmaxf(-low_half(whole), -high_half(whole)));
    }
    const int lane = threadIdx.x % kLanes;
    if (store && lane == 0 && threshold_out != nullptr) *threshold_out = threshold;
    if constexpr (kGrouped) {
      if (settings.quarters_per_group == 2) {
        range[0] = range[1] = min_pair(range[0], range[1]);
        range[2] = range[3] = min_pair(range[2], range[3]);
      } else if (settings.quarters_per_group == 4) {
        range[0] = range[1] = range[2] = range[3] = whole;
      }
    }
    std::uint32_t codes[kPairs] = {};  // one byte in each half
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const float low = fmaxf(low_half(range[part]), -threshold);
      const float high = fminf(-high_half(range[part]), threshold);
      const arithmetic::ScaleZero pair = arithmetic::scale_zero(low, high);
      if (store && lane == 0 && part % settings.quarters_per_group == 0) {
        arithmetic::store_scale_zero(scales, settings.scale_type,
                                     part / settings.quarters_per_group, pair);
      }
      std::uint32_t boundary[3];
      boundaries(pair, low, high, lane, boundary);
      constexpr int kQuarters = 4 / kParts;
#pragma unroll
      for (int q = part * kQuarters; q < (part + 1) * kQuarters; ++q) {
#pragma unroll
        for (int p = 0; p < kPairs; ++p) {
          const __nv_bfloat162 value = as_pair(x[q][p]);
          const unsigned first = __hge2_mask(value, as_pair(boundary[0]));
          const unsigned second = __hge2_mask(value, as_pair(boundary[1]));
          const unsigned third = __hge2_mask(value, as_pair(boundary[2]));
          // The three are a thermometer: their parity is the code's low bit, the second its high.
          codes[p] |= (first ^ second ^ third) & (0x00010001u << (2 * q));
          codes[p] |= second & (0x00020002u << (2 * q));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kPairs / 2; ++i) {
      bytes[i] = __byte_perm(codes[2 * i], codes[2 * i + 1], 0x6420);
    }
  }

 private:
  /// Of the whole row, on every lane.
  __device__ void ranges(std::uint32_t* range) const {
    constexpr int kParts = kGrouped ? 4 : 1;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      std::uint32_t low = x[part * (4 / kParts)][0], high = low;
#pragma unroll
      for (int i = 0; i < 4 / kParts * kPairs; ++i) {
        const std::uint32_t value = x[part * (4 / kParts) + i / kPairs][i % kPairs];
        low = min_pair(low, value);
        high = max_pair(high, value);
      }
      low = min_pair(low, swap_halves(low));
      high = max_pair(high, swap_halves(high)) ^ 0x80008000u;
      std::uint32_t both = __byte_perm(low, high, 0x7610);
#pragma unroll
      for (int step = 1; step < kLanes; step *= 2) {
        both = min_pair(both, __shfl_xor_sync(kEveryLane, both, step));
      }
      range[part] = both;
    }
  }

  __device__ void sanitise() {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const auto low = arithmetic::sanitise(static_cast<std::uint16_t>(x[q][p]));
        const auto high = arithmetic::sanitise(static_cast<std::uint16_t>(x[q][p] >> 16));
        x[q][p] = low | static_cast<std::uint32_t>(high) << 16;
      }
    }
  }

  /// How many of the row's magnitudes are at least `bits` (kAbove: above).
  template <bool kAbove>
  __device__ int count(const std::uint32_t (&magnitudes)[4 * kPairs], std::uint16_t bits) const {
    const __nv_bfloat162 bound = as_pair(both_halves(bits));
    __nv_bfloat162 sums[2] = {as_pair(0), as_pair(0)};
#pragma unroll
    for (int i = 0; i < 4 * kPairs; ++i) {
      const __nv_bfloat162 magnitude = as_pair(magnitudes[i]);
      sums[i % 2] =
          __hadd2(sums[i % 2], kAbove ? __hgt2(magnitude, bound) : __hge2(magnitude, bound));
    }
    __nv_bfloat162 sum = __hadd2(sums[0], sums[1]);  // exact: at most 256 in a half
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
      sum = __hadd2(sum, as_pair(__shfl_xor_sync(kEveryLane, as_bits(sum), step)));
    }
    return static_cast<int>(low_half(as_bits(sum)) + high_half(as_bits(sum)));
  }

  __device__ float clip_threshold(const RowCodecSettings& settings, float highest) const {
    std::uint32_t magnitudes[4 * kPairs];
#pragma unroll
    for (int i = 0; i < 4 * kPairs; ++i) {
      magnitudes[i] = active ? x[i / kPairs][i % kPairs] & 0x7fff7fffu : 0;
    }
    if (settings.rule == ClipRule::bisect) {
      return arithmetic::bisect_threshold(
          settings.dim, settings.clip_index, highest,
          [&](std::uint16_t bits) { return count<true>(magnitudes, bits); });
    }
    // The largest `low` that `wanted` magnitudes reach; done early when exactly so many do.
    const int wanted = settings.dim - settings.clip_index;
    int low = 0, high = static_cast<int>(__float_as_uint(highest) >> 16) + 1, stride = 0x58;
    int reach_low = settings.dim, reach_high = 0;
    bool halve = false;
    while (__any_sync(kEveryLane, high - low > 1)) {
      int probe = (low + high) / 2;
      if (low == 0) {
        probe = max(probe, high - stride);
        stride = min(2 * stride, 0x4000);
      } else if (!halve) {
        // Between the two counts as a line would run; every other step halves, so that it ends.
        const float share = __fdividef(static_cast<float>(reach_low - wanted) + 0.5f,
                                       static_cast<float>(reach_low - reach_high) + 1.0f);
        probe = low + 1 + static_cast<int>(share * static_cast<float>(high - low - 1));
        probe = min(probe, high - 1);
      }
      halve = !halve;
      probe = max(probe, 1);
      const int reach = count<false>(magnitudes, static_cast<std::uint16_t>(probe));
      if (high - low > 1) {
        if (reach >= wanted) {
          low = probe;
          reach_low = reach;
          if (reach == wanted) high = low;
        } else {
          high = probe;
          reach_high = reach;
        }
      }
    }
    const __nv_bfloat162 bound = as_pair(both_halves(static_cast<std::uint16_t>(low)));
    std::uint32_t smallest = 0x7f807f80u;
#pragma unroll
    for (int i = 0; i < 4 * kPairs; ++i) {
      const unsigned reaches = __hge2_mask(as_pair(magnitudes[i]), bound);
      smallest = min_pair(smallest, (magnitudes[i] & reaches) | (0x7f807f80u & ~reaches));
    }
    smallest = min_pair(smallest, swap_halves(smallest));
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
      smallest = min_pair(smallest, __shfl_xor_sync(kEveryLane, smallest, step));
    }
    return low_half(smallest);
  }

  /// The three boundaries of a group, each in both halves; with four lanes or more each lane finds
  /// one.
  __device__ static void boundaries(arithmetic::ScaleZero pair, float low, float high, int lane,
                                    std::uint32_t (&boundary)[3]) {
    if constexpr (kLanes >= 4) {
      const int level = 1 + min(lane % 4, 2);
      const std::uint32_t mine = both_halves(arithmetic::code_boundary(level, pair, low, high));
#pragma unroll
      for (int i = 0; i < 3; ++i) boundary[i] = __shfl_sync(kEveryLane, mine, i, 4);
    } else {
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        boundary[i] = both_halves(arithmetic::code_boundary(i + 1, pair, low, high));
      }
    }
  }
};

}  // namespace oscar::cuda
