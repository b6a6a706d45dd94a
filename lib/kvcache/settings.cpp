#include <algorithm>
#include <cmath>

#include "oscar/core/error.h"
#include "oscar/kvcache/codec.h"
#include "oscar/kvcache/rows.h"

namespace oscar {

ClipRule parse_clip_rule(std::string_view word) {
  if (word == "exact") return ClipRule::exact;
  if (word == "bisect") return ClipRule::bisect;
  fail_input("clip rule \"{}\" is not known; use exact or bisect", word);
}

ScaleType parse_scale_type(std::string_view word) {
  if (word == "fp32") return ScaleType::fp32;
  if (word == "bf16") return ScaleType::bf16;
  if (word == "fp16") return ScaleType::fp16;
  fail_input("scale type \"{}\" is not known; use fp32, bf16 or fp16", word);
}

const char* name_of(ClipRule rule) {
  return rule == ClipRule::exact ? "exact" : "bisect";
}

const char* name_of(ScaleType type) {
  switch (type) {
    case ScaleType::bf16:
      return "bf16";
    case ScaleType::fp16:
      return "fp16";
    default:
      return "fp32";
  }
}

std::size_t bytes_of(ScaleType type) {
  return type == ScaleType::fp32 ? 4 : 2;
}

const char* name_of(ElementType type) {
  return type == ElementType::fp32 ? "fp32" : "bf16";
}

std::size_t bytes_of(ElementType type) {
  return type == ElementType::fp32 ? 4 : 2;
}

int CodecSettings::clip_index() const {
  if (!(clip_ratio > 0)) return -1;
  if (clip_ratio >= 1) return dim - 1;
  return std::min(static_cast<int>(clip_ratio * dim), dim - 1);
}

std::size_t CodecSettings::bytes_per_row() const {
  return static_cast<std::size_t>(dim) / 4 +
         2 * static_cast<std::size_t>(groups()) * bytes_of(scale_type);
}

void CodecSettings::check() const {
  if (dim < 4 || dim > kMaxHeadDim || dim % 4 != 0) {
    fail_input("INT2 codec: head dimension {} is not a multiple of 4 from 4 to {}", dim,
               kMaxHeadDim);
  }
  if (group < 1 || dim % group != 0) {
    fail_input("INT2 codec: group {} does not divide the head dimension {}", group, dim);
  }
  if (levels == LevelRule::lloyd_max && group != dim) {
    fail_input("INT2 codec: Lloyd-Max levels need one group a row, not group {} of {} channels",
               group, dim);
  }
  if (std::isnan(clip_ratio)) fail_input("INT2 codec: the clip ratio is not a number");
  if (rule == ClipRule::bisect && clip_index() >= 0 && dim < 64) {
    fail_input(
        "INT2 codec: clip rule bisect needs a head dimension of at least 64, this one is {}; "
        "use exact",
        dim);
  }
}

}  // namespace oscar
