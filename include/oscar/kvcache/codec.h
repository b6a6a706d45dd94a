#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "oscar/kvcache/execution.h"
#include "oscar/kvcache/rotate.h"
#include "oscar/kvcache/rows.h"

namespace oscar {

/// How a row's clip threshold is found (contract, section 2).
enum class ClipRule { exact, bisect };
/// How scales and zeros are stored; codes always come from the fp32 values.
enum class ScaleType { fp32, bf16, fp16 };

ClipRule parse_clip_rule(std::string_view word);    ///< Throws InputError for other words.
ScaleType parse_scale_type(std::string_view word);  ///< Throws InputError for other words.
const char* name_of(ClipRule rule);
const char* name_of(ScaleType type);
std::size_t bytes_of(ScaleType type);

/// Where the four levels of a group lie: evenly from its smallest to its largest value (contract,
/// section 2, step 3), or as Lloyd and Max place them for a Gaussian row (step 5: prefill only, one
/// group a row).
enum class LevelRule { uniform, lloyd_max };

/// The INT2 codec of one row of `dim` channels.
struct CodecSettings {
  int dim = 128;
  int group = 128;  ///< channels that share a scale and a zero; dim % group == 0, dim % 4 == 0
  double clip_ratio =
      0;  ///< index = min(int(ratio·dim), dim - 1) of the sorted magnitudes; <= 0: off
  ClipRule rule = ClipRule::exact;  ///< bisect needs dim >= 64
  ScaleType scale_type = ScaleType::fp32;
  LevelRule levels = LevelRule::uniform;  ///< lloyd_max needs group == dim

  int groups() const { return dim / group; }
  /// The index among the ascending magnitudes whose value is the clip threshold; -1 when clipping
  /// is off.
  int clip_index() const;
  /// Bytes of one coded row: dim / 4 of codes, and a scale and a zero for each group.
  std::size_t bytes_per_row() const;
  /// Throws InputError naming the limit that is broken. dim is at most kMaxHeadDim.
  void check() const;
};

inline constexpr int kMaxHeadDim = 512;

/// Coded rows in memory that the caller owns. `codes` holds dim / 4 bytes a row (byte i: channels
/// i, i + dim/4, i + dim/2, i + 3dim/4 in bit pairs 0, 2, 4, 6); `scales_zeros` 2·groups numbers of
/// the scale type (s0, z0, s1, z1, ...). Strides count bytes of codes and elements of scales_zeros.
struct ConstCodedRows {
  const std::uint8_t* codes = nullptr;
  const void* scales_zeros = nullptr;
  std::int64_t tokens = 0;
  int heads = 0;
  std::int64_t code_token_stride = 0;
  std::int64_t code_head_stride = 0;
  std::int64_t scale_token_stride = 0;
  std::int64_t scale_head_stride = 0;
};

/// The same, to be written.
struct CodedRows {
  std::uint8_t* codes = nullptr;
  void* scales_zeros = nullptr;
  std::int64_t tokens = 0;
  int heads = 0;
  std::int64_t code_token_stride = 0;
  std::int64_t code_head_stride = 0;
  std::int64_t scale_token_stride = 0;
  std::int64_t scale_head_stride = 0;

  /// Contiguous codes [tokens, heads, dim/4] and scales_zeros [tokens, heads, 2·groups].
  static CodedRows packed(std::uint8_t* codes, void* scales_zeros, std::int64_t tokens, int heads,
                          const CodecSettings& settings) {
    const std::int64_t bytes = settings.dim / 4, pairs = 2 * settings.groups();
    return {codes, scales_zeros, tokens, heads, heads * bytes, bytes, heads * pairs, pairs};
  }
  operator ConstCodedRows()
      const {  // NOLINT(google-explicit-constructor): as T* converts to const T*
    return {codes,
            scales_zeros,
            tokens,
            heads,
            code_token_stride,
            code_head_stride,
            scale_token_stride,
            scale_head_stride};
  }
};

/// Encodes rows to two bits a channel and back, exactly as contract, section 2; every back end
/// gives the same bits.
///
/// Rows are rounded to bf16 first (a no-op on rows that are bf16 already). Any input is defined:
/// NaN counts as 0, and magnitudes above 1.69e38 (infinities among them) as 1.69e38, so that a
/// group's range is always finite. A zero saturates at the largest bf16, and fp16 scales and
/// zeros at ±65504.
class Int2Codec {
 public:
  /// Throws InputError as CodecSettings::check.
  explicit Int2Codec(const CodecSettings& settings);

  const CodecSettings& settings() const { return settings_; }

  /// Encodes every row of `rows` [tokens, heads, dim] to the same token and head of `coded`. With
  /// `thresholds` [tokens, heads], also writes each row's clip threshold (infinity when clipping is
  /// off). Throws InputError where shapes disagree.
  void encode(const ConstRows& rows, const CodedRows& coded, const Execution& where = {},
              float* thresholds = nullptr) const;

  /// Writes (code - zero)·scale, in fp32 arithmetic on the stored scale and zero, rounded to the
  /// type of `rows`. Throws InputError where shapes disagree.
  void decode(const ConstCodedRows& coded, const MutableRows& rows,
              const Execution& where = {}) const;

 private:
  CodecSettings settings_;
};

/// Tokens that are taken from and written to places of a larger array, as those of a paged cache.
struct TokenMap {
  const std::int32_t* from = nullptr;  ///< [count] tokens of the rows read; null: 0, 1, 2, ...
  const std::int32_t* to = nullptr;    ///< [count] tokens of the rows written; null: 0, 1, 2, ...
  std::int64_t count = -1;             ///< -1: no map, every token to the same token
};

/// One tensor to encode: `rows` [tokens, heads, dim] to the same token and head of `coded`, or as
/// the map says. The map's entries lie where the operation runs and are not checked.
struct EncodeJob {
  CodecSettings settings;
  ConstRows rows;
  CodedRows coded;
  float* thresholds = nullptr;  ///< optional [tokens, heads], as in Int2Codec::encode
  TokenMap map;
  /// Optional: rows are multiplied by this first, as rotate_rows does with both roundings.
  Rotations rotation;
  /// Optional, with a rotation: the rotated rows, at the tokens and heads that were read.
  MutableRows rotated;

  std::int64_t tokens() const { return map.count < 0 ? rows.tokens : map.count; }
};

/// Encodes every job, as Int2Codec::encode would one by one. On CUDA, jobs of one kernel instance
/// share a launch, whatever their clip ratio: keys and values, of any number of layers.
void encode(std::span<const EncodeJob> jobs, const Execution& where = {});

}  // namespace oscar
