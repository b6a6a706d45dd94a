#include <algorithm>
#include <cmath>
#include <vector>

#include "kvcache/backend.h"
#include "kvcache/cpu/decode_part.h"
#include "kvcache/cpu/targets.h"
#include "kvcache/cpu/workspace.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvcache/cpu/decode.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file again for each instruction set.
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

/// Rows of fp32. Both kinds of rows give vector i of each quarter of a row in order.
struct FloatRows {
  const float* data;
  std::size_t stride, quarter;

  struct Cursor {
    const float* at;
    std::size_t quarter;
    HWY_INLINE FloatVector next() {
      const FloatVector value = hn::LoadU(Float(), at);
      at += quarter;
      return value;
    }
  };
  HWY_INLINE Cursor cursor(int row, std::size_t i, int first_quarter) const {
    return {data + row * stride + first_quarter * quarter + i, quarter};
  }
};

/// Rows of codes: byte i holds channel i of each quarter. Their values are the codes themselves.
struct CodedTileRows {
  const std::uint8_t* const* rows;

  struct Cursor {
    hn::Vec<hn::RebindToSigned<Float>> crumbs;
    HWY_INLINE FloatVector next() {
      const hn::RebindToSigned<Float> integers;
      const FloatVector value = hn::ConvertTo(Float(), hn::And(crumbs, hn::Set(integers, 3)));
      crumbs = hn::ShiftRight<2>(crumbs);
      return value;
    }
  };
  HWY_INLINE Cursor cursor(int row, std::size_t i, int first_quarter) const {
    const hn::RebindToSigned<Float> integers;
    const hn::Rebind<std::uint8_t, Float> bytes;
    const auto four = hn::PromoteTo(integers, hn::LoadU(bytes, rows[row] + i));
    return {first_quarter == 0 ? four : hn::ShiftRight<4>(four)};
  }
};

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

/// scores[count][4] = rows · the four queries, [4][stride]. May write three rows more.
template <class Rows>
void multiply_keys(const Rows& rows, int count, const float* HWY_RESTRICT query, std::size_t stride,
                   std::size_t quarter, float* HWY_RESTRICT scores) {
  const Float d;
  const std::size_t lanes = hn::Lanes(d);
  for (int key = 0; key < count; key += kKeysAtOnce) {
    FloatVector sum[kKeysAtOnce][4];
    for (int k = 0; k < kKeysAtOnce; ++k) {
      for (int q = 0; q < 4; ++q) sum[k][q] = hn::Zero(d);
    }
    for (std::size_t i = 0; i < quarter; i += lanes) {
      typename Rows::Cursor cursors[kKeysAtOnce];
      for (int k = 0; k < kKeysAtOnce; ++k) {
        cursors[k] = rows.cursor(std::min(key + k, count - 1), i, 0);
      }
      for (int m = 0; m < 4; ++m) {
        FloatVector right[4];
        for (int q = 0; q < 4; ++q) right[q] = hn::LoadU(d, query + q * stride + m * quarter + i);
        for (int k = 0; k < kKeysAtOnce; ++k) {
          const FloatVector value = cursors[k].next();
          for (int q = 0; q < 4; ++q) sum[k][q] = hn::MulAdd(value, right[q], sum[k][q]);
        }
      }
    }
    for (int k = 0; k < kKeysAtOnce; ++k) sum_lanes(sum[k], scores + 4 * (key + k));
  }
}

/// output[4][stride] += weights[count][4]ᵀ · rows
template <class Rows>
void add_weighted_values(const Rows& rows, int count, const float* HWY_RESTRICT weights,
                         std::size_t stride, std::size_t quarter, float* HWY_RESTRICT output) {
  const Float d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < quarter; i += lanes) {
    for (int first = 0; first < 4; first += kQuartersAtOnce) {
      FloatVector sum[kQuartersAtOnce][4];
      float* out = output + first * quarter + i;
      for (int m = 0; m < kQuartersAtOnce; ++m) {
        for (int q = 0; q < 4; ++q) sum[m][q] = hn::LoadU(d, out + q * stride + m * quarter);
      }
      for (int key = 0; key < count; ++key) {
        FloatVector weight[4];
        for (int q = 0; q < 4; ++q) weight[q] = hn::Set(d, weights[4 * key + q]);
        typename Rows::Cursor cursor = rows.cursor(key, i, first);
        for (int m = 0; m < kQuartersAtOnce; ++m) {
          const FloatVector value = cursor.next();
          for (int q = 0; q < 4; ++q) sum[m][q] = hn::MulAdd(value, weight[q], sum[m][q]);
        }
      }
      for (int m = 0; m < kQuartersAtOnce; ++m) {
        for (int q = 0; q < 4; ++q) hn::StoreU(sum[m][q], d, out + q * stride + m * quarter);
      }
    }
  }
}

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
  return codec.group == codec.dim && codec.dim % (4 * static_cast<int>(hn::Lanes(Float()))) == 0;
}

/// Scale and zero of a coded row four times each, as the scores lie.
HWY_INLINE void load_pair(const CodecSettings& codec, const ConstCodedRows& coded,
                          std::int64_t place, int head, float* scale, float* zero) {
  const std::int64_t at = place * coded.scale_token_stride + head * coded.scale_head_stride;
  const arithmetic::ScaleZero pair =
      arithmetic::load_scale_zero(static_cast<const char*>(coded.scales_zeros) +
                                      at * static_cast<std::int64_t>(bytes_of(codec.scale_type)),
                                  codec.scale_type, 0);
  std::fill_n(scale, kDecodeQueries, pair.scale);
  std::fill_n(zero, kDecodeQueries, pair.zero);
}

