#pragma once

#include <random>
#include <string>

#include "oscar/core/hash.h"
#include "oscar/statistics/statistics.h"

namespace oscar::test {

/// Σ xᵀx of `rows` random rows.
inline Matrix random_outer(int dim, int rows, std::mt19937& engine) {
  std::normal_distribution<double> normal;
  Matrix x(rows, dim);
  for (Eigen::Index i = 0; i < x.size(); ++i) x.data()[i] = normal(engine);
  const Matrix sum = x.transpose() * x;
  return (sum + sum.transpose()) / 2;
}

inline LayerStatistics example_layer(unsigned seed, int samples = 0) {
  std::mt19937 engine(seed);
  LayerStatistics layer = LayerStatistics::zeros(2, 6, 4, 3);
  layer.tokens = 20;
  for (std::size_t h = 0; h < 2; ++h) {
    layer.query_outer[h] = random_outer(4, 60, engine);
    layer.key_outer[h] = random_outer(4, 20, engine);
    layer.value_outer[h] = random_outer(3, 20, engine);
    layer.output_outer[h] = random_outer(3, 60, engine);
    layer.weighted_value_outer[h] = random_outer(3, 20, engine);
    layer.query_sum[h] = random_outer(4, 1, engine).col(0);
    layer.key_sum[h] = random_outer(4, 1, engine).col(0);
    layer.value_sum[h] = random_outer(3, 1, engine).col(0);
    layer.output_metric.push_back(random_outer(3, 5, engine));
    if (samples > 0) {
      layer.key_samples.push_back(
          random_outer(4, samples, engine).replicate(samples, 1).topRows(samples).cast<float>());
      layer.value_samples.push_back(
          random_outer(3, samples, engine).replicate(samples, 1).topRows(samples).cast<float>());
    }
  }
  return layer;
}

/// The same with a half of 8 tokens, and the first `samples` / 2 rows.
inline LayerStatistics example_layer_with_half(unsigned seed, int samples) {
  LayerStatistics layer = example_layer(seed, samples);
  LayerStatistics half = example_layer(seed + 100);
  half.tokens = 8;
  half.output_metric.clear();
  for (std::size_t h = 0; h < 2; ++h) {
    layer.query_outer[h] += half.query_outer[h];
    layer.key_outer[h] += half.key_outer[h];
    layer.value_outer[h] += half.value_outer[h];
    layer.output_outer[h] += half.output_outer[h];
    layer.weighted_value_outer[h] += half.weighted_value_outer[h];
    if (samples == 0) continue;
    half.key_samples.emplace_back(layer.key_samples[h].topRows(samples / 2));
    half.value_samples.emplace_back(layer.value_samples[h].topRows(samples / 2));
  }
  layer.half.push_back(half);
  return layer;
}

/// Statistics of two layers, 3 and 7 (which keeps a half), whose numbers and dataset depend on the
/// seed.
inline Statistics example(unsigned seed, int samples = 0) {
  Statistics result;
  result.model = "a model";
  result.model_fingerprint = "weights";
  result.tokenizer_fingerprint = "words";
  result.dataset_sha256 = sha256_hex(std::to_string(seed));
  result.tool_version = "0.1.0";
  result.precision = "fp32";
  result.patch_sha256 = "cafe";
  result.tokens = 20;
  result.sequences = 2;
  result.sequence_length = 10 + seed;
  result.layers.emplace(3, example_layer(2 * seed, samples));
  result.layers.emplace(7, example_layer_with_half(2 * seed + 1, samples));
  return result;
}

}  // namespace oscar::test
