#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "kvcache/backend.h"
#include "kvcache/cpu/decode_part.h"
#include "kvcache/cpu/targets.h"
#include "kvcache/cpu/workspace.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvcache/cpu/decode.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file again for each instruction set.
#include "hwy/cache_control.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kvcache/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscar {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using cpu::DecodePart;
using cpu::DecodeScratch;
using cpu::kDecodeQueries;
using cpu::kDecodeTile;
using Float = hn::ScalableTag<float>;
using FloatVector = hn::Vec<Float>;

// The rows of keys and the quarters of values whose sums the register file holds at a time.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
inline constexpr int kKeysAtOnce = 4, kQuartersAtOnce = 4;
#else
inline constexpr int kKeysAtOnce = 2, kQuartersAtOnce = 2;
#endif
// Whether codes meet queries and weights as 16-bit integers, two products an instruction and lane.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define OSCAR_DECODE_INTEGERS 1
#else
#define OSCAR_DECODE_INTEGERS 0
#endif

/// The sums of four vectors' lanes, in order.
HWY_INLINE void sum_lanes(const FloatVector (&sums)[4], float* HWY_RESTRICT out) {
  static_assert(kDecodeQueries == 4);
#if HWY_TARGET == HWY_SCALAR
  for (int q = 0; q < 4; ++q) out[q] = hn::GetLane(sums[q]);
#else
  const Float d;
  const hn::Repartition<double, Float> pairs;
  const hn::Full128<float> four;
  // Each 128 bits become the sums of the four vectors over them.
  const auto halves = [&](FloatVector a, FloatVector b) HWY_ATTR {
    return hn::BitCast(pairs, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  };
  const auto first = halves(sums[0], sums[1]), second = halves(sums[2], sums[3]);
  alignas(64) float partial[hn::MaxLanes(d)];
  hn::Store(hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, first, second)),
                    hn::BitCast(d, hn::InterleaveUpper(pairs, first, second))),
            d, partial);
  auto total = hn::Load(four, partial);
  for (std::size_t part = 4; part < hn::Lanes(d); part += 4) {
    total = hn::Add(total, hn::Load(four, partial + part));
  }
  hn::StoreU(total, four, out);
#endif
}

/// scores[count][4] = rows [count][stride] · the four queries [4][stride]. May write three rows
/// more.
void multiply_keys(const float* HWY_RESTRICT rows, int count, const float* HWY_RESTRICT query,
                   std::size_t stride, float* HWY_RESTRICT scores) {
  const Float d;
  const std::size_t lanes = hn::Lanes(d);
  for (int key = 0; key < count; key += kKeysAtOnce) {
    FloatVector sum[kKeysAtOnce][4];
    const float* row[kKeysAtOnce];
    for (int k = 0; k < kKeysAtOnce; ++k) {
      row[k] = rows + std::min(key + k, count - 1) * stride;
      for (int q = 0; q < 4; ++q) sum[k][q] = hn::Zero(d);
    }
    for (std::size_t i = 0; i < stride; i += lanes) {
      FloatVector right[4];
      for (int q = 0; q < 4; ++q) right[q] = hn::LoadU(d, query + q * stride + i);
      for (int k = 0; k < kKeysAtOnce; ++k) {
        const FloatVector value = hn::LoadU(d, row[k] + i);
        for (int q = 0; q < 4; ++q) sum[k][q] = hn::MulAdd(value, right[q], sum[k][q]);
      }
    }
    for (int k = 0; k < kKeysAtOnce; ++k) sum_lanes(sum[k], scores + 4 * (key + k));
  }
}

