#include "oscar/linalg/power.h"

#include <gtest/gtest.h>

#include "linalg/random_matrix.h"
#include "oscar/core/error.h"
#include "support.h"

namespace oscar {
namespace {

using test::random_moment;

TEST(SymmetricPower, RootsAndInversesUndoEachOther) {
  const std::vector<Matrix> moments = {random_moment(16, 1), random_moment(24, 2)};
  const auto roots = symmetric_powers(moments, 0.5, Device{});
  const auto inverse_roots = symmetric_powers(moments, -0.5, Device{});
  for (std::size_t i = 0; i < moments.size(); ++i) {
    const auto size = moments[i].rows();
    EXPECT_LT((roots[i] * roots[i] - moments[i]).cwiseAbs().maxCoeff(), 1e-11);
    EXPECT_LT((roots[i] * inverse_roots[i] - Matrix::Identity(size, size)).cwiseAbs().maxCoeff(),
              1e-11);
    EXPECT_LT((roots[i] - roots[i].transpose()).cwiseAbs().maxCoeff(), 1e-13);
  }
}

TEST(SymmetricPower, RaisesSmallEigenvaluesToTheFloor) {
  const Matrix moment = Vector{{4, 1e-12, -1e-12}}.asDiagonal();
  const Matrix inverse = symmetric_powers({moment}, -1, Device{})[0];
  EXPECT_LT((inverse - Matrix(Vector{{0.25, 0.25e6, 0.25e6}}.asDiagonal())).cwiseAbs().maxCoeff(),
            1e-9);
  const Matrix gentle = symmetric_powers({moment}, -1, Device{}, 0.25)[0];
  EXPECT_LT((gentle - Matrix(Vector{{0.25, 1, 1}}.asDiagonal())).cwiseAbs().maxCoeff(), 1e-14);
}

TEST(SymmetricPower, RefusesAMatrixWithoutPositiveEigenvalues) {
  EXPECT_THROW_WITH(symmetric_powers({Matrix::Zero(3, 3)}, -0.5, Device{}), InputError, "positive");
}

}  // namespace
}  // namespace oscar
