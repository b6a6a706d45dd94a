// Rows to fp32 and back, compiled once for each instruction set. Plain loops, which the compiler
// vectorises.
#if defined(OSCAR_KVCACHE_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef OSCAR_KVCACHE_ROWS_INL_H
#undef OSCAR_KVCACHE_ROWS_INL_H
#else
#define OSCAR_KVCACHE_ROWS_INL_H
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kvcache/arithmetic.h"
#include "oscar/kvcache/codec.h"
#include "oscar/kvcache/rows.h"

HWY_BEFORE_NAMESPACE();
namespace oscar {
namespace HWY_NAMESPACE {

/// One row as fp32.
HWY_INLINE void load_row(const ConstRows& rows, std::int64_t token, int head,
                         float* HWY_RESTRICT out) {
  const std::int64_t offset = token * rows.token_stride + head * rows.head_stride;
  if (rows.type == ElementType::fp32) {
    std::copy_n(static_cast<const float*>(rows.data) + offset, rows.dim, out);
    return;
  }
  const std::uint16_t* HWY_RESTRICT in = static_cast<const std::uint16_t*>(rows.data) + offset;
  for (int i = 0; i < rows.dim; ++i) out[i] = bfloat16_to_float(in[i]);
}

/// Writes element `channel` of a row; bf16 rows are rounded.
HWY_INLINE void store_element(const MutableRows& rows, std::int64_t offset, float value) {
  if (rows.type == ElementType::fp32) {
    static_cast<float*>(rows.data)[offset] = value;
  } else {
    static_cast<std::uint16_t*>(rows.data)[offset] = float_to_bfloat16(value);
  }
}

/// One coded row as fp32: (code - zero)·scale.
HWY_INLINE void decode_row(const CodecSettings& settings, const ConstCodedRows& coded,
                           std::int64_t token, int head, float* HWY_RESTRICT out) {
  const std::uint8_t* HWY_RESTRICT codes =
      coded.codes + token * coded.code_token_stride + head * coded.code_head_stride;
  const std::int64_t scale_offset =
      token * coded.scale_token_stride + head * coded.scale_head_stride;
  const void* scales = static_cast<const char*>(coded.scales_zeros) +
                       scale_offset * static_cast<std::int64_t>(bytes_of(settings.scale_type));
  const int quarter = settings.dim / 4;
  for (int group = 0; group < settings.groups(); ++group) {
    const arithmetic::ScaleZero pair =
        arithmetic::load_scale_zero(scales, settings.scale_type, group);
    const int end = (group + 1) * settings.group;
    for (int channel = group * settings.group; channel < end;) {
      const int part = channel / quarter;
      const int stop = std::min(end, (part + 1) * quarter);
      const std::uint8_t* HWY_RESTRICT bytes = codes - part * quarter;
      for (int i = channel; i < stop; ++i) {
        out[i] = arithmetic::value_of((bytes[i] >> (2 * part)) & 3, pair);
      }
      channel = stop;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar
HWY_AFTER_NAMESPACE();

#endif
