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

namespace hn = hwy::HWY_NAMESPACE;

/// bf16 to fp32.
HWY_INLINE void widen(const std::uint16_t* HWY_RESTRICT in, int count, float* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> words;
  const hn::Rebind<std::uint16_t, decltype(d)> halves;
  const int lanes = static_cast<int>(hn::Lanes(d));
  int i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto wide = hn::PromoteTo(words, hn::LoadU(halves, in + i));
    hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(wide)), d, out + i);
  }
  for (; i < count; ++i) out[i] = bfloat16_to_float(in[i]);
}

/// fp32 to bf16, as float_to_bfloat16.
HWY_INLINE void narrow(const float* HWY_RESTRICT in, int count, std::uint16_t* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> words;
  const hn::RebindToSigned<decltype(d)> integers;
  const hn::Rebind<std::uint16_t, decltype(d)> halves;
  const int lanes = static_cast<int>(hn::Lanes(d));
  int i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::LoadU(d, in + i);
    const auto bits = hn::BitCast(words, value);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(upper, hn::Set(words, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fffu))));
    const auto quiet = hn::Or(upper, hn::Set(words, 0x40u));
    const auto chosen = hn::IfThenElse(hn::RebindMask(words, hn::IsNaN(value)), quiet, rounded);
    hn::StoreU(hn::DemoteTo(halves, hn::BitCast(integers, chosen)), halves, out + i);
  }
  for (; i < count; ++i) out[i] = float_to_bfloat16(in[i]);
}

/// One row as fp32.
HWY_INLINE void load_row(const ConstRows& rows, std::int64_t token, int head,
                         float* HWY_RESTRICT out) {
  const std::int64_t offset = token * rows.token_stride + head * rows.head_stride;
  if (rows.type == ElementType::fp32) {
    std::copy_n(static_cast<const float*>(rows.data) + offset, rows.dim, out);
  } else {
    widen(static_cast<const std::uint16_t*>(rows.data) + offset, rows.dim, out);
  }
}

/// Writes a row; bf16 rows are rounded.
HWY_INLINE void store_row(const MutableRows& rows, std::int64_t token, int head,
                          const float* HWY_RESTRICT in) {
  const std::int64_t offset = token * rows.token_stride + head * rows.head_stride;
  if (rows.type == ElementType::fp32) {
    std::copy_n(in, rows.dim, static_cast<float*>(rows.data) + offset);
  } else {
    narrow(in, rows.dim, static_cast<std::uint16_t*>(rows.data) + offset);
  }
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
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> integers;
  const hn::Rebind<std::uint8_t, decltype(d)> crumbs;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto three = hn::Set(integers, 3);
  for (int group = 0; group < settings.groups(); ++group) {
    const arithmetic::ScaleZero pair =
        arithmetic::load_scale_zero(scales, settings.scale_type, group);
    const int end = (group + 1) * settings.group;
    for (int channel = group * settings.group; channel < end;) {
      const int part = channel / quarter;
      const int stop = std::min(end, (part + 1) * quarter);
      const std::uint8_t* HWY_RESTRICT bytes = codes - part * quarter;
      const auto scale = hn::Set(d, pair.scale), zero = hn::Set(d, pair.zero);
      int i = channel;
      for (; i + lanes <= stop; i += lanes) {
        const auto four = hn::PromoteTo(integers, hn::LoadU(crumbs, bytes + i));
        const auto code = hn::And(hn::ShiftRightSame(four, 2 * part), three);
        hn::StoreU(hn::Mul(hn::Sub(hn::ConvertTo(d, code), zero), scale), d, out + i);
      }
      for (; i < stop; ++i) {
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