/// output[4][stride] += weights[count][4]ᵀ · rows [count][stride]
void add_weighted_values(const float* HWY_RESTRICT rows, int count,
                         const float* HWY_RESTRICT weights, std::size_t stride,
                         float* HWY_RESTRICT output) {
  const Float d;
  const std::size_t step = kQuartersAtOnce * hn::Lanes(d);
  for (std::size_t i = 0; i < stride; i += step) {
    FloatVector sum[kQuartersAtOnce][4];
    const auto at = [&](int m, int q) { return output + q * stride + i + m * hn::Lanes(d); };
    for (int m = 0; m < kQuartersAtOnce; ++m) {
      for (int q = 0; q < 4; ++q) sum[m][q] = hn::LoadU(d, at(m, q));
    }
    for (int key = 0; key < count; ++key) {
      FloatVector weight[4];
      for (int q = 0; q < 4; ++q) weight[q] = hn::Set(d, weights[4 * key + q]);
      for (int m = 0; m < kQuartersAtOnce; ++m) {
        const FloatVector value = hn::LoadU(d, rows + key * stride + i + m * hn::Lanes(d));
        for (int q = 0; q < 4; ++q) sum[m][q] = hn::MulAdd(value, weight[q], sum[m][q]);
      }
    }
    for (int m = 0; m < kQuartersAtOnce; ++m) {
      for (int q = 0; q < 4; ++q) hn::StoreU(sum[m][q], d, at(m, q));
    }
  }
}

#if OSCAR_DECODE_INTEGERS

/// sum + a·b, products of neighbouring lanes together.
HWY_INLINE hn::Vec256<std::int32_t> add_products(hn::Vec256<std::int32_t> sum,
                                                 hn::Vec256<std::int16_t> a,
                                                 hn::Vec256<std::int16_t> b) {
  return hn::Add(sum, hn::Vec256<std::int32_t>{_mm256_madd_epi16(a.raw, b.raw)});
}
#if HWY_TARGET != HWY_AVX2
HWY_INLINE hn::Vec512<std::int32_t> add_products(hn::Vec512<std::int32_t> sum,
                                                 hn::Vec512<std::int16_t> a,
                                                 hn::Vec512<std::int16_t> b) {
#if HWY_TARGET == HWY_AVX3_DL
  return hn::Vec512<std::int32_t>{_mm512_dpwssd_epi32(sum.raw, a.raw, b.raw)};
#else
  return hn::Add(sum, hn::Vec512<std::int32_t>{_mm512_madd_epi16(a.raw, b.raw)});
#endif
}
#endif

/// As many 16-bit numbers as bytes of codes, one for each quarter in turn.
template <class D16>
struct Crumbs {
  hn::Vec<D16> bytes;

  HWY_INLINE explicit Crumbs(const std::uint8_t* at)
      : bytes(hn::PromoteTo(D16(), hn::LoadU(hn::Rebind<std::uint8_t, D16>(), at))) {}
  HWY_INLINE hn::Vec<D16> next() {
    const hn::Vec<D16> codes = hn::And(bytes, hn::Set(D16(), 3));
    bytes = hn::ShiftRight<2>(bytes);
    return codes;
  }
  HWY_INLINE void skip_two() { bytes = hn::ShiftRight<4>(bytes); }
};

/// scores[count][4] = codes · the four queries [4][4·quarter], integers. May write three rows more.
template <class D16>
void multiply_codes(const std::uint8_t* const* rows, int count,
                    const std::int16_t* HWY_RESTRICT query, std::size_t quarter,
                    float* HWY_RESTRICT scores) {
  const D16 d;
  const hn::RepartitionToWide<D16> wide;
  const std::size_t lanes = hn::Lanes(d);
  for (int key = 0; key < count; key += kKeysAtOnce) {
    hn::Vec<decltype(wide)> sum[kKeysAtOnce][4];
    const std::uint8_t* row[kKeysAtOnce];
    for (int k = 0; k < kKeysAtOnce; ++k) {
      row[k] = rows[std::min(key + k, count - 1)];
      for (int q = 0; q < 4; ++q) sum[k][q] = hn::Zero(wide);
    }
    for (std::size_t i = 0; i < quarter; i += lanes) {
      Crumbs<D16> crumbs[kKeysAtOnce] = {
        Crumbs<D16>(row[0] + i),
        Crumbs<D16>(row[1] + i),
#if HWY_TARGET != HWY_AVX2
        Crumbs<D16>(row[2] + i),
        Crumbs<D16>(row[3] + i)
#endif
      };
      for (int m = 0; m < 4; ++m) {
        hn::Vec<D16> right[4];
        for (int q = 0; q < 4; ++q) right[q] = hn::LoadU(d, query + (4 * q + m) * quarter + i);
        for (int k = 0; k < kKeysAtOnce; ++k) {
          const auto codes = crumbs[k].next();
          for (int q = 0; q < 4; ++q) sum[k][q] = add_products(sum[k][q], codes, right[q]);
        }
      }
    }
    for (int k = 0; k < kKeysAtOnce; ++k) {
      FloatVector all[4];
      for (int q = 0; q < 4; ++q) {
        const auto as_float = hn::ConvertTo(hn::RebindToFloat<decltype(wide)>(), sum[k][q]);
        if constexpr (std::is_same_v<std::decay_t<decltype(as_float)>, FloatVector>) {
          all[q] = as_float;
        } else {
          all[q] = hn::ZeroExtendVector(Float(), as_float);
        }
      }
      sum_lanes(all, scores + 4 * (key + k));
    }
  }
}

