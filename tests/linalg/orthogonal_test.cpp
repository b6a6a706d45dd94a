#include "oscar/linalg/orthogonal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "linalg/random_matrix.h"
#include "oscar/core/error.h"
#include "oscar/linalg/eigh.h"
#include "support.h"

namespace oscar {
namespace {

TEST(DualityError, IsZeroWhereTheReadSideIsTheInverseTransposed) {
  const MatrixF write{{2, 1}, {0, 4}}, read{{0.5f, 0}, {-0.125f, 0.25f}};
  EXPECT_EQ(duality_error(write, read), 0);
  EXPECT_EQ(duality_error(write, write), 16 - 1);
  EXPECT_EQ(duality_amplification(write, read), 1);
  EXPECT_EQ(duality_amplification(write, write), 16);
  MatrixF spoiled = read;
  spoiled(0, 1) = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(duality_error(write, spoiled), std::numeric_limits<double>::infinity());
  EXPECT_THROW_WITH(duality_error(write, MatrixF::Identity(3, 3)), InputError, "3 x 3");
}

Matrix random_rotation(int size, unsigned seed) {
  return eigh({test::random_moment(size, seed)}, Device{})[0].vectors;
}

TEST(OrthogonalityError, IsTheLargestDeviationFromTheIdentity) {
  EXPECT_EQ(orthogonality_error(Matrix(Matrix::Identity(5, 5))), 0);
  MatrixF scaled = MatrixF::Identity(3, 3);
  scaled(1, 1) = 1.5f;
  EXPECT_DOUBLE_EQ(orthogonality_error(scaled), 1.25);
  MatrixF sheared = MatrixF::Identity(3, 3);
  sheared(0, 2) = -0.5f;
  EXPECT_DOUBLE_EQ(orthogonality_error(sheared), 0.5);
}

TEST(OrthogonalityError, StaysBelowTheLoadersLimits) {
  const MatrixF rotation = random_rotation(128, 1).cast<float>();
  EXPECT_LT(orthogonality_error(rotation), 1e-6);
  EXPECT_GT(orthogonality_error(round_to_bfloat16(rotation)), 1e-5);
  EXPECT_LT(orthogonality_error(round_to_bfloat16(rotation)), 5e-3);
}

TEST(OrthogonalityError, OfBrokenMatrices) {
  MatrixF nan = MatrixF::Identity(2, 2);
  nan(0, 1) = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isinf(orthogonality_error(nan)));
  EXPECT_THROW_WITH(orthogonality_error(Matrix(2, 3)), InputError, "2 x 3");
}

TEST(RoundToBfloat16, TiesToEven) {
  const MatrixF values{{1.0f, 1.00390625f, 1.01171875f, -3.14159265f}};
  EXPECT_EQ(round_to_bfloat16(values), (MatrixF{{1.0f, 1.0f, 1.015625f, -3.140625f}}));
}

TEST(PrincipalAngles, OfKnownSubspaces) {
  const double small = 1e-9;
  const Matrix a{{1, 0}, {0, 1}, {0, 0}, {0, 0}};
  // One direction turned by a tiny angle, the other perpendicular; columns neither unit nor
  // orthogonal.
  const Matrix b{{3 * std::cos(small), std::cos(small)},
                 {0, 0},
                 {3 * std::sin(small), std::sin(small)},
                 {0, 2}};
  const Vector angles = principal_angles(a, b);
  ASSERT_EQ(angles.size(), 2);
  EXPECT_NEAR(angles[0], small, 1e-15);
  EXPECT_NEAR(angles[1], std::numbers::pi / 2, 1e-15);
}

class PrincipalAnglesTest : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(PrincipalAnglesTest, RecoverTheAnglesThatWereTurned) {
  const auto [p, q] = GetParam();
  const Matrix basis = random_rotation(16, 7);
  Matrix b(16, q);
  for (int i = 0; i < q; ++i) {
    const double angle = 0.1 + 0.2 * i;
    b.col(i) = std::cos(angle) * basis.col(i) + std::sin(angle) * basis.col(8 + i);
  }
  const Matrix mixed_a = basis.leftCols(p) * test::random_matrix(p, p, 1);
  const Matrix mixed_b = b * test::random_matrix(q, q, 2);
  const Vector angles = principal_angles(mixed_a, mixed_b),
               swapped = principal_angles(mixed_b, mixed_a);
  ASSERT_EQ(angles.size(), std::min(p, q));
  for (int i = 0; i < angles.size(); ++i) {
    EXPECT_NEAR(angles[i], 0.1 + 0.2 * i, 1e-10);
    EXPECT_NEAR(swapped[i], angles[i], 1e-10);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, PrincipalAnglesTest,
                         testing::Values(std::pair{1, 1}, std::pair{4, 4}, std::pair{6, 3},
                                         std::pair{3, 6}));

TEST(PrincipalAngles, RefuseWhatSpansNoSubspaceOfThatDimension) {
  const Matrix dependent{{1, 2}, {1, 2}, {0, 0}};
  EXPECT_THROW_WITH(principal_angles(Matrix::Identity(3, 2), dependent), InputError, "rank 1");
  EXPECT_THROW_WITH(principal_angles(Matrix::Identity(3, 2), Matrix::Identity(4, 2)), InputError,
                    "3 and of 4");
  EXPECT_THROW_WITH(principal_angles(Matrix(3, 0), Matrix::Identity(3, 2)), InputError, "empty");
}

}  // namespace
}  // namespace oscar
