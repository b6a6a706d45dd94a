#include "rotation/objectives/uresidual.h"

#include <gtest/gtest.h>

#include "oscar/core/error.h"
#include "oscar/rotation/fit.h"
#include "rotation/example.h"
#include "support.h"

namespace oscar {
namespace {

TEST(ResidualMoment, OfRowsThatInt2Holds) {
  // Multiples of a third of the range come back exactly.
  const MatrixF rows{{0, 1, 2, 3}, {-3, 0, 3, 6}};
  EXPECT_LT(residual_moment(rows, Matrix::Identity(4, 4)).cwiseAbs().maxCoeff(), 1e-12);
}

TEST(ResidualMoment, OfAKnownRow) {
  // Range 3, scale 1: 0.25 is stored as 0, 1.75 as 2.
  const MatrixF rows{{0, 0.25f, 1.75f, 3}};
  Matrix expected = Matrix::Zero(4, 4);
  expected(1, 1) = expected(2, 2) = 0.0625;
  expected(1, 2) = expected(2, 1) = -0.0625;
  EXPECT_LT((residual_moment(rows, Matrix::Identity(4, 4)) - expected).cwiseAbs().maxCoeff(), 1e-7);
}

TEST(PairResidualWithImportance, SmallestMeetsLargest) {
  const Matrix identity = Matrix::Identity(3, 3);
  const Eigensystem residual{Vector{{1, 2, 3}}, identity}, importance{Vector{{5, 6, 7}}, identity};
  // Importance direction 2 (the largest) leads to residual direction 0 (the smallest).
  EXPECT_EQ(pair_residual_with_importance(residual, importance),
            (Matrix{{0, 0, 1}, {0, 1, 0}, {1, 0, 0}}));
}

TEST(Uresidual, NeedsRowSamples) {
  Statistics statistics = test::statistics_of({{3, test::random_rows(40, 4, 2, 16, 16, 1)}});
  statistics.layers.at(3).key_samples.clear();
  statistics.layers.at(3).value_samples.clear();
  FitOptions options;
  apply_objective(options, "uresidual");
  EXPECT_THROW_WITH(fit(statistics, options, Device{}), InputError,
                    "layer 3: uresidual needs at least 16 row samples");
}

}  // namespace
}  // namespace oscar