/// Bytes of two rows side by side: paired[count / 2][2·quarter]. A last row without a partner gets
/// zeros.
HWY_INLINE void pair_rows(const std::uint8_t* const* rows, int count, std::size_t quarter,
                          std::uint8_t* HWY_RESTRICT paired) {
  const hn::Full128<std::uint8_t> d;
  for (int key = 0; key < count; key += 2, paired += 2 * quarter) {
    for (std::size_t i = 0; i < quarter; i += 16) {
      const auto first = hn::LoadU(d, rows[key] + i);
      const auto second = key + 1 < count ? hn::LoadU(d, rows[key + 1] + i) : hn::Zero(d);
      hn::StoreU(hn::InterleaveLower(d, first, second), d, paired + 2 * i);
      hn::StoreU(hn::InterleaveUpper(d, first, second), d, paired + 2 * i + 16);
    }
  }
}

/// output[4][stride] += unit[4] · (weights of pairs of rows)ᵀ · their codes.
void add_weighted_codes(const std::uint8_t* HWY_RESTRICT paired, int pairs,
                        const std::int32_t* HWY_RESTRICT weights, const float* unit,
                        std::size_t quarter, std::size_t stride, float* HWY_RESTRICT output) {
  const hn::ScalableTag<std::int16_t> d;
  const hn::RepartitionToWide<decltype(d)> wide;
  const Float df;
  const std::size_t channels = hn::Lanes(wide);
  for (std::size_t i = 0; i < quarter; i += channels) {
    for (int first = 0; first < 4; first += kQuartersAtOnce) {
      hn::Vec<decltype(wide)> sum[kQuartersAtOnce][4];
      for (auto& of_quarter : sum) {
        for (auto& of_query : of_quarter) of_query = hn::Zero(wide);
      }
      for (int pair = 0; pair < pairs; ++pair) {
        hn::Vec<decltype(d)> weight[4];
        for (int q = 0; q < 4; ++q) {
          weight[q] = hn::BitCast(d, hn::Set(wide, weights[4 * pair + q]));
        }
        Crumbs<decltype(d)> crumbs(paired + pair * 2 * quarter + 2 * i);
        if (first != 0) crumbs.skip_two();
        for (int m = 0; m < kQuartersAtOnce; ++m) {
          const auto codes = crumbs.next();
          for (int q = 0; q < 4; ++q) sum[m][q] = add_products(sum[m][q], codes, weight[q]);
        }
      }
      for (int m = 0; m < kQuartersAtOnce; ++m) {
        for (int q = 0; q < 4; ++q) {
          float* out = output + q * stride + (first + m) * quarter + i;
          hn::StoreU(
              hn::MulAdd(hn::ConvertTo(df, sum[m][q]), hn::Set(df, unit[q]), hn::LoadU(df, out)),
              df, out);
        }
      }
    }
  }
}

/// row[count] as integers up to 32767, and what one of them stands for; whole vectors.
HWY_INLINE float round_row(const float* HWY_RESTRICT row, std::size_t count,
                           std::int16_t* HWY_RESTRICT out) {
  const Float d;
  const hn::Rebind<std::int16_t, Float> halves;
  const std::size_t lanes = hn::Lanes(d);
  auto highest = hn::Zero(d);
  for (std::size_t i = 0; i < count; i += lanes) {
    highest = hn::Max(highest, hn::Abs(hn::LoadU(d, row + i)));
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(d, highest));
  const auto factor = hn::Set(d, largest > 0x1p-100f ? 32767 / largest : 0.0f);
  for (std::size_t i = 0; i < count; i += lanes) {
    const auto integers = hn::NearestInt(hn::Mul(hn::LoadU(d, row + i), factor));
    hn::StoreU(hn::DemoteTo(halves, integers), halves, out + i);
  }
  return largest > 0x1p-100f ? largest / 32767 : 0.0f;
}

