#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "oscar/core/device.h"

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

/// The INT2 codec of one row of `dim` channels.
struct CodecSettings {
  int dim = 128;
  int group = 128;         ///< channels that share a scale and a zero; dim % group == 0, dim % 4 == 0
  float clip_ratio = 0;    ///< index = min(int(ratio·dim), dim - 1) of the sorted magnitudes; <= 0: off
  ClipRule rule = ClipRule::exact;
  ScaleType scale_type = ScaleType::fp32;

  int groups() const { return dim / group; }
  /// Throws InputError naming the limit that is broken.
  void check() const;
};

}  // namespace oscar
