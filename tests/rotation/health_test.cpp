#include "oscar/rotation/health.h"

#include <gtest/gtest.h>

#include "oscar/rotation/fit.h"
#include "rotation/example.h"

namespace oscar {
namespace {

using testing::Test;

RotationPair pair_of(int tokens, Granularity granularity = Granularity::layer) {
  FitOptions options;
  options.granularity = granularity;
  return fit(test::statistics_of({{0, test::random_rows(tokens, 4, 2, 16, 16, 1)}}), options,
             Device{});
}

void expect_says(const HealthReport& report, Health verdict, const std::string& text) {
  EXPECT_EQ(report.verdict, verdict) << report.message;
  EXPECT_NE(report.message.find(text), std::string::npos) << report.message;
}

TEST(Health, EnoughTokensAreGood) {
  const HealthReport report = check_health(pair_of(16 * 16));
  expect_says(report, Health::good, "keys: the data supports");
  EXPECT_NE(report.message.find("values: the data supports"), std::string::npos);
  ASSERT_EQ(report.matrices.size(), 2u);
  EXPECT_EQ(report.matrices[0].rank, 16);
  EXPECT_EQ(report.matrices[0].rows, 16 * 16 * 4);
  EXPECT_EQ(report.matrices[0].attainable(), 16);
}

TEST(Health, FewTokensAreWeak) {
  expect_says(check_health(pair_of(100)), Health::weak, "256 or more");
}

TEST(Health, TwelveTokensAreBad) {
  expect_says(check_health(pair_of(12)), Health::bad,
              "12 calibration tokens cannot determine 16 directions");
}

TEST(Health, RowsPerHeadAreCounted) {
  const HealthReport report = check_health(pair_of(300, Granularity::head));
  ASSERT_EQ(report.matrices.size(), 4u);
  EXPECT_EQ(report.matrices[1].head, 1);
  EXPECT_EQ(report.matrices[1].rows, 600);
}

TEST(Health, MissingDirectionsAreBadEvenWithoutACalibrationBlock) {
  RotationSet set = pair_of(5, Granularity::head).value;
  set.calibration.reset();
  expect_says(check_health(set), Health::bad, "spans only");
  EXPECT_LT(check_health(set).matrices[0].rank, 16);
  EXPECT_EQ(check_health(set).matrices[0].rows, 0);
}

TEST(Health, OneDirectionInEveryLayerIsBadInOneLayerWeak) {
  RotationSet set = pair_of(300).key;
  VectorF narrow = VectorF::LinSpaced(128, 1e-4f, 2e-4f);
  narrow[127] = 100;
  set.layers.clear();
  set.layers[0].eigenvalues = {narrow};
  set.calibration.reset();
  expect_says(check_health(set), Health::bad, "one direction");
  for (int id = 1; id < 4; ++id) set.layers[id].eigenvalues = {VectorF::LinSpaced(128, 1, 2)};
  expect_says(check_health(set), Health::weak, "in layer 0 (participation ratio 1.00 of 128)");
}

TEST(Health, RotationsWithoutDataAreGood) {
  FitOptions options;
  apply_objective(options, "hadamard");
  const Statistics statistics = test::statistics_of({{0, test::random_rows(3, 4, 2, 16, 16, 1)}});
  expect_says(check_health(fit(statistics, options, Device{})), Health::good,
              "no calibration data");
}

TEST(Health, TheWorseSideDecides) {
  RotationPair pair = pair_of(300);
  pair.value.layers.at(0).eigenvalues[0].head(4).setZero();
  expect_says(check_health(pair), Health::bad, "values: the calibration data spans only 12 of 16");
}

TEST(ParticipationRatio, CountsTheDirectionsThatMatter) {
  EXPECT_DOUBLE_EQ(participation_ratio(VectorF::Ones(7)), 7);
  EXPECT_DOUBLE_EQ(participation_ratio(VectorF{{0, 0, 5}}), 1);
  EXPECT_DOUBLE_EQ(participation_ratio(VectorF{{1, 3}}), 1.6);
  EXPECT_EQ(participation_ratio(VectorF::Zero(3)), 0);
}

}  // namespace
}  // namespace oscar