/// weights[count][4] as integers up to 32767, two keys' to a word: rounded[count / 2][4]; and what
/// one stands for. Weights after `count` are zero up to a whole vector.
HWY_INLINE void round_weights(float* HWY_RESTRICT weights, int count, float* unit,
                              std::int32_t* HWY_RESTRICT rounded) {
  const hn::Full128<float> d;
  const hn::Full128<std::int32_t> integers;
  auto largest = hn::Set(d, 0x1p-100f);
  for (int key = 0; key < count; ++key) largest = hn::Max(largest, hn::LoadU(d, weights + 4 * key));
  const auto factor = hn::Div(hn::Set(d, 32767), largest);
  hn::StoreU(hn::Mul(largest, hn::Set(d, 1.0f / 32767)), d, unit);
  const auto integer = [&](int key) HWY_ATTR {
    return hn::NearestInt(hn::Mul(hn::LoadU(d, weights + 4 * key), factor));
  };
  for (int key = 0; key < count; key += 2) {
    const auto second = key + 1 < count ? integer(key + 1) : hn::Zero(integers);
    hn::StoreU(hn::Or(integer(key), hn::ShiftLeft<16>(second)), integers, rounded + 2 * key);
  }
}

#endif  // OSCAR_DECODE_INTEGERS

constexpr std::size_t kColumn =
    std::size_t{kDecodeTile} * kDecodeQueries;  // of DecodeScratch::pairs
constexpr float kNothing = -1e30f;              // a maximum over no keys

/// Consecutive tokens of one tier. Coded keys and values, each on its own, stay codes where whole
/// vectors fit into a quarter of a row and a row has one scale; else they are fp32 like exact ones.
struct Tile {
  int count;
  bool coded_keys, coded_values;
  const std::uint8_t* keys[kDecodeTile];
  const std::uint8_t* values[kDecodeTile];
};

HWY_INLINE bool stays_coded(const CodecSettings& codec) {
  return OSCAR_DECODE_INTEGERS && codec.group == codec.dim && codec.dim % 64 == 0;
}

/// Tokens of a page that follow each other: rows of codes, and scales and zeros four times each, as
/// the scores lie.
void load_page(const CodecSettings& codec, const ConstCodedRows& coded, std::int64_t place,
               int head, int count, const std::uint8_t** rows, float* HWY_RESTRICT scales,
               float* HWY_RESTRICT zeros) {
  const std::uint8_t* row =
      coded.codes + place * coded.code_token_stride + head * coded.code_head_stride;
  const auto size = static_cast<std::int64_t>(bytes_of(codec.scale_type));
  const char* pair = static_cast<const char*>(coded.scales_zeros) +
                     (place * coded.scale_token_stride + head * coded.scale_head_stride) * size;
  const hn::CappedTag<float, kDecodeQueries> d;
  // Pages mostly follow each other: what the next tile reads is on its way while this one computes.
  const std::int64_t ahead = kDecodeTile * coded.code_token_stride;
  const std::int64_t pairs_ahead = kDecodeTile * coded.scale_token_stride * size;
  for (int i = 0; i < count; ++i) {
    rows[i] = row;
    hwy::Prefetch(row + ahead);
    hwy::Prefetch(pair + pairs_ahead);
    const arithmetic::ScaleZero loaded = arithmetic::load_scale_zero(pair, codec.scale_type, 0);
    for (std::size_t q = 0; q < kDecodeQueries; q += hn::Lanes(d)) {
      hn::StoreU(hn::Set(d, loaded.scale), d, scales + kDecodeQueries * i + q);
      hn::StoreU(hn::Set(d, loaded.zero), d, zeros + kDecodeQueries * i + q);
    }
    row += coded.code_token_stride;
    pair += coded.scale_token_stride * size;
  }
}

