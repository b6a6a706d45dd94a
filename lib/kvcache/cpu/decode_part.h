#pragma once

#include <cstddef>
#include <cstdint>

namespace oscar::cpu {

inline constexpr int kDecodeTile = 64;    // tokens
inline constexpr int kDecodeQueries = 4;  // query heads at a time

/// Tokens begin ... end - 1 of one request, all query heads of one KV head.
struct DecodePart {
  int request, kv_head, grouped;
  std::int64_t begin, end;
};

/// Where a part's numbers lie in a thread's scratch memory. Query heads come in blocks of
/// kDecodeQueries; rows are padded with zeros.
struct DecodeScratch {
  static constexpr std::size_t kPadding = 64;  ///< a quarter of a row is whole vectors

  std::size_t key_stride, value_stride;
  int blocks;
  float* query;      ///< [blocks·4][key_stride]
  float* query_sum;  ///< [blocks·4]
  /// The queries as 16-bit integers, [blocks·4][dim], and what one stands for, [blocks·4].
  std::int16_t* rounded_query;
  float* query_unit;
  float* keys;                    ///< [kDecodeTile][key_stride]
  float* values;                  ///< [kDecodeTile][value_stride]
  float* scores;                  ///< [kDecodeTile][4]
  std::int32_t* rounded_weights;  ///< of two tokens' scores, 16 bits each: [kDecodeTile / 2][4]
  std::uint8_t* paired;           ///< codes of two tokens' values side by side
  float* pairs;    ///< key scale, key zero, value scale, value zero: each [kDecodeTile][4]
  float* output;   ///< [blocks·4][value_stride]
  float* maximum;  ///< [blocks·4]
  float* sum;      ///< [blocks·4]
  float* offset;   ///< [blocks·4]: Σ p·s·z of the INT2 tier, to be taken off the output

  static std::size_t padded(std::size_t count) {
    return (count + kPadding - 1) / kPadding * kPadding;
  }
  static int blocks_of(int grouped) { return (grouped + kDecodeQueries - 1) / kDecodeQueries; }
  static std::size_t floats(int grouped, int dim, int value_dim) {
    const std::size_t queries = static_cast<std::size_t>(blocks_of(grouped)) * kDecodeQueries;
    return (queries + kDecodeTile) * (padded(dim) + padded(value_dim)) + 5 * padded(queries) +
           5 * kDecodeTile * kDecodeQueries + kDecodeTile / 2 * kDecodeQueries +
           queries * padded(dim) / 2 + kDecodeTile * padded(value_dim) / 16;
  }
  DecodeScratch(float* memory, int grouped, int dim, int value_dim)
      : key_stride(padded(dim)), value_stride(padded(value_dim)), blocks(blocks_of(grouped)) {
    const auto take = [&](std::size_t count) {
      float* part = memory;
      memory += count;
      return part;
    };
    const std::size_t queries = static_cast<std::size_t>(blocks) * kDecodeQueries;
    query = take(queries * key_stride);
    keys = take(kDecodeTile * key_stride);
    values = take(kDecodeTile * value_stride);
    output = take(queries * value_stride);
    scores = take(kDecodeTile * kDecodeQueries);
    pairs = take(4 * kDecodeTile * kDecodeQueries);
    rounded_weights = reinterpret_cast<std::int32_t*>(take(kDecodeTile / 2 * kDecodeQueries));
    rounded_query = reinterpret_cast<std::int16_t*>(take(queries * key_stride / 2));
    paired = reinterpret_cast<std::uint8_t*>(take(kDecodeTile * value_stride / 16));
    query_unit = take(padded(queries));
    query_sum = take(padded(queries));
    maximum = take(padded(queries));
    sum = take(padded(queries));
    offset = take(padded(queries));
  }
};

}  // namespace oscar::cpu
