#pragma once

#include <cstddef>
#include <cstdint>

namespace oscar::cpu {

inline constexpr int kDecodeTile = 64;

/// Tokens begin ... end - 1 of one request, all query heads of one KV head.
struct DecodePart {
  int request, kv_head, grouped;
  std::int64_t begin, end;
};

/// Where a part's numbers lie in a thread's scratch memory: [n][stride], a query head a column.
struct DecodeScratch {
  std::size_t stride;
  float* query;   ///< [D][stride]
  float* keys;    ///< [kDecodeTile][D]
  float* values;  ///< [kDecodeTile][Dv]
  float* scores;  ///< [kDecodeTile][stride]
  float* output;  ///< [Dv][stride]
  float* maximum;
  float* sum;

  static std::size_t padded(int grouped) {
    return (static_cast<std::size_t>(grouped) + 15) / 16 * 16;
  }
  static std::size_t floats(int grouped, int dim, int value_dim) {
    return padded(grouped) * (dim + value_dim + kDecodeTile + 2) +
           static_cast<std::size_t>(kDecodeTile) * (dim + value_dim) + 16 * 7;
  }
  DecodeScratch(float* memory, int grouped, int dim, int value_dim) : stride(padded(grouped)) {
    const auto take = [&](std::size_t count) {
      float* part = memory;
      memory += (count + 15) / 16 * 16;
      return part;
    };
    query = take(stride * dim);
    keys = take(static_cast<std::size_t>(kDecodeTile) * dim);
    values = take(static_cast<std::size_t>(kDecodeTile) * value_dim);
    scores = take(stride * kDecodeTile);
    output = take(stride * value_dim);
    maximum = take(stride);
    sum = take(stride);
  }
};

}  // namespace oscar::cpu