void load_coded(const MixedCacheView& cache, const DecodePart& part, std::int64_t index, Tile& tile,
                const DecodeScratch& scratch) {
  const std::int32_t* table =
      cache.block_table + cache.requests[part.request].slot * cache.pages_per_slot;
  for (int i = 0; i < tile.count;) {
    const std::int64_t token = index + i;
    const auto in_page = static_cast<int>(token % kPageTokens);
    const int count = std::min(kPageTokens - in_page, tile.count - i);
    const std::int64_t place = std::int64_t{table[token / kPageTokens]} * kPageTokens + in_page;
    float* pairs = scratch.pairs + i * kDecodeQueries;
    if (tile.coded_keys) {
      load_page(cache.key_codec, cache.key_coded, place, part.kv_head, count, tile.keys + i, pairs,
                pairs + kColumn);
    }
    if (tile.coded_values) {
      load_page(cache.value_codec, cache.value_coded, place, part.kv_head, count, tile.values + i,
                pairs + 2 * kColumn, pairs + 3 * kColumn);
    }
    for (int j = 0; j < count; ++j) {
      if (!tile.coded_keys) {
        decode_row(cache.key_codec, cache.key_coded, place + j, part.kv_head,
                   scratch.keys + (i + j) * scratch.key_stride);
      }
      if (!tile.coded_values) {
        decode_row(cache.value_codec, cache.value_coded, place + j, part.kv_head,
                   scratch.values + (i + j) * scratch.value_stride);
      }
    }
    i += count;
  }
}

/// Tokens from `begin` on, of one tier, at most `count`.
Tile load_tile(const MixedCacheView& cache, const DecodePart& part, std::int64_t begin,
               std::int64_t count, const DecodeScratch& scratch) {
  const RequestTiers& request = cache.requests[part.request];
  const std::int64_t index = begin - request.sink;
  const bool coded = index >= 0 && index < request.coded;
  const std::int64_t tier_end = index < 0 ? request.sink
                                : coded   ? std::int64_t{request.sink} + request.coded
                                          : begin + count;
  Tile tile;
  tile.count = static_cast<int>(std::min(count, tier_end - begin));
  tile.coded_keys = coded && stays_coded(cache.key_codec);
  tile.coded_values = coded && stays_coded(cache.value_codec);
  if (coded) {
    load_coded(cache, part, index, tile, scratch);
    return tile;
  }
  const bool sink = index < 0;
  const ConstRows &keys = sink ? cache.key_sink : cache.key_recent,
                  &values = sink ? cache.value_sink : cache.value_recent;
  for (int i = 0; i < tile.count; ++i) {
    const std::int64_t place =
        sink ? std::int64_t{request.slot} * cache.sink_places + begin + i
             : std::int64_t{request.slot} * cache.ring_places + (index + i) % cache.ring_places;
    load_row(keys, place, part.kv_head, scratch.keys + i * scratch.key_stride);
    load_row(values, place, part.kv_head, scratch.values + i * scratch.value_stride);
  }
  return tile;
}

/// Vectors that hold the scores of one key: four where they hold one number, else one or less.
inline constexpr int kPhases = HWY_TARGET == HWY_SCALAR ? 4 : 1;

/// Four numbers, one a query, as the scores of phase `phase` lie.
HWY_INLINE FloatVector of_queries(const float* four, int phase) {
#if HWY_TARGET == HWY_SCALAR
  return hn::LoadU(Float(), four + phase);
#else
  (void)phase;
  return hn::LoadDup128(Float(), four);
#endif
}

/// Adds a vector's lanes, or takes the largest of them, to the number of the query of each.
HWY_INLINE void fold_sum(FloatVector vector, int phase, float* four) {
  alignas(64) float lanes[hn::MaxLanes(Float())];
  hn::Store(vector, Float(), lanes);
  for (std::size_t i = 0; i < hn::Lanes(Float()); ++i) four[(phase + i) % 4] += lanes[i];
}
HWY_INLINE void fold_max(FloatVector vector, int phase, float* four) {
  alignas(64) float lanes[hn::MaxLanes(Float())];
  hn::Store(vector, Float(), lanes);
  for (std::size_t i = 0; i < hn::Lanes(Float()); ++i) {
    four[(phase + i) % 4] = std::max(four[(phase + i) % 4], lanes[i]);
  }
}

