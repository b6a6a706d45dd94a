#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "oscar/kvcache/attention.h"
#include "oscar/kvcache/codec.h"

/// The contract's mathematics as plainly as it can be written: what the back ends are tested
/// against.
namespace oscar::test {

/// One row's codes (a byte a channel), scales, zeros and threshold.
struct ReferenceRow {
  float threshold;
  std::vector<float> scales, zeros;
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> packed() const;
};

/// Contract, section 2, steps 2 and 3, on one finite bf16 row.
ReferenceRow encode_reference(const CodecSettings& settings, const float* row);

/// The scale or zero as it comes back from the cache.
float stored(ScaleType type, float value);

/// A whole attention problem in plain memory, float32, [tokens][heads][dim], and its answer.
struct ReferenceAttention {
  std::int64_t tokens;
  int query_heads, kv_heads, dim, value_dim;
  float scale;
  MixedWindow window;
  std::int64_t first_query;
  std::vector<float> query_exact, query_coded, key_exact, value_exact, key_coded, value_coded;
  std::vector<double> output_exact, output_coded, error_sums;

  /// Fills the answers: every query against every key, in float64.
  void compute();
};

std::vector<float> random_rows(std::size_t count, std::mt19937& random);
std::vector<std::uint16_t> to_bfloat16(const std::vector<float>& values);
std::vector<float> from_bfloat16(const std::vector<std::uint16_t>& bits);
/// ‖a - b‖ / ‖b‖; NaN when anything is.
double relative_error(const std::vector<float>& a, const std::vector<double>& b);

}  // namespace oscar::test
