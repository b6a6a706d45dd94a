#include <gtest/gtest.h>

#include <algorithm>

#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "statistics/example.h"
#include "support.h"

namespace oscar {
namespace {

std::string bytes_of(const Statistics& statistics) {
  const test::TemporaryFolder folder;
  save_statistics(folder / "s.h5", statistics);
  return read_file(folder / "s.h5");
}

TEST(Merge, AddsSumsAndCounts) {
  const Statistics a = test::example(1, 5), b = test::example(2, 4);
  const Statistics sum = merge({a, b});
  EXPECT_EQ(sum.tokens, 40);
  EXPECT_EQ(sum.sequences, 4);
  EXPECT_EQ(sum.sequence_length, 12);
  EXPECT_FALSE(sum.surrogate_additive);
  EXPECT_EQ(sum.merged_from.size(), 2u);
  const LayerStatistics &left = a.layers.at(7), &right = b.layers.at(7), &total = sum.layers.at(7);
  EXPECT_EQ(total.tokens, 40);
  EXPECT_EQ(total.query_outer[1], left.query_outer[1] + right.query_outer[1]);
  EXPECT_EQ(total.output_outer[0], left.output_outer[0] + right.output_outer[0]);
  EXPECT_EQ(total.key_sum[1], left.key_sum[1] + right.key_sum[1]);
  EXPECT_EQ(total.samples(), 9);
  ASSERT_EQ(total.half.size(), 1u);
  EXPECT_EQ(total.half[0].tokens, 16);
  EXPECT_EQ(total.half[0].key_sum[1], left.half[0].key_sum[1] + right.half[0].key_sum[1]);
  ASSERT_EQ(total.half[0].samples(), 4);
  EXPECT_EQ(total.half[0].value_samples[1], MatrixF(total.value_samples[1].topRows(4)))
      << "the halves' rows come first";
  EXPECT_EQ(total.value_samples[1].bottomRows(2), right.value_samples[1].bottomRows(2));
  EXPECT_TRUE(sum.layers.at(3).half.empty());
  EXPECT_EQ(total.output_metric, left.output_metric) << "of the model, not of the tokens";
}

TEST(Merge, GivesTheSameBytesInAnyOrder) {
  std::vector<unsigned> order = {1, 2, 3, 4};
  const std::string expected =
      bytes_of(merge({test::example(1), test::example(2), test::example(3), test::example(4)}));
  while (std::next_permutation(order.begin(), order.end())) {
    std::vector<Statistics> parts;
    for (const unsigned seed : order) parts.push_back(test::example(seed));
    ASSERT_EQ(bytes_of(merge(std::move(parts))), expected);
  }
}

TEST(Merge, OfOneFileIsThatFile) {
  EXPECT_EQ(bytes_of(merge({test::example(1)})), bytes_of(test::example(1)));
}

TEST(Merge, OfMergedFilesNamesEveryRun) {
  const Statistics nested = merge({merge({test::example(1), test::example(2)}), test::example(3)});
  const Statistics flat = merge({test::example(1), test::example(2), test::example(3)});
  EXPECT_EQ(nested.merged_from, flat.merged_from);
  EXPECT_EQ(nested.dataset_sha256, flat.dataset_sha256);
  EXPECT_EQ(nested.tokens, flat.tokens);
}

TEST(Merge, RefusesTheSameDataTwice) {
  EXPECT_THROW_WITH(merge({test::example(1), test::example(2), test::example(1)}), InputError,
                    "comes twice");
  const Statistics earlier = merge({test::example(1), test::example(2)});
  EXPECT_THROW_WITH(merge({earlier, test::example(2)}), InputError, "comes twice");
  EXPECT_THROW_WITH(merge({}), InputError, "no statistics");
}

struct Difference {
  const char* name;
  void (*change)(Statistics&);
  const char* message;
};
void PrintTo(const Difference& d, std::ostream* out) {
  *out << d.name;
}

class MergeRefuses : public testing::TestWithParam<Difference> {};

TEST_P(MergeRefuses, RunsThatDoNotBelongTogether) {
  Statistics other = test::example(2);
  GetParam().change(other);
  EXPECT_THROW_WITH(merge({test::example(1), other}), InputError, GetParam().message);
  EXPECT_THROW_WITH(merge({other, test::example(1)}), InputError, GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Differences, MergeRefuses,
    testing::Values(
        Difference{"model", [](Statistics& s) { s.model_fingerprint = "others"; },
                   "different models"},
        Difference{"tokenizer", [](Statistics& s) { s.tokenizer_fingerprint = "others"; },
                   "different tokenizers"},
        Difference{"patch", [](Statistics& s) { s.patch_sha256 = "1"; },
                   "different checkpoint patches"},
        Difference{"precision", [](Statistics& s) { s.precision = "bf16"; }, "different precision"},
        Difference{"a layer less", [](Statistics& s) { s.layers.erase(7); },
                   "layers cannot be merged"},
        Difference{"another layer",
                   [](Statistics& s) {
                     auto node = s.layers.extract(7);
                     node.key() = 8;
                     s.layers.insert(std::move(node));
                   },
                   "is in one statistics file and not in another"},
        Difference{"shape", [](Statistics& s) { s.layers[7] = LayerStatistics::zeros(2, 6, 4, 4); },
                   "layer 7: statistics of different shapes"},
        Difference{"samples", [](Statistics& s) { s.layers[3] = test::example_layer(9, 4); },
                   "row samples"}),
    [](const auto& test) {
      std::string name = test.param.name;
      std::replace(name.begin(), name.end(), ' ', '_');
      return name;
    });

}  // namespace
}  // namespace oscar