/// Products to logits; brings the maxima of a block of queries up to date.
void finish_logits(const DecodeAttention& problem, const Tile& tile, int block,
                   const DecodeScratch& scratch) {
  const Float d;
  const std::size_t lanes = hn::Lanes(d), count = std::size_t{4} * tile.count;
  const std::size_t padded = (count + lanes - 1) / lanes * lanes;
  const auto scale = hn::Set(d, problem.scale);
  float* scores = scratch.scores;
  for (int phase = 0; phase < kPhases; ++phase) {
    const auto query_sum = of_queries(scratch.query_sum + 4 * block, phase);
    const auto unit = of_queries(scratch.query_unit + 4 * block, phase);
    for (std::size_t i = phase * lanes; i < padded; i += kPhases * lanes) {
      auto score = hn::LoadU(d, scores + i);
      if (tile.coded_keys) {
        const auto size = hn::LoadU(d, scratch.pairs + i);
        const auto zero = hn::LoadU(d, scratch.pairs + kColumn + i);
        score = hn::Mul(size, hn::NegMulAdd(zero, query_sum, hn::Mul(score, unit)));
      }
      score = hn::Mul(score, scale);
      if (problem.soft_cap > 0) {
        const auto cap = hn::Set(d, problem.soft_cap);
        score = hn::Mul(cap, hn::Tanh(d, hn::Div(score, cap)));
      }
      hn::StoreU(score, d, scores + i);
    }
  }
  std::fill(scores + count, scores + padded, kNothing);
  for (int phase = 0; phase < kPhases; ++phase) {
    auto highest = hn::Set(d, kNothing);
    for (std::size_t i = phase * lanes; i < padded; i += kPhases * lanes) {
      highest = hn::Max(highest, hn::LoadU(d, scores + i));
    }
    fold_max(highest, phase, scratch.maximum + 4 * block);
  }
}

/// Products to weights, times the value's scale where values are coded; brings maximum, sum,
/// offset and output of a block of queries up to date.
void softmax_tile(const DecodeAttention& problem, const Tile& tile, int block,
                  const DecodeScratch& scratch) {
  const Float d;
  const std::size_t lanes = hn::Lanes(d), count = std::size_t{4} * tile.count;
  const std::size_t padded = (count + lanes - 1) / lanes * lanes;
  const float* maximum = scratch.maximum + 4 * block;
  float before[4];
  std::copy_n(maximum, 4, before);
  finish_logits(problem, tile, block, scratch);
  for (int q = 0; q < 4; ++q) {
    if (before[q] == maximum[q]) continue;
    const float factor = std::exp(before[q] - maximum[q]);
    scratch.sum[4 * block + q] *= factor;
    scratch.offset[4 * block + q] *= factor;
    float* output = scratch.output + (4 * block + q) * scratch.value_stride;
    for (std::size_t i = 0; i < scratch.value_stride; i += lanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, output + i), hn::Set(d, factor)), d, output + i);
    }
  }
  float* scores = scratch.scores;
  for (int phase = 0; phase < kPhases; ++phase) {
    const auto reference = of_queries(maximum, phase);
    auto sum = hn::Zero(d), offset = hn::Zero(d);
    for (std::size_t i = phase * lanes; i < padded; i += kPhases * lanes) {
      auto weight = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + i), reference));
      sum = hn::Add(sum, weight);
      if (tile.coded_values) {
        weight = hn::Mul(weight, hn::LoadU(d, scratch.pairs + 2 * kColumn + i));
        offset = hn::MulAdd(weight, hn::LoadU(d, scratch.pairs + 3 * kColumn + i), offset);
      }
      hn::StoreU(weight, d, scores + i);
    }
    fold_sum(sum, phase, scratch.sum + 4 * block);
    fold_sum(offset, phase, scratch.offset + 4 * block);
  }
}

