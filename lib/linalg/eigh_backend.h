#pragma once

#include <vector>

#include "oscar/linalg/eigh.h"

/// The back ends behind eigh(): matrices of one size n >= 1, checked and finite. Eigenvalues
/// ascending, the signs of the vectors as the library leaves them. Only lower triangles are read.
namespace oscar::cpu {
std::vector<Eigensystem> eigh_one_size(const std::vector<const Matrix*>& matrices);
}
namespace oscar::cuda {
std::vector<Eigensystem> eigh_one_size(const std::vector<const Matrix*>& matrices,
                                       int device_index);
}
