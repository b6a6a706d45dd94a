#include "oscar/rotation/key_offset.h"

#include <gtest/gtest.h>

#include "rotation/example.h"

namespace oscar {
namespace {

/// Two layers; head 1 of layer 4 has a constant of `length` in every key.
Statistics with_constant(double length) {
  auto plain = test::random_rows(200, 4, 2, 8, 8, 1),
       biased = test::random_rows(200, 4, 2, 8, 8, 2);
  for (Matrix* keys : {&plain.k[0], &plain.k[1], &biased.k[0], &biased.k[1]}) {
    keys->rowwise() -= keys->colwise().mean().eval();
    *keys /= std::sqrt(keys->squaredNorm() / 200);  // spread 1
  }
  biased.k[1].col(3).array() += length;
  return test::statistics_of({{1, plain}, {4, biased}});
}

TEST(KeyOffset, IsTheMeanOverTheSpread) {
  const auto found = large_key_offsets(with_constant(12));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].layer, 4);
  EXPECT_EQ(found[0].head, 1);
  EXPECT_NEAR(found[0].ratio, 12, 1e-9);
  EXPECT_TRUE(large_key_offsets(with_constant(2.9)).empty());
}

TEST(KeyOffset, WarnsWhereTheRotationDoesNothingAboutIt) {
  FitOptions options;
  const std::string warning = key_offset_warning(with_constant(12), options);
  EXPECT_NE(warning.find("layer 4, head 1: 12.0 times"), std::string::npos) << warning;
  EXPECT_EQ(key_offset_warning(with_constant(1), options), "");
  options.centred = true;
  EXPECT_EQ(key_offset_warning(with_constant(12), options), "");
  apply_objective(options, "layer-offset");
  EXPECT_EQ(key_offset_warning(with_constant(12), options), "");
}

}  // namespace
}  // namespace oscar
