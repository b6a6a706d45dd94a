#include <gtest/gtest.h>

#include "kvcache/arithmetic.h"
#include "oscar/core/error.h"
#include "oscar/linalg/orthogonal.h"
#include "oscar/rotation/fit.h"
#include "oscar/rotation/target.h"
#include "rotation/example.h"
#include "rotation/objectives/attended.h"
#include "support.h"

namespace oscar {
namespace {

const LayerStatistics& layer() {
  static const LayerStatistics statistics =
      test::statistics_of(test::random_rows(300, 6, 2, 16, 12, 5));
  return statistics;
}

FittedMatrix fitted(const char* name, const FitContext& context, Side side = Side::key) {
  const FitUnit unit{0, &layer(), {1}};
  return find_objective(side, name).fit(std::span(&unit, 1), context).front();
}

Matrix at_unit_mean(const Matrix& m) {
  return m / (m.trace() / static_cast<double>(m.rows()));
}
Matrix queries() {
  return at_unit_mean(layer().query_outer[1]);
}
Matrix centred_keys() {
  const Vector mean = layer().key_sum[1] / 300;
  return at_unit_mean(layer().key_outer[1] / 300 - mean * mean.transpose());
}

double difference(const Matrix& a, const Matrix& b) {
  return (a - b).cwiseAbs().maxCoeff();
}

TEST(OffsetComposition, LaysTheLeadingDirectionAlongTheConstantOne) {
  const FittedMatrix ktk = fitted("ktk", {Composition::r_o, Device{}});
  const Matrix moment = ktk.rotation.transpose() * layer().key_outer[1] / 300 * ktk.rotation;
  const Vector constant = Vector::Constant(16, 0.25);
  EXPECT_NEAR(constant.dot(moment * constant), ktk.eigenvalues[15], 1e-9 * ktk.eigenvalues[15]);
}

TEST(Centring, TakesTheMeanOutOfTheMoment) {
  const FittedMatrix ktk = fitted("ktk", {Composition::plain, Device{}, true});
  const Matrix diagonal = ktk.rotation.transpose() * centred_keys() * ktk.rotation;
  EXPECT_LT(difference(diagonal, diagonal.diagonal().asDiagonal().toDenseMatrix()), 1e-10);
}

TEST(Flat, MakesTheQueriesIsotropic) {
  const FittedMatrix flat = fitted("flat", {Composition::r_o, Device{}, true});
  EXPECT_LT(difference(flat.rotation * flat.read.transpose(), Matrix::Identity(16, 16)), 1e-9);
  EXPECT_LT(difference(flat.read.transpose() * queries() * flat.read, Matrix::Identity(16, 16)),
            1e-9);
}

TEST(Stretch, BalancesQueriesAndKeys) {
  const FittedMatrix stretch = fitted("stretch", {Composition::r_o, Device{}, true});
  EXPECT_LT(difference(stretch.rotation * stretch.read.transpose(), Matrix::Identity(16, 16)),
            1e-9);
  const Matrix stored = stretch.rotation.transpose() * centred_keys() * stretch.rotation;
  const Matrix read = stretch.read.transpose() * queries() * stretch.read;
  EXPECT_LT(difference(stored, read), 1e-8 * stored.norm());
  // No other metric gives a smaller product of the traces: the flat one for example.
  const auto product = [](const FittedMatrix& m) {
    return (m.rotation.transpose() * centred_keys() * m.rotation).trace() *
           (m.read_side().transpose() * queries() * m.read_side()).trace();
  };
  EXPECT_LT(product(stretch), product(fitted("flat", {Composition::r_o, Device{}, true})));
  EXPECT_LT(product(stretch), product(fitted("ktk", {Composition::r_o, Device{}, true})));
}

/// Values against what the output projection makes of their errors.
TEST(Stretch, BalancesValuesAndOutputProjection) {
  const Matrix values = at_unit_mean(layer().value_outer[1]),
               cost = at_unit_mean(layer().output_metric[1]);
  for (const char* name : {"stretch", "stretch-attended", "flat", "whiten"}) {
    const FittedMatrix m = fitted(name, {Composition::r_o, Device{}}, Side::value);
    EXPECT_LT(difference(m.rotation * m.read.transpose(), Matrix::Identity(12, 12)), 1e-8) << name;
  }
  const FittedMatrix stretch = fitted("stretch", {Composition::r_o, Device{}}, Side::value);
  const Matrix stored = stretch.rotation.transpose() * values * stretch.rotation;
  EXPECT_LT(difference(stored, stretch.read.transpose() * cost * stretch.read),
            1e-8 * stored.norm());
  const FittedMatrix flat = fitted("flat", {Composition::r_o, Device{}}, Side::value);
  EXPECT_LT(difference(flat.read.transpose() * cost * flat.read, Matrix::Identity(12, 12)), 1e-8);
}

TEST(Stretch, OfValuesNeedsTheOutputMetric) {
  LayerStatistics old = layer();
  old.output_metric.clear();
  const FitUnit unit{7, &old, {0}};
  EXPECT_THROW_WITH(find_objective(Side::value, "stretch").fit(std::span(&unit, 1), {}), InputError,
                    "layer 7");
}

TEST(Attended, WeighsRowsByTheRootOfTheirAttention) {
  const FitUnit unit{0, &layer(), {0}};
  Matrix expected = Matrix::Zero(12, 12);
  Vector weights = layer().sample_attention[0].col(1).cast<double>().cwiseSqrt();
  weights /= weights.mean();
  for (int t = 0; t < 300; ++t) {
    const Vector row = layer().value_samples[0].row(t).transpose().cast<double>();
    expected += weights[t] * row * row.transpose() / 300;
  }
  EXPECT_LT(difference(attended_moment(unit, 0, Side::value, false), expected),
            1e-5 * expected.norm());
  LayerStatistics old = layer();
  old.sample_attention.clear();
  const FitUnit without{7, &old, {0}};
  EXPECT_THROW_WITH(attended_moment(without, 0, Side::key, false), InputError, "layer 7");
}

/// What the codec's error costs, computed with the codec's own arithmetic.
double cost(const FittedMatrix& matrix, const TrainingRows& rows) {
  double total = 0;
  for (Eigen::Index t = 0; t < rows.rows[0].rows(); ++t) {
    const VectorF y =
        (rows.rows[0].row(t).cast<double>() * matrix.rotation).transpose().cast<float>();
    const auto group = arithmetic::scale_zero(y.minCoeff(), y.maxCoeff());
    const VectorF back = y.unaryExpr([group](float value) {
      return arithmetic::value_of(arithmetic::code_of(value, group), group);
    });
    const Vector error = matrix.read_side() * (back - y).cast<double>();
    total += rows.weight[0][t] * error.dot(rows.metric[0] * error);
  }
  return total;
}

TEST(Training, LowersTheCostOfTheCodecAndKeepsDuality) {
  TrainingRows rows{{layer().key_samples[1]}, {queries()}, {VectorF::Ones(300)}};
  rows.rows[0].rowwise() -= (layer().key_sum[1] / 300).cast<float>().transpose();
  const FittedMatrix before = fitted("stretch", {Composition::r_o, Device{}, true});
  TrainingOptions options;
  options.steps = 60;
  std::vector<FittedMatrix> first = {before}, second = {before};
  train(first, {rows}, 0.0, options, Device{});
  train(second, {rows}, 0.0, options, Device{});
  EXPECT_LT(cost(first[0], rows), 0.9 * cost(before, rows));
  EXPECT_LT(difference(first[0].rotation * first[0].read.transpose(), Matrix::Identity(16, 16)),
            1e-9);
  EXPECT_EQ(first[0].rotation, second[0].rotation);
}

TEST(Training, NeedsRows) {
  std::vector<FittedMatrix> matrices = {fitted("ktk", {Composition::r_o, Device{}})};
  EXPECT_THROW_WITH(train(matrices, {TrainingRows{}}, 0.96, {.steps = 1}, Device{}), InputError,
                    "--samples");
}

TEST(Fit, PresetsCarryTheirSettings) {
  FitOptions options;
  apply_objective(options, "stretch");
  options.training.steps = 3;
  Statistics statistics;
  statistics.tokens = 300;
  statistics.layers.emplace(0, layer());
  const RotationPair pair = fit(statistics, options, Device{});
  EXPECT_TRUE(pair.key.is_centred());
  EXPECT_FALSE(pair.key.is_orthogonal());
  EXPECT_EQ(pair.key.layers.at(0).mean.size(), 2u);
  EXPECT_FALSE(pair.value.is_general());
  EXPECT_EQ(pair.key.objective, "stretch_attended_trained");
  EXPECT_EQ(pair.value.objective, "vtv_attended_r_o_trained");
  EXPECT_EQ(options.k_clip, 0.94);
}

TEST(Target, EveryPresetSuitsItsTarget) {
  for (const Target& target : targets()) {
    FitOptions options;
    apply_objective(options, target.preset);
    EXPECT_NO_THROW(check_target(options, find_target(target.name))) << target.name;
  }
  EXPECT_THROW_WITH(find_target("tgi"), InputError, "sglang-v1");
}

TEST(Target, RefusesWhatItCannotLoad) {
  FitOptions options;
  apply_objective(options, "stretch");
  EXPECT_THROW_WITH(check_target(options, find_target("sglang-v2")), InputError, "format v3");
  apply_objective(options, "head-offset");
  EXPECT_THROW_WITH(check_target(options, find_target("llama.cpp")), InputError,
                    "one matrix a layer");
  apply_objective(options, "oscar");
  options.centred = true;
  EXPECT_THROW_WITH(check_target(options, find_target("vllm")), InputError, "centred keys");
}

}  // namespace
}  // namespace oscar
