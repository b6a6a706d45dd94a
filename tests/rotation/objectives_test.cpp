#include "oscar/rotation/objective.h"

#include <gtest/gtest.h>

#include "oscar/core/error.h"
#include "oscar/linalg/eigh.h"
#include "oscar/linalg/hadamard.h"
#include "rotation/example.h"
#include "support.h"

namespace oscar {
namespace {

struct Case {
  Side side;
  const char* name;
  const char* file_name;
  /// The moment of a head, from its definition; none: no data enters.
  Matrix (*moment)(const LayerStatistics& layer, std::size_t head);
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

class MomentObjectives : public testing::TestWithParam<Case> {
 protected:
  const LayerStatistics layer_ = test::statistics_of(test::random_rows(60, 6, 2, 8, 6, 1));
  const Objective& objective_ = find_objective(GetParam().side, GetParam().name);
};

TEST_P(MomentObjectives, AreNamedAsThePublishedFilesNameThem) {
  EXPECT_EQ(objective_.name(), GetParam().name);
  EXPECT_EQ(objective_.file_name(Composition::r_h_pbr), GetParam().file_name);
  EXPECT_FALSE(objective_.summary().empty());
}

TEST_P(MomentObjectives, DiagonaliseTheirMoment) {
  const Matrix a = GetParam().moment(layer_, 0), b = GetParam().moment(layer_, 1),
               mean = (a + b) / 2;
  const std::vector<FitUnit> units = {{0, &layer_, {0}}, {0, &layer_, {1}}, {0, &layer_, {0, 1}}};
  const auto fitted = objective_.fit(units, {Composition::plain, Device{}});
  ASSERT_EQ(fitted.size(), 3u);
  const Matrix* const expected[] = {&a, &b, &mean};
  for (std::size_t i = 0; i < 3; ++i) {
    const Matrix diagonal = fitted[i].rotation.transpose() * *expected[i] * fitted[i].rotation;
    const Matrix eigenvalues = fitted[i].eigenvalues.asDiagonal();
    EXPECT_LT((diagonal - eigenvalues).cwiseAbs().maxCoeff(), 1e-10 * expected[i]->trace());
  }
}

const Case kMoments[] = {
    {Side::key, "ktk", "ktk_r_h_pbr",
     [](const LayerStatistics& l, std::size_t h) -> Matrix { return l.key_outer[h] / 60; }},
    {Side::key, "qqt", "qqt_r_h_pbr",
     [](const LayerStatistics& l, std::size_t h) -> Matrix { return l.query_outer[h] / 180; }},
    {Side::value, "vtv", "vtv_r_h_pbr",
     [](const LayerStatistics& l, std::size_t h) -> Matrix { return l.value_outer[h] / 60; }},
    {Side::value, "sst", "sst_r_h_pbr",
     [](const LayerStatistics& l, std::size_t h) -> Matrix { return l.output_outer[h] / 180; }},
    {Side::value, "sst-surrogate", "sst_r_h_pbr",
     [](const LayerStatistics& l, std::size_t h) -> Matrix {
       return l.weighted_value_outer[h] / 60;
     }},
};
INSTANTIATE_TEST_SUITE_P(All, MomentObjectives, testing::ValuesIn(kMoments));

TEST(FixedObjectives, IgnoreDataAndComposition) {
  const LayerStatistics layer = test::statistics_of(test::random_rows(20, 2, 1, 8, 6, 1));
  const std::vector<FitUnit> units = {{0, &layer, {0}}};
  for (const Composition composition : all_compositions()) {
    const FitContext context{composition, Device{}};
    EXPECT_EQ(find_objective(Side::key, "hadamard").fit(units, context)[0].rotation, hadamard(8));
    EXPECT_EQ(find_objective(Side::value, "hadamard").fit(units, context)[0].rotation, hadamard(6));
    EXPECT_EQ(find_objective(Side::value, "identity").fit(units, context)[0].rotation,
              Matrix::Identity(6, 6));
    EXPECT_EQ(find_objective(Side::key, "identity").fit(units, context)[0].eigenvalues,
              Vector::Ones(8));
  }
  EXPECT_EQ(find_objective(Side::key, "hadamard").file_name(Composition::plain), "hadamard");
}

TEST(Objectives, HaveNamesOfTheirOwn) {
  for (const Side side : {Side::key, Side::value}) {
    for (const Objective* objective : objectives(side)) {
      EXPECT_EQ(&find_objective(side, objective->name()), objective);
    }
  }
  EXPECT_THROW_WITH(find_objective(Side::key, "sst"), InputError,
                    "qqt, ktk, ktk-attended, stretch");
}

}  // namespace
}  // namespace oscar
