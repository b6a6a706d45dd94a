#pragma once

#include <string_view>

#include "oscar/kvcache/codec.h"
#include "oscar/kvcache/rows.h"

/// Shape checks that the operations share. `name` is what the message calls the argument.
namespace oscar::checks {

/// Limits that no cache reaches, so that back ends may count tokens in 32 bits and heads in a
/// grid's axis.
inline constexpr std::int64_t kMaxTokens = 0x7fffffff;
inline constexpr int kMaxHeads = 0xffff;

/// Data is there, the shape is [tokens, heads, dim], and it is within the limits.
void rows(std::string_view name, const ConstRows& rows, std::int64_t tokens, int heads, int dim);
/// Data is there, and the shape is [tokens, heads].
void coded(std::string_view name, const ConstCodedRows& coded, std::int64_t tokens, int heads);

}  // namespace oscar::checks
