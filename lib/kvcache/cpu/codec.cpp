#include <algorithm>
#include <cstring>
#include <limits>

#include "kvcache/backend.h"
#include "kvcache/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvcache/cpu/codec.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file again for each instruction set.
#include "hwy/highway.h"
#include "kvcache/arithmetic.h"
#include "kvcache/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscar {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Lane = hn::ScalableTag<std::int16_t>;

/// A row on its way through the codec, as whole numbers: vectors of 16 bits hold twice as many of
/// them as of fp32. Arrays have room for a vector beyond the row.
struct Row {
  /// Values in the order of their bf16: negative ones are complemented. There is no -0.
  alignas(64) std::int16_t keys[kMaxHeadDim + 64];
  /// Padded to whole vectors with the largest number, which no threshold exceeds.
  alignas(64) std::int16_t magnitudes[kMaxHeadDim + 64];
  alignas(64) std::int16_t codes[kMaxHeadDim + 64];
  int padded;
};

/// Rounds to bf16 and makes every value finite (arithmetic::sanitise).
void read_row(const ConstRows& rows, std::int64_t token, int head, Row& row) {
  const Lane d;
  const int lanes = static_cast<int>(hn::Lanes(d)), dim = rows.dim;
  const std::int64_t offset = token * rows.token_stride + head * rows.head_stride;
  alignas(64) std::int16_t bits[kMaxHeadDim + 64];
  if (rows.type == ElementType::bf16) {
    std::memcpy(bits, static_cast<const std::uint16_t*>(rows.data) + offset, 2 * dim);
  } else {
    const float* in = static_cast<const float*>(rows.data) + offset;
    std::uint16_t rounded[kMaxHeadDim];
    narrow(in, dim, rounded);
    std::memcpy(bits, rounded, 2 * static_cast<std::size_t>(dim));
  }
  row.padded = (dim + lanes - 1) / lanes * lanes;
  for (int i = dim; i < row.padded; ++i) bits[i] = 0;
  const auto infinity = hn::Set(d, 0x7f80);
  const auto largest = hn::Set(d, static_cast<std::int16_t>(arithmetic::kLargestMagnitude));
  const auto all = hn::Set(d, 0x7fff);
  for (int i = 0; i < row.padded; i += lanes) {
    const auto value = hn::Load(d, bits + i);
    const auto given = hn::And(value, all);
    const auto magnitude = hn::IfThenZeroElse(hn::Gt(given, infinity), hn::Min(given, largest));
    const auto negative = hn::And(hn::Lt(value, hn::Zero(d)), hn::Gt(magnitude, hn::Zero(d)));
    hn::Store(magnitude, d, row.magnitudes + i);
    hn::Store(hn::IfThenElse(negative, hn::Not(magnitude), magnitude), d, row.keys + i);
  }
  for (int i = dim; i < row.padded; ++i) row.magnitudes[i] = 0x7fff;
}

int count_below(const Row& row, std::uint16_t limit) {
  const Lane d;
  const auto bound = hn::Set(d, static_cast<std::int16_t>(limit));
  std::size_t count = 0;
  for (int i = 0; i < row.padded; i += static_cast<int>(hn::Lanes(d))) {
    count += hn::CountTrue(d, hn::Lt(hn::Load(d, row.magnitudes + i), bound));
  }
  return static_cast<int>(count);
}

/// The smallest and the largest of values begin ... end - 1.
struct Extremes {
  std::int16_t lowest, highest;

  Extremes(const std::int16_t* values, int begin, int end) {
    const Lane d;
    const int lanes = static_cast<int>(hn::Lanes(d));
    if (end - begin < lanes) {
      const auto [low, high] = std::minmax_element(values + begin, values + end);
      lowest = *low;
      highest = *high;
      return;
    }
    // The last vector overlaps the one before it.
    auto low = hn::LoadU(d, values + end - lanes), high = low;
    for (int i = begin; i + lanes < end; i += lanes) {
      const auto value = hn::LoadU(d, values + i);
      low = hn::Min(low, value);
      high = hn::Max(high, value);
    }
    lowest = hn::GetLane(hn::MinOfLanes(d, low));
    highest = hn::GetLane(hn::MaxOfLanes(d, high));
  }
};

