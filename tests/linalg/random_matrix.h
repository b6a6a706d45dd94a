#pragma once

#include <random>

#include "oscar/linalg/matrix.h"

namespace oscar::test {

/// Standard normal entries; the same seed gives the same matrix.
inline Matrix random_matrix(Eigen::Index rows, Eigen::Index columns, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  Matrix result(rows, columns);
  for (Eigen::Index i = 0; i < result.size(); ++i) result.data()[i] = normal(engine);
  return result;
}

/// A second moment: XᵀX of 2·size random rows.
inline Matrix random_moment(Eigen::Index size, unsigned seed) {
  const Matrix rows = random_matrix(2 * size, size, seed);
  const Matrix moment = rows.transpose() * rows;
  return (moment + moment.transpose()) / 2;
}

}  // namespace oscar::test
