#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oscar/rotation/rotation_set.h"

namespace oscar {

enum class Health {
  good,
  weak,  ///< usable, but more calibration data would help: a warning
  bad,   ///< the data cannot support the rotation: a non-zero exit
};
const char* name_of(Health health);

/// What the eigenvalues of one rotation say about the data that it was fitted on.
struct MatrixHealth {
  Side side = Side::key;
  int layer = 0;
  int head = -1;             ///< -1: one matrix for the whole layer
  double participation = 0;  ///< (Σλ)²/Σλ²: how many directions carry the moment, 1 to dimension
  int rank = 0;              ///< eigenvalues above 1e-9 of the largest
  int dimension = 0;
  std::int64_t rows = 0;  ///< rows behind the moment; 0: unknown
  /// The most that the participation ratio could be: min(dimension, rows).
  double attainable() const;
};

struct HealthReport {
  Health verdict = Health::good;
  std::string message;  ///< plain words; for weak and bad: what was found and what to do
  std::vector<MatrixHealth> matrices;  ///< all that have eigenvalues of data
};

/// (Σλ)²/Σλ²; 0 if all are zero.
double participation_ratio(const VectorF& eigenvalues);

/// Judges one side by its eigenvalues and the tokens of its calibration block. Rotations without
/// data (equal eigenvalues, or none) are good. bad: fewer tokens than dimensions, a rank below the
/// dimension, or a typical (median) participation ratio below 1.5 % of the attainable one. weak:
/// fewer than 16 tokens a dimension, or single matrices below 1.5 %. Healthy models that were
/// looked at have medians of 5 to 80 % and no layer below 1.7 %.
HealthReport check_health(const RotationSet& rotations);

/// The worse verdict of the two sides, with both messages.
HealthReport check_health(const RotationPair& pair);

}  // namespace oscar