float clip_threshold(const CodecSettings& settings, const Row& row) {
  const int index = settings.clip_index();
  const int dim = settings.dim;
  if (index < 0) return std::numeric_limits<float>::infinity();
  if (settings.rule == ClipRule::exact) {
    return bfloat16_to_float(arithmetic::exact_threshold(
        index, [&](std::uint16_t limit) { return count_below(row, limit); }));
  }
  const std::int16_t high = Extremes(row.magnitudes, 0, dim).highest;
  return arithmetic::bisect_threshold(
      dim, index, bfloat16_to_float(static_cast<std::uint16_t>(high)), [&](std::uint16_t limit) {
        return dim - count_below(row, static_cast<std::uint16_t>(limit + 1));
      });
}

/// A bf16's place among Row::keys.
int key_of(std::uint16_t bits) {
  const auto value = static_cast<std::int16_t>(bits);
  return value < 0 ? value ^ 0x7fff : value;
}

arithmetic::ScaleZero encode_group(int begin, int end, float threshold, Row& row) {
  const auto [lowest, highest] = Extremes(row.keys, begin, end);
  const float low = std::max(arithmetic::ordered_bfloat16(lowest), -threshold);
  const float high = std::min(arithmetic::ordered_bfloat16(highest), threshold);
  const arithmetic::ScaleZero pair = arithmetic::scale_zero(low, high);
  const Lane d;
  const auto below = [&](int level) {  // the largest key that does not reach the level
    return hn::Set(d, static_cast<std::int16_t>(
                          key_of(arithmetic::code_boundary(level, pair, low, high)) - 1));
  };
  const auto first = below(1), second = below(2), third = below(3);
  for (int i = begin; i < end; i += static_cast<int>(hn::Lanes(d))) {
    const auto key = hn::LoadU(d, row.keys + i);
    const auto reached = hn::Add(
        hn::VecFromMask(d, hn::Gt(key, first)),
        hn::Add(hn::VecFromMask(d, hn::Gt(key, second)), hn::VecFromMask(d, hn::Gt(key, third))));
    hn::StoreU(hn::Neg(reached), d, row.codes + i);
  }
  return pair;
}

/// arithmetic::kPartialSums sums of f(channel), folded.
template <typename F>
float ordered_sum(int dim, F f) {
  float sums[arithmetic::kPartialSums] = {};
  for (int i = 0; i < dim; ++i) {
    float& sum = sums[i % arithmetic::kPartialSums];
    sum = arithmetic::add(sum, f(i));
  }
  for (int half = arithmetic::kPartialSums / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] = arithmetic::add(sums[i], sums[i + half]);
  }
  return sums[0];
}

arithmetic::ScaleZero encode_lloyd_max(int dim, float threshold, Row& row) {
  float values[kMaxHeadDim];
  for (int i = 0; i < dim; ++i) {
    values[i] = std::clamp(arithmetic::ordered_bfloat16(row.keys[i]), -threshold, threshold);
  }
  const auto count = static_cast<float>(dim);
  const float mean = arithmetic::divide(ordered_sum(dim, [&](int i) { return values[i]; }), count);
  const float squares = ordered_sum(dim, [&](int i) {
    const float difference = arithmetic::add(values[i], -mean);
    return arithmetic::multiply(difference, difference);
  });
  const arithmetic::LloydMax levels(mean, arithmetic::divide(squares, count));
  for (int i = 0; i < dim; ++i) row.codes[i] = static_cast<std::int16_t>(levels.code_of(values[i]));
  return levels.scale_zero();
}

/// Four codes to a byte.
void pack_codes(const Row& row, int quarter, std::uint8_t* out) {
  const Lane d;
  const hn::Rebind<std::uint8_t, Lane> bytes;
  const int lanes = static_cast<int>(hn::Lanes(d));
  alignas(64) std::uint8_t packed[kMaxHeadDim / 4 + 64];
  for (int i = 0; i < quarter; i += lanes) {
    const auto code = [&](int part) { return hn::LoadU(d, row.codes + part * quarter + i); };
    const auto low = hn::Or(code(0), hn::ShiftLeft<2>(code(1)));
    const auto high = hn::Or(hn::ShiftLeft<4>(code(2)), hn::ShiftLeft<6>(code(3)));
    hn::StoreU(hn::DemoteTo(bytes, hn::Or(low, high)), bytes, packed + i);
  }
  std::memcpy(out, packed, quarter);
}