/// Tokens from `begin` on, of one tier, at most `count`.
Tile load_tile(const MixedCacheView& cache, const DecodePart& part, std::int64_t begin,
               std::int64_t count, const DecodeScratch& scratch) {
  const RequestTiers& request = cache.requests[part.request];
  const int head = part.kv_head;
  const std::int64_t index = begin - request.sink;
  const bool coded = index >= 0 && index < request.coded;
  const std::int64_t tier_end = index < 0 ? request.sink
                                : coded   ? std::int64_t{request.sink} + request.coded
                                          : begin + count;
  Tile tile;
  tile.count = static_cast<int>(std::min(count, tier_end - begin));
  tile.coded_keys = coded && stays_coded(cache.key_codec);
  tile.coded_values = coded && stays_coded(cache.value_codec);
  for (int i = 0; i < tile.count; ++i) {
    float* key = scratch.keys + i * scratch.key_stride;
    float* value = scratch.values + i * scratch.value_stride;
    if (coded) {
      const std::int64_t token = index + i;
      const std::int64_t page =
          cache.block_table[request.slot * cache.pages_per_slot + token / kPageTokens];
      const std::int64_t place = page * kPageTokens + token % kPageTokens;
      const auto codes = [&](const ConstCodedRows& rows) {
        return rows.codes + place * rows.code_token_stride + head * rows.code_head_stride;
      };
      float* pairs = scratch.pairs + i * kDecodeQueries;
      if (tile.coded_keys) {
        tile.keys[i] = codes(cache.key_coded);
        load_pair(cache.key_codec, cache.key_coded, place, head, pairs, pairs + kColumn);
      } else {
        decode_row(cache.key_codec, cache.key_coded, place, head, key);
      }
      if (tile.coded_values) {
        tile.values[i] = codes(cache.value_coded);
        load_pair(cache.value_codec, cache.value_coded, place, head, pairs + 2 * kColumn,
                  pairs + 3 * kColumn);
      } else {
        decode_row(cache.value_codec, cache.value_coded, place, head, value);
      }
    } else if (index < 0) {
      const std::int64_t place = std::int64_t{request.slot} * cache.sink_places + begin + i;
      load_row(cache.key_sink, place, head, key);
      load_row(cache.value_sink, place, head, value);
    } else {
      const std::int64_t place =
          std::int64_t{request.slot} * cache.ring_places + (index + i) % cache.ring_places;
      load_row(cache.key_recent, place, head, key);
      load_row(cache.value_recent, place, head, value);
    }
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
    for (std::size_t i = phase * lanes; i < padded; i += kPhases * lanes) {
      auto score = hn::LoadU(d, scores + i);
      if (tile.coded_keys) {
        const auto size = hn::LoadU(d, scratch.pairs + i);
        const auto zero = hn::LoadU(d, scratch.pairs + kColumn + i);
        score = hn::Mul(size, hn::NegMulAdd(zero, query_sum, score));
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

/// Leaves maximum, sum and output of the part in scratch, [query heads].
void decode_part(const MixedCacheView& cache, const DecodeAttention& problem,
                 const DecodePart& part, const DecodeScratch& scratch) {
  const int queries = scratch.blocks * kDecodeQueries;
  const int dim = cache.key_codec.dim;
  const std::size_t key_quarter = stays_coded(cache.key_codec) ? dim / 4 : scratch.key_stride / 4;
  const std::size_t value_quarter =
      stays_coded(cache.value_codec) ? cache.value_codec.dim / 4 : scratch.value_stride / 4;
  std::fill_n(scratch.query, queries * scratch.key_stride, 0.0f);
  std::fill_n(scratch.keys, kDecodeTile * scratch.key_stride, 0.0f);
  std::fill_n(scratch.values, kDecodeTile * scratch.value_stride, 0.0f);
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
    scratch.maximum[q] = kNothing;
    scratch.sum[q] = scratch.offset[q] = 0;
  }
  const FloatRows keys{scratch.keys, scratch.key_stride, key_quarter};
  const FloatRows values{scratch.values, scratch.value_stride, value_quarter};
  for (std::int64_t begin = part.begin; begin < part.end;) {
    const Tile tile = load_tile(cache, part, begin,
                                std::min<std::int64_t>(kDecodeTile, part.end - begin), scratch);
    begin += tile.count;
    for (int block = 0; block < scratch.blocks; ++block) {
      const float* query = scratch.query + block * kDecodeQueries * scratch.key_stride;
      float* output = scratch.output + block * kDecodeQueries * scratch.value_stride;
      if (tile.coded_keys) {
        multiply_keys(CodedTileRows{tile.keys}, tile.count, query, scratch.key_stride, key_quarter,
                      scratch.scores);
      } else {
        multiply_keys(keys, tile.count, query, scratch.key_stride, key_quarter, scratch.scores);
      }
      softmax_tile(problem, tile, block, scratch);
      if (tile.coded_values) {
        add_weighted_values(CodedTileRows{tile.values}, tile.count, scratch.scores,
                            scratch.value_stride, value_quarter, output);
      } else {
        add_weighted_values(values, tile.count, scratch.scores, scratch.value_stride, value_quarter,
                            output);
      }
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

#if HWY_ONCE
namespace oscar {
HWY_EXPORT(decode_part);

namespace cpu {
namespace {

constexpr std::int64_t kPartTokens = 2048;

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
