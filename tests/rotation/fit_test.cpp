#include "oscar/rotation/fit.h"

#include <gtest/gtest.h>

#include "oscar/core/error.h"
#include "oscar/linalg/orthogonal.h"
#include "rotation/example.h"
#include "support.h"

namespace oscar {
namespace {

/// Layers 1 and 4 of different dimensions, keys and values too.
const Statistics& example() {
  static const Statistics statistics = test::statistics_of(
      {{1, test::random_rows(200, 6, 2, 16, 12, 1)}, {4, test::random_rows(200, 6, 2, 8, 24, 2)}});
  return statistics;
}

using Options = std::tuple<Granularity, std::string>;
class FitTest : public testing::TestWithParam<Options> {
 protected:
  FitOptions options() const {
    FitOptions result;
    apply_objective(result, std::get<1>(GetParam()));
    result.granularity = std::get<0>(GetParam());
    return result;
  }
};

TEST_P(FitTest, CoversEveryLayerWithMatricesThatUndoEachOther) {
  const RotationPair pair = fit(example(), options(), Device{});
  const std::size_t expected = std::get<0>(GetParam()) == Granularity::layer ? 1 : 2;
  EXPECT_EQ(pair.key.side, Side::key);
  EXPECT_EQ(pair.value.side, Side::value);
  for (const RotationSet* set : {&pair.key, &pair.value}) {
    EXPECT_EQ(set->granularity, std::get<0>(GetParam()));
    ASSERT_EQ(set->layers.size(), 2u);
    for (const auto& [id, layer] : set->layers) {
      const LayerStatistics& statistics = example().layers.at(id);
      const int dim = set->side == Side::key ? statistics.head_dim : statistics.value_dim;
      ASSERT_EQ(layer.rotation.size(), expected);
      ASSERT_EQ(layer.eigenvalues.size(), expected);
      for (std::size_t i = 0; i < expected; ++i) {
        EXPECT_EQ(layer.rotation[i].rows(), dim);
        const MatrixF &write = layer.rotation[i], &read = layer.read_side()[i];
        EXPECT_LT(duality_error(write, read) / std::max(1.0, duality_amplification(write, read)),
                  1e-6);
        for (int j = 1; j < dim; ++j)
          EXPECT_LE(layer.eigenvalues[i][j - 1], layer.eigenvalues[i][j]);
      }
    }
  }
}

TEST_P(FitTest, RepeatsToTheBit) {
  const RotationPair first = fit(example(), options(), Device{}),
                     second = fit(example(), options(), Device{});
  EXPECT_EQ(first.key.calibration->generation_id, second.key.calibration->generation_id);
  for (const auto& [id, layer] : first.key.layers)
    EXPECT_EQ(layer.rotation, second.key.layers.at(id).rotation);
  for (const auto& [id, layer] : first.value.layers)
    EXPECT_EQ(layer.rotation, second.value.layers.at(id).rotation);
}

INSTANTIATE_TEST_SUITE_P(
    Presets, FitTest,
    testing::Combine(testing::Values(Granularity::layer, Granularity::head), testing::ValuesIn([] {
                       std::vector<std::string> words = {"ktk+sst-surrogate", "stretch+stretch"};
                       for (const Preset& preset : presets()) words.push_back(preset.name);
                       return words;
                     }())));

TEST(Fit, DefaultsToThePaper) {
  const RotationPair pair = fit(example(), {}, Device{});
  EXPECT_EQ(pair.key.objective, "qqt_r_h_pbr");
  EXPECT_EQ(pair.value.objective, "sst_r_h_pbr");
  FitOptions named;
  named.key = "ktk";
  apply_objective(named, "oscar");
  EXPECT_EQ(fit(example(), named, Device{}).key.calibration->generation_id,
            pair.key.calibration->generation_id);
}

TEST(Fit, OnTheGpuAgreesWithTheCpu) {
  OSCAR_NEEDS_CUDA();
  const RotationPair cpu = fit(example(), {}, Device{});
  const RotationPair gpu = fit(example(), {}, Device{Device::Kind::cuda, 0});
  for (const auto& [id, layer] : cpu.key.layers) {
    EXPECT_LT((layer.rotation[0] - gpu.key.matrix(id, 0)).cwiseAbs().maxCoeff(), 1e-5f);
    EXPECT_LT((cpu.value.matrix(id, 0) - gpu.value.matrix(id, 0)).cwiseAbs().maxCoeff(), 1e-5f);
  }
}

TEST(Fit, SaysWhereThePairComesFrom) {
  const RotationPair pair = fit(example(), {}, Device{});
  ASSERT_TRUE(pair.key.calibration && pair.value.calibration);
  EXPECT_EQ(pair.key.calibration->generation_id, pair.value.calibration->generation_id);
  EXPECT_EQ(pair.key.calibration->generation_id.size(), 32u);
  EXPECT_EQ(pair.key.calibration->model_fingerprint, "weights");
  EXPECT_EQ(pair.key.calibration->prompt_sha256, "data");
  EXPECT_EQ(pair.key.calibration->tokens, 200);
  EXPECT_EQ(pair.key.calibration->global_q_heads, 6);
  EXPECT_EQ(pair.key.calibration->global_kv_heads, 2);
  FitOptions other;
  other.composition = Composition::r_h;
  EXPECT_NE(fit(example(), other, Device{}).key.calibration->generation_id,
            pair.key.calibration->generation_id);
}

TEST(Fit, LayerRotationsComeFromTheMeanOverHeads) {
  // Heads whose moments mirror each other: their mean is a multiple of the identity in every basis.
  Statistics statistics = example();
  LayerStatistics& layer = statistics.layers.at(4);
  const Matrix moment = layer.query_outer[0];
  layer.query_outer[1] = 2 * moment.trace() * Matrix::Identity(8, 8) - moment;
  const VectorF eigenvalues = fit(statistics, {}, Device{}).key.layers.at(4).eigenvalues[0];
  EXPECT_NEAR(eigenvalues[0], eigenvalues[7], 1e-5 * eigenvalues[7]);
}

TEST(Fit, RefusesStatisticsThatCannotServe) {
  EXPECT_THROW_WITH(fit(Statistics{}, {}, Device{}), InputError, "no layers");
  Statistics empty = example();
  empty.layers.at(4).tokens = 0;
  EXPECT_THROW_WITH(fit(empty, {}, Device{}), InputError, "layer 4: its statistics hold no tokens");
  Statistics broken = example();
  broken.layers.at(1).output_outer[1](0, 0) = std::nan("");
  EXPECT_THROW_WITH(fit(broken, {}, Device{}), InputError, "layer 1: output_outer of head 1");
}

TEST(FitOptions, AreParsed) {
  FitOptions options;
  apply_objective(options, "ktk+vtv");
  EXPECT_EQ(options.key, "ktk");
  EXPECT_EQ(options.value, "vtv");
  EXPECT_EQ(parse_granularity("head"), Granularity::head);
  EXPECT_STREQ(name_of(parse_granularity("layer")), "layer");
  EXPECT_THROW_WITH(apply_objective(options, "best"), InputError, "oscar, reference");
  EXPECT_THROW_WITH(apply_objective(options, "vtv+ktk"), InputError, "not an objective for keys");
  EXPECT_THROW_WITH(parse_granularity("token"), InputError, "layer and head");
}

TEST(RotationSet, GivesEveryHeadItsMatrix) {
  const RotationPair layer = fit(example(), {}, Device{});
  EXPECT_EQ(&layer.key.matrix(4, 1), &layer.key.layers.at(4).rotation[0]);
  FitOptions per_head;
  per_head.granularity = Granularity::head;
  const RotationPair head = fit(example(), per_head, Device{});
  EXPECT_EQ(&head.value.matrix(4, 1), &head.value.layers.at(4).rotation[1]);
  EXPECT_THROW_WITH(head.value.matrix(4, 2), InputError, "head 2");
  EXPECT_THROW_WITH(head.value.matrix(2, 0), InputError, "layer 2");
}

}  // namespace
}  // namespace oscar
