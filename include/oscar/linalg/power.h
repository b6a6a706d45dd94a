#pragma once

#include <vector>

#include "oscar/core/device.h"
#include "oscar/linalg/eigh.h"
#include "oscar/linalg/matrix.h"

namespace oscar {

/// Eigenvalues below this fraction of the largest are raised to it before a power is taken, so that
/// negative powers of nearly singular moments stay bounded (contract, section 1).
inline constexpr double kEigenvalueFloor = 1e-6;

/// The symmetric matrix with the same eigenvectors and every eigenvalue raised to `exponent`:
/// 0.5 gives the square root, -0.5 the whitening matrix. Throws InputError if no eigenvalue is
/// positive.
Matrix symmetric_power(const Eigensystem& system, double exponent, double floor = kEigenvalueFloor);

/// The same for a batch of symmetric positive semidefinite matrices; one batched
/// eigendecomposition.
std::vector<Matrix> symmetric_powers(const std::vector<Matrix>& matrices, double exponent,
                                     const Device& device, double floor = kEigenvalueFloor);

}  // namespace oscar
