#include <Eigen/Eigenvalues>

#include "linalg/eigh_backend.h"
#include "oscar/core/error.h"

namespace oscar::cpu {

std::vector<Eigensystem> eigh_one_size(const std::vector<const Matrix*>& matrices) {
  const auto count = static_cast<std::ptrdiff_t>(matrices.size());
  std::vector<Eigensystem> result(matrices.size());
  std::vector<char> converged(matrices.size(), 0);
#pragma omp parallel for schedule(dynamic)
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(*matrices[i]);
    converged[i] = solver.info() == Eigen::Success;
    result[i].values = solver.eigenvalues();
    result[i].vectors = solver.eigenvectors();
  }
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    if (!converged[i]) {
      fail("the eigensolver did not converge for matrix {} of {} of size {}", i, count,
           matrices[i]->rows());
    }
  }
  return result;
}

}  // namespace oscar::cpu