/// The products of a tile's keys with a block of queries.
void multiply_tile(const Tile& tile, int block, [[maybe_unused]] int dim,
                   const DecodeScratch& scratch) {
#if OSCAR_DECODE_INTEGERS
  if (tile.coded_keys) {
    using Whole = hn::ScalableTag<std::int16_t>;
    const std::int16_t* query = scratch.rounded_query + block * kDecodeQueries * dim;
    const std::size_t quarter = dim / 4;
    if (quarter % hn::Lanes(Whole()) == 0) {
      multiply_codes<Whole>(tile.keys, tile.count, query, quarter, scratch.scores);
    } else {
      multiply_codes<hn::CappedTag<std::int16_t, 16>>(tile.keys, tile.count, query, quarter,
                                                      scratch.scores);
    }
    return;
  }
#endif
  multiply_keys(scratch.keys, tile.count,
                scratch.query + block * kDecodeQueries * scratch.key_stride, scratch.key_stride,
                scratch.scores);
}

/// Zeros behind each row of a tile.
void clear_padding(float* rows, std::size_t dim, std::size_t stride) {
  for (int i = 0; dim < stride && i < kDecodeTile; ++i) {
    std::fill(rows + i * stride + dim, rows + (i + 1) * stride, 0.0f);
  }
}

