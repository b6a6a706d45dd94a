#pragma once

#include <vector>

#include "oscar/core/device.h"
#include "oscar/linalg/matrix.h"

namespace oscar {

/// A symmetric matrix taken apart: matrix = vectors · diag(values) · vectorsᵀ.
struct Eigensystem {
  Vector values;  ///< ascending
  Matrix
      vectors;  ///< eigenvectors as columns; each column's entry of largest magnitude is positive
};

/// Eigensystems of a batch of symmetric float64 matrices, which may differ in size (each size is
/// one batched call). Only the lower triangles are read. CUDA: cuSOLVER (XsyevBatched, or
/// syevjBatched where the toolkit has no XsyevBatched); CPU: Eigen. Both agree up to rounding,
/// except inside the eigenspace of a repeated eigenvalue. Throws InputError for a non-square matrix
/// or a non-finite entry, Error if the solver does not converge.
std::vector<Eigensystem> eigh(const std::vector<Matrix>& matrices, const Device& device);

}  // namespace oscar
