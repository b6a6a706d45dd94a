#include <cmath>

#include "oscar/core/error.h"
#include "oscar/kvcache/codec.h"
#include "support.h"

namespace oscar {
namespace {

TEST(CodecSettings, ParsesItsWords) {
  EXPECT_EQ(parse_clip_rule("bisect"), ClipRule::bisect);
  EXPECT_EQ(parse_scale_type("fp16"), ScaleType::fp16);
  for (const ScaleType type : {ScaleType::fp32, ScaleType::bf16, ScaleType::fp16}) {
    EXPECT_EQ(parse_scale_type(name_of(type)), type);
  }
  for (const ClipRule rule : {ClipRule::exact, ClipRule::bisect}) {
    EXPECT_EQ(parse_clip_rule(name_of(rule)), rule);
  }
  EXPECT_THROW_WITH(parse_clip_rule("quantile"), InputError, "exact or bisect");
  EXPECT_THROW_WITH(parse_scale_type("fp64"), InputError, "fp32, bf16 or fp16");
}

TEST(CodecSettings, IndexFollowsTheContract) {
  CodecSettings settings;
  settings.clip_ratio = 0.96;
  EXPECT_EQ(settings.clip_index(), 122);
  settings.clip_ratio = 0.92;
  EXPECT_EQ(settings.clip_index(), 117);
  settings.clip_ratio = 0;
  EXPECT_EQ(settings.clip_index(), -1);
  settings.clip_ratio = 1e30;
  EXPECT_EQ(settings.clip_index(), 127);
}

TEST(CodecSettings, CountsBytes) {
  CodecSettings settings;
  EXPECT_EQ(settings.bytes_per_row(), 40U);  // 32 of codes, 8 of scale and zero
  settings.group = 32;
  settings.scale_type = ScaleType::bf16;
  EXPECT_EQ(settings.bytes_per_row(), 48U);
}

TEST(CodecSettings, RefusesWhatTheCodecCannotDo) {
  const auto check = [](int dim, int group, double ratio, ClipRule rule) {
    CodecSettings settings;
    settings.dim = dim;
    settings.group = group;
    settings.clip_ratio = ratio;
    settings.rule = rule;
    settings.check();
  };
  check(8, 8, 0.96, ClipRule::exact);
  check(8, 8, 0, ClipRule::bisect);
  EXPECT_THROW_WITH(check(66, 66, 0, ClipRule::exact), InputError, "66");
  EXPECT_THROW_WITH(check(0, 1, 0, ClipRule::exact), InputError, "multiple of 4");
  EXPECT_THROW_WITH(check(-128, 128, 0, ClipRule::exact), InputError, "multiple of 4");
  EXPECT_THROW_WITH(check(1024, 1024, 0, ClipRule::exact), InputError, "512");
  EXPECT_THROW_WITH(check(128, 48, 0, ClipRule::exact), InputError, "group 48");
  EXPECT_THROW_WITH(check(128, 0, 0, ClipRule::exact), InputError, "group 0");
  EXPECT_THROW_WITH(check(128, 128, std::nan(""), ClipRule::exact), InputError, "not a number");
  EXPECT_THROW_WITH(check(32, 32, 0.96, ClipRule::bisect), InputError, "at least 64");
}

}  // namespace
}  // namespace oscar
