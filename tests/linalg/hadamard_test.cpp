#include "oscar/linalg/hadamard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "oscar/core/error.h"
#include "support.h"

namespace oscar {
namespace {

struct Size {
  int size;
  std::vector<int> blocks;  ///< binary parts, largest first
};
void PrintTo(const Size& s, std::ostream* out) {
  *out << s.size;
}

TEST(OffsetHadamard, IsOrthonormalAndEndsWithAConstantRow) {
  for (const int size : {1, 2, 4, 12, 64, 80, 96, 192}) {
    const Matrix o = offset_hadamard(size);
    EXPECT_LT((o * o.transpose() - Matrix::Identity(size, size)).cwiseAbs().maxCoeff(), 1e-14);
    EXPECT_LT((o.row(size - 1).array() - 1 / std::sqrt(size)).abs().maxCoeff(), 1e-14) << size;
  }
  EXPECT_EQ(offset_hadamard(64), hadamard(64).colwise().reverse());
}

class HadamardTest : public testing::TestWithParam<Size> {};

TEST_P(HadamardTest, IsSymmetricOrthonormalAndOfConstantMagnitudeInItsBlocks) {
  const auto& [size, blocks] = GetParam();
  const Matrix h = hadamard(size);
  EXPECT_EQ(h, h.transpose());
  EXPECT_LT((h * h.transpose() - Matrix::Identity(size, size)).cwiseAbs().maxCoeff(), 1e-14);
  Matrix magnitudes = Matrix::Zero(size, size);
  int offset = 0;
  for (const int block : blocks) {
    magnitudes.block(offset, offset, block, block).setConstant(1 / std::sqrt(block));
    offset += block;
  }
  EXPECT_EQ(h.cwiseAbs(), magnitudes);
}

TEST_P(HadamardTest, BlocksFollowSylvestersRecursion) {
  int offset = 0;
  const Matrix h = hadamard(GetParam().size);
  for (const int block : GetParam().blocks) {
    const Matrix whole = h.block(offset, offset, block, block) * std::sqrt(block);
    EXPECT_EQ(whole(0, 0), 1);
    if (block > 1) {
      const int half = block / 2;
      const Matrix corner = whole.topLeftCorner(half, half);
      EXPECT_EQ(whole.topRightCorner(half, half), corner);
      EXPECT_EQ(whole.bottomLeftCorner(half, half), corner);
      EXPECT_EQ(whole.bottomRightCorner(half, half), -corner);
    }
    offset += block;
  }
}

TEST_P(HadamardTest, BitReversalIsAPermutation) {
  std::vector<int> order = bit_reversal_order(GetParam().size);
  std::sort(order.begin(), order.end());
  std::vector<int> expected(static_cast<std::size_t>(GetParam().size));
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

INSTANTIATE_TEST_SUITE_P(Sizes, HadamardTest,
                         testing::Values(Size{1, {1}}, Size{2, {2}}, Size{3, {2, 1}}, Size{4, {4}},
                                         Size{64, {64}}, Size{80, {64, 16}}, Size{96, {64, 32}},
                                         Size{128, {128}}, Size{192, {128, 64}}, Size{512, {512}}));

TEST(Hadamard, KnownMatrix) {
  EXPECT_EQ(hadamard(4),
            (Matrix{{1, 1, 1, 1}, {1, -1, 1, -1}, {1, 1, -1, -1}, {1, -1, -1, 1}} / 2));
  EXPECT_THROW_WITH(hadamard(0), InputError, "size 0");
}

TEST(BitReversal, KnownOrders) {
  EXPECT_EQ(bit_reversal_order(1), (std::vector<int>{0}));
  EXPECT_EQ(bit_reversal_order(8), (std::vector<int>{0, 4, 2, 6, 1, 5, 3, 7}));
  EXPECT_EQ(bit_reversal_order(6), (std::vector<int>{0, 4, 2, 1, 5, 3}));
  EXPECT_THROW_WITH(bit_reversal_order(-1), InputError, "size -1");
}

}  // namespace
}  // namespace oscar
