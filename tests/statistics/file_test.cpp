#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "statistics/example.h"
#include "statistics/fields.h"
#include "support.h"

namespace oscar {
namespace {

void expect_equal(const LayerStatistics& a, const LayerStatistics& b) {
  EXPECT_EQ(a.kv_heads, b.kv_heads);
  EXPECT_EQ(a.q_heads, b.q_heads);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.value_dim, b.value_dim);
  EXPECT_EQ(a.tokens, b.tokens);
  for (const auto& field : kOuterFields) EXPECT_EQ(a.*field.member, b.*field.member) << field.name;
  for (const auto& field : kSumFields) EXPECT_EQ(a.*field.member, b.*field.member) << field.name;
  for (const auto& field : kSampleFields) EXPECT_EQ(a.*field.member, b.*field.member) << field.name;
  EXPECT_EQ(a.output_metric, b.output_metric);
  ASSERT_EQ(a.half.size(), b.half.size());
  if (!a.half.empty()) expect_equal(a.half[0], b.half[0]);
}

class StatisticsFile : public testing::TestWithParam<int> {
 protected:
  test::TemporaryFolder folder_;
};

TEST_P(StatisticsFile, ComesBackAsItWas) {
  Statistics saved = test::example(1, GetParam());
  saved.merged_from = {"one", "two"};
  saved.surrogate_additive = false;
  save_statistics(folder_ / "s.h5", saved);
  const Statistics loaded = load_statistics(folder_ / "s.h5");
  EXPECT_EQ(loaded.model, saved.model);
  EXPECT_EQ(loaded.model_fingerprint, saved.model_fingerprint);
  EXPECT_EQ(loaded.tokenizer_fingerprint, saved.tokenizer_fingerprint);
  EXPECT_EQ(loaded.dataset_sha256, saved.dataset_sha256);
  EXPECT_EQ(loaded.tool_version, saved.tool_version);
  EXPECT_EQ(loaded.precision, saved.precision);
  EXPECT_EQ(loaded.patch_sha256, saved.patch_sha256);
  EXPECT_EQ(loaded.tokens, saved.tokens);
  EXPECT_EQ(loaded.sequences, saved.sequences);
  EXPECT_EQ(loaded.sequence_length, saved.sequence_length);
  EXPECT_EQ(loaded.merged_from, saved.merged_from);
  EXPECT_EQ(loaded.surrogate_additive, saved.surrogate_additive);
  ASSERT_EQ(loaded.layers.size(), 2u);
  for (const auto& [id, layer] : saved.layers) {
    EXPECT_EQ(loaded.layers.at(id).samples(), GetParam());
    expect_equal(loaded.layers.at(id), layer);
  }
}

TEST_P(StatisticsFile, OneLayerComesBackAsItWas) {
  const LayerStatistics saved = test::example_layer(5, GetParam());
  save_layer(folder_ / "layer.h5", 12, saved);
  expect_equal(load_layer(folder_ / "layer.h5", 12), saved);
}

TEST(OldStatisticsFile, LoadsWithoutAnOutputMetric) {
  const test::TemporaryFolder folder;
  LayerStatistics old = test::example_layer(5);
  old.output_metric.clear();
  save_layer(folder / "layer.h5", 12, old);
  EXPECT_TRUE(load_layer(folder / "layer.h5", 12).output_metric.empty());
}

INSTANTIATE_TEST_SUITE_P(Samples, StatisticsFile, testing::Values(0, 5));

TEST(StatisticsBytes, DoNotDependOnTheTime) {
  const test::TemporaryFolder folder;
  save_statistics(folder / "a.h5", test::example(1));
  save_layer(folder / "a_layer.h5", 3, test::example_layer(1));
  std::this_thread::sleep_for(
      std::chrono::milliseconds(1100));  // HDF5's time stamps are whole seconds
  save_statistics(folder / "b.h5", test::example(1));
  save_layer(folder / "b_layer.h5", 3, test::example_layer(1));
  EXPECT_EQ(read_file(folder / "a.h5"), read_file(folder / "b.h5"));
  EXPECT_EQ(read_file(folder / "a_layer.h5"), read_file(folder / "b_layer.h5"));
}

TEST(StatisticsBytes, SurviveLoadingAndSaving) {
  const test::TemporaryFolder folder;
  Statistics many = test::example(1);
  for (int id = 10; id < 74; ++id)
    many.layers.emplace(id, test::example_layer(static_cast<unsigned>(id)));
  for (int run = 0; run < 3000; ++run) many.merged_from.push_back(sha256_hex(std::to_string(run)));
  save_statistics(folder / "a.h5", many);
  save_statistics(folder / "b.h5", load_statistics(folder / "a.h5"));
  EXPECT_EQ(read_file(folder / "a.h5"), read_file(folder / "b.h5"));
}

TEST(StatisticsBytes, AreNotWrittenForImpossibleStatistics) {
  const test::TemporaryFolder folder;
  Statistics bad = test::example(1);
  bad.layers.at(7).key_outer.pop_back();
  EXPECT_THROW_WITH(save_statistics(folder / "s.h5", bad), InputError,
                    "layer 7: key_outer has 1 heads");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(StatisticsZeros, AreTheNeutralElement) {
  LayerStatistics layer = test::example_layer(3);
  layer.merge(LayerStatistics::zeros(2, 6, 4, 3));
  expect_equal(layer, test::example_layer(3));
  EXPECT_EQ(layer.group(), 3);
  EXPECT_EQ(layer.query_rows(), 60);
}

}  // namespace
}  // namespace oscar