/// Leaves maximum, sum and output of the part in scratch, [query heads].
void decode_part(const MixedCacheView& cache, const DecodeAttention& problem,
                 const DecodePart& part, const DecodeScratch& scratch) {
  const int queries = scratch.blocks * kDecodeQueries;
  const int dim = cache.key_codec.dim;
  std::fill_n(scratch.query, queries * scratch.key_stride, 0.0f);
  clear_padding(scratch.keys, dim, scratch.key_stride);
  clear_padding(scratch.values, cache.value_codec.dim, scratch.value_stride);
  std::fill_n(scratch.output, queries * scratch.value_stride, 0.0f);
  std::fill_n(scratch.pairs, 4 * kDecodeTile * kDecodeQueries, 0.0f);
  std::fill_n(scratch.scores, kDecodeTile * kDecodeQueries, 0.0f);
  for (int q = 0; q < queries; ++q) {
    float* query = scratch.query + q * scratch.key_stride;
    load_row(problem.query, part.request,
             part.kv_head * part.grouped + std::min(q, part.grouped - 1), query);
    float sum = 0;
    for (int i = 0; i < dim; ++i) sum += query[i];
    scratch.query_sum[q] = sum;
#if OSCAR_DECODE_INTEGERS
    scratch.query_unit[q] =
        stays_coded(cache.key_codec) ? round_row(query, dim, scratch.rounded_query + q * dim) : 1;
#else
    scratch.query_unit[q] = 1;
#endif
    scratch.maximum[q] = kNothing;
    scratch.sum[q] = scratch.offset[q] = 0;
  }
  for (std::int64_t begin = part.begin; begin < part.end;) {
    const Tile tile = load_tile(cache, part, begin,
                                std::min<std::int64_t>(kDecodeTile, part.end - begin), scratch);
    begin += tile.count;
#if OSCAR_DECODE_INTEGERS
    const std::size_t value_quarter = cache.value_codec.dim / 4;
    if (tile.coded_values) pair_rows(tile.values, tile.count, value_quarter, scratch.paired);
#endif
    for (int block = 0; block < scratch.blocks; ++block) {
      multiply_tile(tile, block, dim, scratch);
      softmax_tile(problem, tile, block, scratch);
      float* output = scratch.output + block * kDecodeQueries * scratch.value_stride;
#if OSCAR_DECODE_INTEGERS
      if (tile.coded_values) {
        float unit[kDecodeQueries];
        round_weights(scratch.scores, tile.count, unit, scratch.rounded_weights);
        add_weighted_codes(scratch.paired, (tile.count + 1) / 2, scratch.rounded_weights, unit,
                           value_quarter, scratch.value_stride, output);
        continue;
      }
#endif
      add_weighted_values(scratch.values, tile.count, scratch.scores, scratch.value_stride, output);
    }
  }
  for (int q = 0; q < queries; ++q) {
    float* output = scratch.output + q * scratch.value_stride;
    for (int i = 0; i < cache.value_codec.dim; ++i) output[i] -= scratch.offset[q];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar
HWY_AFTER_NAMESPACE();
#undef OSCAR_DECODE_INTEGERS

#if HWY_ONCE
namespace oscar {
HWY_EXPORT(decode_part);

namespace cpu {
namespace {

constexpr std::int64_t kPartTokens = 512;

/// The work, so ordered that the heads of one stretch of tokens follow each other: they share cache
/// lines.
std::vector<DecodePart> split(const MixedCacheView& cache, const DecodeAttention& problem) {
  std::vector<DecodePart> parts;
  const int grouped = problem.query.heads / cache.key_coded.heads;
  for (int r = 0; r < cache.count; ++r) {
    const std::int64_t length = cache.requests[r].length;
    const std::int64_t oldest =
        problem.sliding == 0 ? 0 : std::max<std::int64_t>(0, length - problem.sliding);
    for (std::int64_t begin = oldest; begin < length; begin += kPartTokens) {
      for (int head = 0; head < cache.key_coded.heads; ++head) {
        parts.push_back({r, head, grouped, begin, std::min(begin + kPartTokens, length)});
      }
    }
  }
  return parts;
}

void store(const MutableRows& rows, std::int64_t token, int head, int channel, float value) {
  const std::int64_t at = token * rows.token_stride + head * rows.head_stride + channel;
  if (rows.type == ElementType::fp32) {
    static_cast<float*>(rows.data)[at] = value;
  } else {
    static_cast<std::uint16_t*>(rows.data)[at] = float_to_bfloat16(value);
  }
}

}  // namespace

void attend(const MixedCacheView& cache, const DecodeAttention& problem) {
  const std::vector<DecodePart> parts = split(cache, problem);
  const int grouped = problem.query.heads / cache.key_coded.heads;
  const int dim = cache.key_codec.dim, value_dim = cache.value_codec.dim;
  Workspace workspace(DecodeScratch::floats(grouped, dim, value_dim));
  const std::size_t record = static_cast<std::size_t>(value_dim) + 2;  // output, maximum, sum
  std::vector<float> results(parts.size() * grouped * record);
  const auto total = static_cast<std::int64_t>(parts.size());
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t i = 0; i < total; ++i) {
    const DecodeScratch scratch(workspace.mine(), grouped, dim, value_dim);
    HWY_DYNAMIC_DISPATCH(decode_part)(cache, problem, parts[i], scratch);
    for (int g = 0; g < grouped; ++g) {
      float* out = results.data() + (i * grouped + g) * record;
      for (int c = 0; c < value_dim; ++c) out[c] = scratch.output[g * scratch.value_stride + c];
      out[value_dim] = scratch.maximum[g];
      out[value_dim + 1] = scratch.sum[g];
    }
  }
  const int heads = cache.key_coded.heads;
  std::vector<float> output(value_dim);
  for (std::int64_t first = 0; first < total;) {
    std::int64_t end = first + 1;
    while (end < total && parts[end].request == parts[first].request) ++end;
    for (int query = 0; query < heads * grouped; ++query) {
      const std::int64_t begin = first + query / grouped;  // then every heads-th part
      const auto result = [&](std::int64_t i) {
        return &results[(i * grouped + query % grouped) * record];
      };
      const bool extra = problem.sink_logits != nullptr;
      float maximum = extra ? problem.sink_logits[query] : -1e30f;
      for (std::int64_t i = begin; i < end; i += heads) {
        maximum = std::max(maximum, result(i)[value_dim]);
      }
      float sum = extra ? std::exp(problem.sink_logits[query] - maximum) : 0.0f;
      std::fill(output.begin(), output.end(), 0.0f);
      for (std::int64_t i = begin; i < end; i += heads) {
        const float weight = std::exp(result(i)[value_dim] - maximum);
        sum += weight * result(i)[value_dim + 1];
        for (int c = 0; c < value_dim; ++c) output[c] += weight * result(i)[c];
      }
      for (int c = 0; c < value_dim; ++c) {
        store(problem.output, parts[first].request, query, c, output[c] / sum);
      }
    }
    first = end;
  }
}

}  // namespace cpu
}  // namespace oscar
#endif
