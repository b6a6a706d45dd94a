#pragma once

#include <vector>

#include "oscar/checkpoint/config.h"

namespace oscar {

/// Inverse frequencies of the D/2 rotated planes, in radians a position, and the factor on cosines
/// and sines: as transformers computes them for each kind of scaling. Plane i turns channels i and
/// i + D/2.
struct RopeFrequencies {
  std::vector<double> inverse;
  double attention_factor = 1.0;
};
RopeFrequencies rope_frequencies(const ModelConfig& config);

}  // namespace oscar
