#include "oscar/rotation/composition.h"

#include <gtest/gtest.h>

#include "linalg/random_matrix.h"
#include "oscar/core/error.h"
#include "oscar/linalg/eigh.h"
#include "oscar/linalg/hadamard.h"
#include "oscar/linalg/orthogonal.h"
#include "support.h"

namespace oscar {
namespace {

class CompositionTest : public testing::TestWithParam<std::tuple<Composition, int>> {
 protected:
  void SetUp() override {
    system_ = eigh({test::random_moment(std::get<1>(GetParam()), 3)}, Device{})[0];
  }
  Eigensystem system_;
};

TEST_P(CompositionTest, IsOrthonormal) {
  const Matrix rotation = compose(std::get<0>(GetParam()), system_.vectors, system_.values);
  EXPECT_LT(orthogonality_error(rotation), 1e-13);
  EXPECT_LT(orthogonality_error(MatrixF(rotation.cast<float>())), 1e-6);
}

TEST_P(CompositionTest, GivesItsEigenvectorsBack) {
  const Composition composition = std::get<0>(GetParam());
  const Matrix rotation = compose(composition, system_.vectors, system_.values);
  if (composition == Composition::pbr || composition == Composition::h_pbr) {
    EXPECT_THROW_WITH(decompose(composition, rotation, system_.values), InputError,
                      "no eigenvectors");
    return;
  }
  const Matrix recovered = decompose(composition, rotation, system_.values);
  EXPECT_LT((recovered - system_.vectors).cwiseAbs().maxCoeff(), 1e-14);
}

TEST_P(CompositionTest, IsParsedByItsName) {
  EXPECT_EQ(parse_composition(name_of(std::get<0>(GetParam()))), std::get<0>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(AllAndSizes, CompositionTest,
                         testing::Combine(testing::ValuesIn(all_compositions()),
                                          testing::Values(1, 8, 64, 80, 96)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

TEST(BitReversalPermutation, PutsTheLargestWhereBitReversalSays) {
  // Ascending eigenvalues: rank 0 is column 7 and goes to 0, rank 1 is column 6 and goes to 4, ...
  const Matrix columns = Vector{{0, 1, 2, 3, 4, 5, 6, 7}}.transpose();
  const Vector ascending = Vector::LinSpaced(8, 1, 8);
  EXPECT_EQ(columns * bit_reversal_permutation(ascending), (Matrix{{7, 3, 5, 1, 6, 2, 4, 0}}));
  // Equal eigenvalues keep their order.
  EXPECT_EQ(columns * bit_reversal_permutation(Vector::Ones(8)),
            (Matrix{{0, 4, 2, 6, 1, 5, 3, 7}}));
}

TEST(BitReversalPermutation, DropsPlacesBeyondTheSize) {
  const Matrix columns = Vector{{0, 1, 2, 3, 4, 5}}.transpose();
  const Vector descending = Vector::LinSpaced(6, 6, 1);
  EXPECT_EQ(columns * bit_reversal_permutation(descending), (Matrix{{0, 3, 2, 5, 1, 4}}));
}

TEST(Composition, OfKnownFactors) {
  const Vector values{{1, 2}};
  const Matrix swap{{0, 1}, {1, 0}}, turn{{0, -1}, {1, 0}}, h = hadamard(2);
  EXPECT_EQ(compose(Composition::plain, turn, values), turn);
  EXPECT_EQ(compose(Composition::pbr, turn, values), swap);
  EXPECT_EQ(compose(Composition::br_h128, turn, values), turn * swap * h);
  EXPECT_EQ(compose(Composition::h_pbr_r, turn, values), h * swap * turn);
  EXPECT_EQ(compose(Composition::r_h_pbr, turn, values), turn * h * swap);
}

TEST(Composition, RefusesWhatDoesNotFit) {
  EXPECT_THROW_WITH(parse_composition("r_p_h"), InputError, "r_h_pbr");
  EXPECT_THROW_WITH(compose(Composition::plain, Matrix::Identity(3, 3), Vector::Ones(4)),
                    InputError, "3 x 3");
  EXPECT_THROW_WITH(decompose(Composition::plain, Matrix(0, 0), Vector(0)), InputError, "0 x 0");
}

}  // namespace
}  // namespace oscar
