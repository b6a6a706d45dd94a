#include "oscar/rotation/convergence.h"

#include <gtest/gtest.h>

#include "rotation/example.h"
#include "support.h"

namespace oscar {
namespace {

constexpr int kTokens = 1600;

test::Rows rows_from(const test::Rows& rows, Eigen::Index first, Eigen::Index count) {
  test::Rows part = rows;
  for (auto* heads : {&part.q, &part.k, &part.v}) {
    for (Matrix& head : *heads) head = Matrix(head.middleRows(first, count));
  }
  return part;
}

/// One layer measured on two runs that are each other's other half.
Statistics of_halves(const test::Rows& a, const test::Rows& b) {
  LayerStatistics first = test::statistics_of(a), all = first;
  all.merge(test::statistics_of(b));
  first.output_metric.clear();
  all.half.push_back(first);
  Statistics statistics;
  statistics.tokens = all.tokens;
  statistics.layers.emplace(3, all);
  return statistics;
}

/// Rows that a few directions carry; which ones depends on the seed.
test::Rows steep_rows(int tokens, unsigned seed) {
  test::Rows rows = test::random_rows(tokens, 4, 2, 32, 16, seed);
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  for (auto* heads : {&rows.q, &rows.k, &rows.v}) {
    for (Matrix& head : *heads) {
      Matrix mixing(head.cols(), head.cols());
      for (Eigen::Index i = 0; i < mixing.rows(); ++i) {
        for (Eigen::Index j = 0; j < mixing.cols(); ++j) {
          mixing(i, j) = normal(engine) * std::pow(0.85, static_cast<double>(i));
        }
      }
      head = Matrix::NullaryExpr(head.rows(), head.cols(), [&] { return normal(engine); }) * mixing;
    }
  }
  return rows;
}

Statistics of_rows(int tokens) {
  const test::Rows rows = steep_rows(kTokens, 1);
  return of_halves(rows_from(rows, 0, tokens / 2), rows_from(rows, tokens / 2, tokens / 2));
}

FitOptions options(const char* objective) {
  FitOptions result;
  apply_objective(result, objective);
  return result;
}

Statistics without_samples(Statistics statistics) {
  LayerStatistics& layer = statistics.layers.at(3);
  for (LayerStatistics* part : {&layer, &layer.half[0]}) {
    part->key_samples.clear();
    part->value_samples.clear();
    part->sample_attention.clear();
  }
  return statistics;
}

class ConvergenceOf : public testing::TestWithParam<const char*> {};

TEST_P(ConvergenceOf, MoreTextIsCloser) {
  const Convergence few = check_convergence(of_rows(80), options(GetParam()), Device{});
  const Convergence many = check_convergence(of_rows(kTokens), options(GetParam()), Device{});
  EXPECT_EQ(few.verdict, Convergence::Verdict::more) << few.message;
  EXPECT_EQ(many.verdict, Convergence::Verdict::enough) << many.message;
  EXPECT_GT(few.key_excess, 3 * many.key_excess);
  EXPECT_GT(few.value_excess, 3 * many.value_excess);
  ASSERT_EQ(many.layers.size(), 2u);
  EXPECT_EQ(many.layers[1].side, Side::value);
  for (const LayerConvergence& layer : many.layers) {
    EXPECT_EQ(layer.layer, 3);
    EXPECT_GT(layer.spread, 0);
    EXPECT_LT(layer.spread, 0.05);
  }
  EXPECT_NE(few.message.find("more text would help, about"), std::string::npos) << few.message;
}

INSTANTIATE_TEST_SUITE_P(Objectives, ConvergenceOf, testing::Values("head-offset", "stretch"));

TEST(Convergence, SeesTextsThatDiffer) {
  const Convergence alike = check_convergence(of_rows(800), options("head-offset"), Device{});
  const Convergence different = check_convergence(of_halves(steep_rows(400, 1), steep_rows(400, 2)),
                                                  options("head-offset"), Device{});
  EXPECT_EQ(different.verdict, Convergence::Verdict::more) << different.message;
  EXPECT_GT(different.key_excess, 2 * alike.key_excess);
  ASSERT_TRUE(alike.layers[0].angle_degrees && different.layers[0].angle_degrees);
  EXPECT_GT(*different.layers[0].angle_degrees, 2 * *alike.layers[0].angle_degrees);
}

TEST(Convergence, OfWhatNeedsNoDataIsReached) {
  const Convergence found = check_convergence(of_rows(80), options("hadamard"), Device{});
  EXPECT_EQ(found.verdict, Convergence::Verdict::enough);
  EXPECT_EQ(found.key_excess, 0);
  EXPECT_EQ(found.value_excess, 0);
  EXPECT_FALSE(found.layers[0].angle_degrees);
}

/// Rows drawn from the moments say what the rows say that the moments were summed over.
TEST(Convergence, NeedsNoSampledRows) {
  FitOptions by_head = options("ktk-vtv");
  by_head.granularity = Granularity::head;
  by_head.composition = Composition::r_o;
  for (const int tokens : {80, 400}) {
    const Convergence sampled = check_convergence(of_rows(tokens), by_head, Device{});
    const Convergence drawn =
        check_convergence(without_samples(of_rows(tokens)), by_head, Device{});
    EXPECT_GT(drawn.key_excess, 0.03) << tokens;
    EXPECT_NEAR(drawn.key_excess, sampled.key_excess, 0.03) << tokens;
    EXPECT_NEAR(drawn.value_excess, sampled.value_excess, 0.03) << tokens;
  }
}

TEST(Convergence, RepeatsToTheBit) {
  const Statistics statistics = without_samples(of_rows(200));
  const Convergence once = check_convergence(statistics, options("ktk-vtv"), Device{});
  EXPECT_NE(once.key_excess, 0);
  EXPECT_EQ(to_json(once), to_json(check_convergence(statistics, options("ktk-vtv"), Device{})));
}

TEST(Convergence, IsUnknownWithoutHalvesThatCanBeFitted) {
  Statistics whole = of_rows(80);
  whole.layers.at(3).half.clear();
  const Convergence none = check_convergence(whole, options("ktk-vtv"), Device{});
  EXPECT_EQ(none.verdict, Convergence::Verdict::unknown);
  EXPECT_NE(none.message.find("keep no halves"), std::string::npos);
  const Convergence small = check_convergence(of_rows(40), options("head-offset"), Device{});
  EXPECT_EQ(small.verdict, Convergence::Verdict::unknown);
  EXPECT_NE(small.message.find("at least 32 samples"), std::string::npos) << small.message;
}

}  // namespace
}  // namespace oscar