void encode_rows(const EncodeJob& job, std::int64_t begin, std::int64_t end) {
  const CodecSettings& settings = job.settings;
  const ConstRows& rows = job.rows;
  const CodedRows& coded = job.coded;
  Row row;
  std::fill_n(row.codes, kMaxHeadDim + 64, std::int16_t{0});
  std::fill_n(row.keys, kMaxHeadDim + 64, std::int16_t{0});
  std::int64_t mapped = begin / rows.heads;
  int head = static_cast<int>(begin % rows.heads);
  for (std::int64_t index = begin; index < end; ++index) {
    const std::int64_t token = job.map.to == nullptr ? mapped : job.map.to[mapped];
    read_row(rows, job.map.from == nullptr ? mapped : job.map.from[mapped], head, row);
    const float threshold = clip_threshold(settings, row);
    if (job.thresholds != nullptr) job.thresholds[index] = threshold;
    const std::int64_t scale_offset =
        token * coded.scale_token_stride + head * coded.scale_head_stride;
    void* scales = static_cast<char*>(coded.scales_zeros) +
                   scale_offset * static_cast<std::int64_t>(bytes_of(settings.scale_type));
    for (int group = 0; group < settings.groups(); ++group) {
      const arithmetic::ScaleZero pair =
          settings.levels == LevelRule::lloyd_max
              ? encode_lloyd_max(settings.dim, threshold, row)
              : encode_group(group * settings.group, (group + 1) * settings.group, threshold, row);
      arithmetic::store_scale_zero(scales, settings.scale_type, group, pair);
    }
    pack_codes(row, settings.dim / 4,
               coded.codes + token * coded.code_token_stride + head * coded.code_head_stride);
    if (++head == rows.heads) {
      head = 0;
      ++mapped;
    }
  }
}

void decode_rows(const CodecSettings& settings, const ConstCodedRows& coded,
                 const MutableRows& rows, std::int64_t begin, std::int64_t end) {
  alignas(64) float values[kMaxHeadDim];
  for (std::int64_t index = begin; index < end; ++index) {
    const std::int64_t token = index / rows.heads;
    const int head = static_cast<int>(index % rows.heads);
    decode_row(settings, coded, token, head, values);
    store_row(rows, token, head, values);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscar {
HWY_EXPORT(encode_rows);
HWY_EXPORT(decode_rows);

namespace cpu {
namespace {

/// Rows that one thread takes at a time.
constexpr std::int64_t kChunk = 64;

}  // namespace

void encode(const EncodeJob& job) {
  const std::int64_t total = job.tokens() * job.rows.heads;
#pragma omp parallel for schedule(static)
  for (std::int64_t begin = 0; begin < total; begin += kChunk) {
    HWY_DYNAMIC_DISPATCH(encode_rows)(job, begin, std::min(begin + kChunk, total));
  }
}

void copy_rows(const CopyJob& job) {
  for (std::int64_t i = 0; i < job.map.count; ++i) {
    for (int head = 0; head < job.from.heads; ++head) {
      const std::int64_t from =
          (job.map.from == nullptr ? i : job.map.from[i]) * job.from.token_stride +
          head * job.from.head_stride;
      std::uint16_t* to = static_cast<std::uint16_t*>(job.to.data) +
                          (job.map.to == nullptr ? i : job.map.to[i]) * job.to.token_stride +
                          head * job.to.head_stride;
      if (job.from.type == ElementType::bf16) {
        std::copy_n(static_cast<const std::uint16_t*>(job.from.data) + from, job.from.dim, to);
      } else {
        std::transform(static_cast<const float*>(job.from.data) + from,
                       static_cast<const float*>(job.from.data) + from + job.from.dim, to,
                       float_to_bfloat16);
      }
    }
  }
}

void decode(const CodecSettings& settings, const ConstCodedRows& coded, const MutableRows& rows) {
  const std::int64_t total = rows.tokens * rows.heads;
#pragma omp parallel for schedule(static)
  for (std::int64_t begin = 0; begin < total; begin += kChunk) {
    HWY_DYNAMIC_DISPATCH(decode_rows)
    (settings, coded, rows, begin, std::min(begin + kChunk, total));
  }
}

}  // namespace cpu
}  // namespace oscar
#endif
