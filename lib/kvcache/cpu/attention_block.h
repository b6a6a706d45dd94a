#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "oscar/kvcache/attention.h"

namespace oscar::cpu {

inline constexpr int kKeyTile = 64;

/// The queries of `count` consecutive tokens, all query heads of one KV head. Row r of the block is
/// token first + r / grouped, query head kv_head·grouped + r % grouped. Rows are the lanes of the
/// vectors, so that keys and values are read as they lie in memory and the softmax needs no
/// reduction across lanes.
struct AttentionBlock {
  int kv_head = 0;
  int grouped = 1;
  std::int64_t first = 0;
  int count = 0;

  int rows() const { return count * grouped; }
};

/// Where a block's intermediate numbers lie in a thread's scratch memory. `stride` is the padded
/// number of rows; [n][stride] is row-major.
struct AttentionScratch {
  std::size_t stride;
  float* query_exact;      ///< [D][stride]
  float* query_coded;      ///< [D][stride]; the same as query_exact where the inputs are
  float* keys_exact;       ///< [kKeyTile][D]
  float* keys_coded;       ///< [kKeyTile][D]
  float* values;           ///< [kKeyTile][Dv], one tier after the other
  float* scores_exact;     ///< [kKeyTile][stride], then the exact tier's probabilities
  float* scores_coded;     ///< [kKeyTile][stride], then the INT2 tier's
  float* output_exact;     ///< [Dv][stride]
  float* output_coded;     ///< [Dv][stride]; the same as output_exact where the outputs are
  float* maximum;          ///< [stride]
  float* sum;              ///< [stride]
  float* rescale;          ///< [stride]
  float* errors;           ///< [stride], one tile's squared logit errors
  std::int32_t* position;  ///< [stride]; rows of padding repeat the last

  static std::size_t padded_rows(int rows) {
    return (static_cast<std::size_t>(rows) + 15) / 16 * 16;
  }

  static std::size_t floats(int rows, int dim, int value_dim) {
    const std::size_t stride = padded_rows(rows);
    return stride * (2 * dim + 2 * value_dim + 2 * kKeyTile + 5) +
           static_cast<std::size_t>(kKeyTile) * (2 * dim + value_dim) + 16 * 14;
  }

  AttentionScratch(float* memory, int rows, int dim, int value_dim, bool one_query, bool one_output)
      : stride(padded_rows(rows)) {
    const auto take = [&](std::size_t count) {
      float* part = memory;
      memory += (count + 15) / 16 * 16;
      return part;
    };
    query_exact = take(stride * dim);
    query_coded = one_query ? query_exact : take(stride * dim);
    keys_exact = take(static_cast<std::size_t>(kKeyTile) * dim);
    keys_coded = take(static_cast<std::size_t>(kKeyTile) * dim);
    values = take(static_cast<std::size_t>(kKeyTile) * value_dim);
    scores_exact = take(stride * kKeyTile);
    scores_coded = take(stride * kKeyTile);
    output_exact = take(stride * value_dim);
    output_coded = one_output ? output_exact : take(stride * value_dim);
    maximum = take(stride);
    sum = take(stride);
    rescale = take(stride);
    errors = take(stride);
    position = reinterpret_cast<std::int32_t*>(take(stride));
  }
};

/// What a block sees of keys begin ... end - 1: each part a range relative to `begin`, possibly
/// empty.
struct KeyTile {
  std::int64_t begin;
  int count;
  int exact_begin, exact_end;  ///< keys that some row reads exactly
  int coded_begin, coded_end;  ///< keys that some row reads as INT2
  bool mixed;                  ///< both tiers occur
  bool masked;                 ///< some row does not see some key

  KeyTile(const AttentionBlock& block, const MixedWindow& window, std::int64_t tile_begin)
      : begin(tile_begin) {
    const std::int64_t first = block.first, last = block.first + block.count - 1;
    const std::int64_t end = std::min(begin + kKeyTile, last + 1);
    count = static_cast<int>(end - begin);
    // INT2 for some row: sink <= j <= last - recent. Exact for some row: j < sink or j > first -
    // recent.
    const auto within = [&](std::int64_t key) {
      return static_cast<int>(std::clamp<std::int64_t>(key - begin, 0, count));
    };
    coded_begin = within(window.sink);
    coded_end = std::max(coded_begin, within(last - window.recent + 1));
    exact_begin = begin < window.sink ? 0 : within(first - window.recent + 1);
    exact_end =
        end > first - window.recent + 1 ? count : std::max(exact_begin, within(window.sink));
    mixed = coded_end > coded_begin && exact_end > exact_begin;
    masked = end - 1 > first || (window.sliding > 0 && begin <= last - window.sliding);
  }
};

}  // namespace oscar::cpu
