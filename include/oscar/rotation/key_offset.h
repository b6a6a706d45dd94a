#pragma once

#include <string>
#include <vector>

#include "oscar/rotation/fit.h"

namespace oscar {

/// A head whose keys share a large constant: key biases put it there (Qwen2 and its kin).
struct KeyOffset {
  int layer = 0;
  int head = 0;
  double ratio = 0;  ///< length of the mean key over the root mean square distance from it
};

/// Above this a rotation that spreads the mean key over all channels spends most of the four levels
/// on it. Models without key biases were seen up to 1.6.
inline constexpr double kLargeKeyOffset = 3;

/// Heads above kLargeKeyOffset, the largest first.
std::vector<KeyOffset> large_key_offsets(const Statistics& statistics);

/// What to tell the user of a fit with these options: what was found and what can be done. Empty
/// where no head is in danger, or where keys are centred or their leading direction costs nothing
/// (composition r_o).
std::string key_offset_warning(const Statistics& statistics, const FitOptions& options);

}  // namespace oscar
