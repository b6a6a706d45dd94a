#pragma once

#include <array>

#include "oscar/statistics/statistics.h"

/// Every sum and sample of a layer by its name in the file: the one list behind zeros, merge,
/// check, save and load.
namespace oscar {

inline constexpr const char* kFormat = "oscar-statistics";
inline constexpr const char* kLayerFormat = "oscar-statistics-layer";
inline constexpr std::int64_t kFormatVersion = 1;

/// A field of one entry a KV head, whose last axis is head_dim or value_dim.
template <typename T>
struct LayerField {
  const char* name;
  std::vector<T> LayerStatistics::*member;
  int LayerStatistics::*dim;
};

inline constexpr std::array<LayerField<Matrix>, 5> kOuterFields = {{
    {"query_outer", &LayerStatistics::query_outer, &LayerStatistics::head_dim},
    {"key_outer", &LayerStatistics::key_outer, &LayerStatistics::head_dim},
    {"value_outer", &LayerStatistics::value_outer, &LayerStatistics::value_dim},
    {"output_outer", &LayerStatistics::output_outer, &LayerStatistics::value_dim},
    {"weighted_value_outer", &LayerStatistics::weighted_value_outer, &LayerStatistics::value_dim},
}};

inline constexpr std::array<LayerField<Vector>, 3> kSumFields = {{
    {"query_sum", &LayerStatistics::query_sum, &LayerStatistics::head_dim},
    {"key_sum", &LayerStatistics::key_sum, &LayerStatistics::head_dim},
    {"value_sum", &LayerStatistics::value_sum, &LayerStatistics::value_dim},
}};

inline constexpr std::array<LayerField<MatrixF>, 2> kSampleFields = {{
    {"key_samples", &LayerStatistics::key_samples, &LayerStatistics::head_dim},
    {"value_samples", &LayerStatistics::value_samples, &LayerStatistics::value_dim},
}};

/// Not a sum over tokens, and absent from files of older programs.
inline constexpr LayerField<Matrix> kOutputMetric = {
    "output_metric", &LayerStatistics::output_metric, &LayerStatistics::value_dim};

/// A group inside a layer's, absent from files of older programs: the sums of its half, and how
/// many of the layer's first samples are the half's.
inline constexpr const char* kHalf = "half";
inline constexpr const char* kHalfSamples = "samples";

/// Beside the samples, but absent from files of older programs.
inline constexpr const char* kSampleAttention = "sample_attention";

}  // namespace oscar
