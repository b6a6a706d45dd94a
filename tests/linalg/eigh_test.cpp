#include "oscar/linalg/eigh.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "linalg/random_matrix.h"
#include "oscar/core/error.h"
#include "support.h"

namespace oscar {
namespace {

using test::random_moment;

struct Case {
  Device device;
  int size;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.device.name() << " size " << c.size;
}

class EighTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().device.is_cuda()) OSCAR_NEEDS_CUDA();
  }
};

TEST_P(EighTest, VectorsAndValuesRebuildTheMatrix) {
  const auto [device, size] = GetParam();
  const std::vector<Matrix> batch = {random_moment(size, 1), random_moment(size, 2),
                                     Matrix::Zero(size, size)};
  const std::vector<Eigensystem> systems = eigh(batch, device);
  ASSERT_EQ(systems.size(), batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const auto& [values, vectors] = systems[i];
    const double scale = std::max(1.0, batch[i].cwiseAbs().maxCoeff());
    for (Eigen::Index j = 1; j < values.size(); ++j) EXPECT_LE(values[j - 1], values[j]);
    const Matrix rebuilt = vectors * values.asDiagonal() * vectors.transpose();
    EXPECT_LT((rebuilt - batch[i]).cwiseAbs().maxCoeff(), 1e-12 * scale * size);
    const Matrix identity = Matrix::Identity(size, size);
    EXPECT_LT((vectors.transpose() * vectors - identity).cwiseAbs().maxCoeff(), 1e-12);
    for (Eigen::Index j = 0; j < vectors.cols(); ++j) {
      Eigen::Index row = 0;
      vectors.col(j).cwiseAbs().maxCoeff(&row);
      EXPECT_GT(vectors(row, j), 0) << "column " << j;
    }
  }
}

TEST_P(EighTest, ReadsOnlyTheLowerTriangle) {
  const auto [device, size] = GetParam();
  const Matrix moment = random_moment(size, 3);
  Matrix lower = moment;
  lower.triangularView<Eigen::StrictlyUpper>().setConstant(123);
  const Eigensystem expected = eigh({moment}, device)[0], found = eigh({lower}, device)[0];
  EXPECT_EQ(expected.values, found.values);
  EXPECT_EQ(expected.vectors, found.vectors);
}

TEST_P(EighTest, RepeatsToTheBit) {
  const auto [device, size] = GetParam();
  const std::vector<Matrix> batch = {random_moment(size, 4), random_moment(size, 5)};
  const std::vector<Eigensystem> first = eigh(batch, device), second = eigh(batch, device);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    EXPECT_EQ(first[i].values, second[i].values);
    EXPECT_EQ(first[i].vectors, second[i].vectors);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, EighTest, testing::ValuesIn([] {
                           std::vector<Case> cases;
                           for (const auto kind : {Device::Kind::cpu, Device::Kind::cuda}) {
                             for (const int size : {1, 2, 7, 64, 80, 128}) {
                               cases.push_back({Device{kind, 0}, size});
                             }
                           }
                           return cases;
                         }()));

class CudaEighTest : public testing::TestWithParam<int> {};

TEST_P(CudaEighTest, AgreesWithTheCpu) {
  OSCAR_NEEDS_CUDA();
  std::vector<Matrix> batch;
  for (unsigned i = 0; i < 20; ++i) batch.push_back(random_moment(GetParam(), 100 + i));
  const std::vector<Eigensystem> expected = eigh(batch, Device{});
  const std::vector<Eigensystem> found = eigh(batch, Device{Device::Kind::cuda, 0});
  for (std::size_t i = 0; i < batch.size(); ++i) {
    EXPECT_LT((expected[i].values - found[i].values).cwiseAbs().maxCoeff(),
              1e-12 * expected[i].values.maxCoeff());
    EXPECT_LT((expected[i].vectors - found[i].vectors).cwiseAbs().maxCoeff(), 1e-7)
        << "matrix " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CudaEighTest, testing::Values(1, 2, 7, 64, 80, 128, 256));

TEST(Eigh, KnownEigensystem) {
  const Matrix matrix{{2, 1}, {1, 2}};
  const Eigensystem system = eigh({matrix}, Device{})[0];
  EXPECT_NEAR(system.values[0], 1, 1e-15);
  EXPECT_NEAR(system.values[1], 3, 1e-15);
  // Both entries of both vectors have the magnitude 1/sqrt(2): the first one decides the sign.
  const double r = std::sqrt(0.5);
  EXPECT_LT((system.vectors - Matrix{{r, r}, {-r, r}}).cwiseAbs().maxCoeff(), 1e-15);
}

TEST(Eigh, KeepsTheOrderOfMixedSizes) {
  const std::vector<Matrix> batch = {random_moment(5, 1), random_moment(3, 2), random_moment(5, 3)};
  const std::vector<Eigensystem> mixed = eigh(batch, Device{});
  for (std::size_t i = 0; i < batch.size(); ++i) {
    EXPECT_EQ(mixed[i].vectors, eigh({batch[i]}, Device{})[0].vectors);
  }
  EXPECT_TRUE(eigh({}, Device{}).empty());
}

TEST(Eigh, SmallEigenvaluesOfARankDeficientMomentAreZero) {
  const Matrix rows = test::random_matrix(12, 64, 9);
  const Eigensystem system = eigh({Matrix(rows.transpose() * rows)}, Device{})[0];
  for (int i = 0; i < 52; ++i) EXPECT_LT(std::abs(system.values[i]), 1e-13 * system.values[63]);
  EXPECT_GT(system.values[52], 1e-3 * system.values[63]);
}

TEST(Eigh, AMissingDeviceIsAnError) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is a CUDA device";
  EXPECT_THROW(eigh({Matrix::Identity(2, 2)}, Device{Device::Kind::cuda, 0}), Error);
}

TEST(Eigh, RefusesWhatIsNotASymmetricMatrix) {
  EXPECT_THROW_WITH(eigh({Matrix::Zero(2, 3)}, Device{}), InputError, "2 x 3");
  EXPECT_THROW_WITH(eigh({Matrix(0, 0)}, Device{}), InputError, "0 x 0");
  Matrix bad = Matrix::Identity(2, 2);
  bad(0, 0) = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW_WITH(eigh({Matrix::Identity(2, 2), bad}, Device{}), InputError, "matrix 1");
}

}  // namespace
}  // namespace oscar
