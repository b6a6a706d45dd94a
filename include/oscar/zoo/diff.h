#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "oscar/core/json.h"
#include "oscar/rotation/rotation_set.h"

namespace oscar {

/// How far two rotations of one layer (and KV head) are apart.
struct LayerDifference {
  int layer = 0;
  int head = 0;                    ///< 0 where one matrix serves the layer
  double relative_difference = 0;  ///< |A - B| / |A|, Frobenius
  double relative_difference_up_to_sign =
      0;  ///< the same after giving each column of B the better sign
  /// Largest principal angle, in degrees, between the subspaces of the leading quarter of the two
  /// eigenbases; only for R·H·P compositions, whose eigenbasis can be taken out again.
  std::optional<double> leading_angle_degrees;
};

struct RotationDiff {
  std::vector<LayerDifference> key, value;
  std::vector<std::string>
      notes;               ///< layers that only one of them has, other dimensions or granularity
  bool identical = false;  ///< every matrix equal, bit for bit
};

/// Compares two folders that hold a pair each, or two rotation files (then only `key` is filled).
/// Throws InputError if one cannot be read.
RotationDiff diff(const std::filesystem::path& a, const std::filesystem::path& b);

std::string to_text(const RotationDiff& difference);
OrderedJson to_json(const RotationDiff& difference);

}  // namespace oscar
