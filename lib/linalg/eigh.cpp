#include "oscar/linalg/eigh.h"

#include <cmath>
#include <map>

#include "linalg/eigh_backend.h"
#include "oscar/core/error.h"

namespace oscar {

namespace {

/// Back ends may round two entries of equal magnitude differently; the first of those within this
/// relative distance of the largest decides the sign, so that they agree.
constexpr double kSignTie = 1e-6;

void fix_signs(Matrix& vectors) {
  for (Eigen::Index column = 0; column < vectors.cols(); ++column) {
    const double threshold = vectors.col(column).cwiseAbs().maxCoeff() * (1 - kSignTie);
    Eigen::Index row = 0;
    while (std::abs(vectors(row, column)) < threshold) ++row;
    if (vectors(row, column) < 0) vectors.col(column) *= -1;
  }
}

void check(const Matrix& matrix, std::size_t index) {
  if (matrix.rows() != matrix.cols() || matrix.rows() == 0) {
    fail_input("matrix {} of the batch is {} x {}; an eigendecomposition needs a square one", index,
               matrix.rows(), matrix.cols());
  }
  if (!matrix.allFinite()) {
    fail_input("matrix {} of the batch holds a non-finite number", index);
  }
}

}  // namespace

std::vector<Eigensystem> eigh(const std::vector<Matrix>& matrices, const Device& device) {
  std::map<Eigen::Index, std::vector<std::size_t>> by_size;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    check(matrices[i], i);
    by_size[matrices[i].rows()].push_back(i);
  }
  std::vector<Eigensystem> result(matrices.size());
  for (const auto& [size, members] : by_size) {
    std::vector<const Matrix*> batch;
    for (const std::size_t i : members) batch.push_back(&matrices[i]);
    std::vector<Eigensystem> systems =
        device.is_cuda() ? cuda::eigh_one_size(batch, device.index) : cpu::eigh_one_size(batch);
    for (std::size_t j = 0; j < members.size(); ++j) {
      fix_signs(systems[j].vectors);
      result[members[j]] = std::move(systems[j]);
    }
  }
  return result;
}

}  // namespace oscar
