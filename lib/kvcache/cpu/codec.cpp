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

/// A row on its way through the codec. Magnitudes are padded to whole vectors with the largest
/// number, which no threshold exceeds.
struct Row {
  alignas(64) float values[kMaxHeadDim];
  alignas(64) std::int16_t magnitudes[kMaxHeadDim + 64];
  alignas(64) std::uint8_t codes[kMaxHeadDim];
  int padded;
};

/// Rounds to bf16, makes every value finite, and keeps the magnitudes' bits for counting.
void read_row(const ConstRows& rows, std::int64_t token, int head, Row& row) {
  const std::int64_t offset = token * rows.token_stride + head * rows.head_stride;
  std::uint16_t bits[kMaxHeadDim];
  if (rows.type == ElementType::bf16) {
    std::copy_n(static_cast<const std::uint16_t*>(rows.data) + offset, rows.dim, bits);
  } else {
    const float* in = static_cast<const float*>(rows.data) + offset;
    for (int i = 0; i < rows.dim; ++i) bits[i] = float_to_bfloat16(in[i]);
  }
  for (int i = 0; i < rows.dim; ++i) {
    const std::uint16_t clean = arithmetic::sanitise(bits[i]);
    row.values[i] = bfloat16_to_float(clean);
    row.magnitudes[i] = static_cast<std::int16_t>(clean & 0x7fffu);
  }
  const int lanes = static_cast<int>(hn::Lanes(hn::ScalableTag<std::int16_t>()));
  row.padded = (rows.dim + lanes - 1) / lanes * lanes;
  for (int i = rows.dim; i < row.padded; ++i) row.magnitudes[i] = 0x7fff;
}

int count_below(const Row& row, std::uint16_t limit) {
  const hn::ScalableTag<std::int16_t> d;
  const auto bound = hn::Set(d, static_cast<std::int16_t>(limit));
  std::size_t count = 0;
  for (int i = 0; i < row.padded; i += static_cast<int>(hn::Lanes(d))) {
    count += hn::CountTrue(d, hn::Lt(hn::Load(d, row.magnitudes + i), bound));
  }
  return static_cast<int>(count);
}

float clip_threshold(const CodecSettings& settings, const Row& row) {
  const int index = settings.clip_index();
  const int dim = settings.dim;
  if (index < 0) return std::numeric_limits<float>::infinity();
  if (settings.rule == ClipRule::exact) {
    return bfloat16_to_float(arithmetic::exact_threshold(
        index, [&](std::uint16_t limit) { return count_below(row, limit); }));
  }
  const std::int16_t high = *std::max_element(row.magnitudes, row.magnitudes + dim);
  return arithmetic::bisect_threshold(
      dim, index, bfloat16_to_float(static_cast<std::uint16_t>(high)), [&](std::uint16_t limit) {
        return dim - count_below(row, static_cast<std::uint16_t>(limit + 1));
      });
}

void encode_group(int begin, int end, arithmetic::ScaleZero& pair, Row& row) {
  float low = row.values[begin], high = low;
  for (int i = begin; i < end; ++i) {
    low = row.values[i] < low ? row.values[i] : low;
    high = row.values[i] > high ? row.values[i] : high;
  }
  pair = arithmetic::scale_zero(low, high);
  const arithmetic::ScaleZero group = pair;
  for (int i = begin; i < end; ++i) {
    row.codes[i] = static_cast<std::uint8_t>(arithmetic::code_of(row.values[i], group));
  }
}

void encode_rows(const CodecSettings& settings, const ConstRows& rows, const CodedRows& coded,
                 float* thresholds, std::int64_t begin, std::int64_t end) {
  Row row;
  const int quarter = settings.dim / 4;
  for (std::int64_t index = begin; index < end; ++index) {
    const std::int64_t token = index / rows.heads;
    const int head = static_cast<int>(index % rows.heads);
    read_row(rows, token, head, row);
    const float threshold = clip_threshold(settings, row);
    if (thresholds != nullptr) thresholds[index] = threshold;
    for (int i = 0; i < settings.dim; ++i) {
      const float value = row.values[i];
      row.values[i] = value > threshold ? threshold : (value < -threshold ? -threshold : value);
    }
    const std::int64_t scale_offset =
        token * coded.scale_token_stride + head * coded.scale_head_stride;
    void* scales = static_cast<char*>(coded.scales_zeros) +
                   scale_offset * static_cast<std::int64_t>(bytes_of(settings.scale_type));
    for (int group = 0; group < settings.groups(); ++group) {
      arithmetic::ScaleZero pair;
      encode_group(group * settings.group, (group + 1) * settings.group, pair, row);
      arithmetic::store_scale_zero(scales, settings.scale_type, group, pair);
    }
    std::uint8_t* out =
        coded.codes + token * coded.code_token_stride + head * coded.code_head_stride;
    for (int i = 0; i < quarter; ++i) {
      out[i] = static_cast<std::uint8_t>(row.codes[i] | row.codes[i + quarter] << 2 |
                                         row.codes[i + 2 * quarter] << 4 |
                                         row.codes[i + 3 * quarter] << 6);
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
    const std::int64_t offset = token * rows.token_stride + head * rows.head_stride;
    for (int i = 0; i < rows.dim; ++i) store_element(rows, offset + i, values[i]);
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

void encode(const CodecSettings& settings, const ConstRows& rows, const CodedRows& coded,
            float* thresholds) {
  const std::int64_t total = rows.tokens * rows.heads;
#pragma omp parallel for schedule(static)
  for (std::int64_t begin = 0; begin < total; begin += kChunk) {
    HWY_DYNAMIC_DISPATCH(encode_rows)
    (settings, rows, coded, thresholds, begin, std::min(begin + kChunk, total));
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
