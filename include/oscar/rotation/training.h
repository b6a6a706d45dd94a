#pragma once

#include <vector>

#include "oscar/core/device.h"
#include "oscar/rotation/objective.h"

namespace oscar {

/// How to train an orthogonal factor on top of a fitted transform.
struct TrainingOptions {
  int steps = 0;  ///< 0: no training
  double learning_rate = 5e-3;
};

/// What one matrix is trained on.
struct TrainingRows {
  std::vector<MatrixF> rows;    ///< [heads][n,D], as they would be stored before R (centred if so)
  std::vector<Matrix> metric;   ///< [heads][D,D]: an error e of a row costs e · metric · eᵀ ...
  std::vector<VectorF> weight;  ///< ... times the row's weight: [heads][n], of mean 1
};

/// Multiplies each matrix (and its read side) by an orthogonal factor that makes the mean cost of
/// the rows' quantisation error smallest: gradient descent through the codec's clip and rounding
/// (straight-through), Cayley's parametrisation, Adam with a cosine schedule. Starts from no
/// change; the same input gives the same bits on one device. All units are trained side by side.
/// Throws InputError if a unit has no rows.
void train(std::vector<FittedMatrix>& fitted, const std::vector<TrainingRows>& rows,
           double clip_ratio, const TrainingOptions& options, const Device& device);

}  // namespace oscar
