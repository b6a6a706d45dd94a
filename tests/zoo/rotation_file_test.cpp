#include "oscar/zoo/rotation_file.h"

#include <algorithm>
#include <random>

#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "support.h"

namespace oscar {
namespace {

/// The matrix of tests/fixtures/zoo/make_fixtures.py.
MatrixF expected_matrix(int layer) {
  MatrixF m(4, 4);
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j)
      m(i, j) = static_cast<float>(layer) + static_cast<float>(i) + static_cast<float>(j) / 8;
  }
  return m;
}

RotationSet random_set(Granularity granularity, int dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  RotationSet set;
  set.objective = "qqt_r_h_pbr";
  set.granularity = granularity;
  const int matrices = granularity == Granularity::head ? 3 : 1;
  for (const int id : {0, 2, 11}) {
    for (int head = 0; head < matrices; ++head) {
      set.layers[id].rotation.push_back(
          MatrixF::NullaryExpr(dim, dim, [&] { return normal(random); }));
      set.layers[id].eigenvalues.push_back(
          VectorF::NullaryExpr(dim, [&] { return normal(random); }));
    }
  }
  return set;
}

void expect_equal(const RotationSet& a, const RotationSet& b) {
  EXPECT_EQ(a.objective, b.objective);
  EXPECT_EQ(a.granularity, b.granularity);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (const auto& [id, layer] : a.layers) {
    ASSERT_TRUE(b.layers.contains(id));
    EXPECT_EQ(layer.rotation, b.layers.at(id).rotation);
    EXPECT_EQ(layer.eigenvalues, b.layers.at(id).eigenvalues);
  }
}

class ReadsVariant : public testing::TestWithParam<const char*> {};

TEST_P(ReadsVariant, WithTheSameValues) {
  const std::string name = GetParam();
  const RotationSet set = load_rotations(test::fixture("zoo/" + name + ".pt"), Side::key);
  const bool stacked = name == "stacked";
  for (const int id : stacked ? std::vector{0, 1} : std::vector{3, 7}) {
    ASSERT_TRUE(set.layers.contains(id)) << id;
    EXPECT_EQ(set.layers.at(id).rotation[0], expected_matrix(id));
  }
  if (name.starts_with("v1")) {
    EXPECT_EQ(set.objective, "qqt_r_h_pbr");
    EXPECT_EQ(set.layers.at(3).eigenvalues[0], (VectorF(4) << 3, 4, 5, 6).finished());
  }
  if (name == "v2") {
    EXPECT_EQ(set.granularity, Granularity::head);
    EXPECT_EQ(set.layers.at(7).rotation[1], expected_matrix(8));
  }
}

INSTANTIATE_TEST_SUITE_P(RotationFile, ReadsVariant,
                         testing::Values("v1", "v1_string_keys", "v1_ordered", "v1_shared_strided",
                                         "v1_half", "v1_bfloat16", "v1_double", "v2", "flat",
                                         "stacked"));

struct BadFile {
  const char* name;
  const char* message;
  friend std::ostream& operator<<(std::ostream& out, const BadFile& file) {
    return out << file.name;
  }
};

class RefusesFile : public testing::TestWithParam<BadFile> {};

TEST_P(RefusesFile, SayingWhy) {
  EXPECT_THROW_WITH(
      load_rotations(test::fixture(std::string("zoo/") + GetParam().name + ".pt"), Side::key),
      InputError, GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    RotationFile, RefusesFile,
    testing::Values(BadFile{"bad_version", "format_version 9"}, BadFile{"bad_shape", "[4, 5]"},
                    BadFile{"bad_empty", "no layers"}, BadFile{"bad_nan", "not finite"},
                    BadFile{"bad_missing", "no tensor \"rotation\""},
                    BadFile{"bad_key", "not a layer number"}, BadFile{"bad_code", "posix.system"}));

/// A random set of format v3: centred keys, a read side of its own.
RotationSet general_set(Granularity granularity) {
  RotationSet set = random_set(granularity, 8, 4);
  const RotationSet other = random_set(granularity, 8, 5);
  for (auto& [id, layer] : set.layers) {
    layer.read = other.layers.at(id).rotation;
    layer.mean = {VectorF::LinSpaced(8, 0, 1), VectorF::LinSpaced(8, 1, 2),
                  VectorF::LinSpaced(8, 2, 3)};
  }
  set.objective = "stretch";
  return set;
}

TEST(GeneralRotations, KeepTheirReadSidesAndMeans) {
  const test::TemporaryFolder folder;
  for (const Granularity granularity : {Granularity::layer, Granularity::head}) {
    const RotationSet set = general_set(granularity);
    EXPECT_TRUE(set.is_centred());
    EXPECT_FALSE(set.is_orthogonal());
    save_rotations(folder / "k.pt", set);
    const RotationSet again = load_rotations(folder / "k.pt", Side::key);
    expect_equal(set, again);
    for (const auto& [id, layer] : set.layers) {
      EXPECT_EQ(layer.read, again.layers.at(id).read);
      EXPECT_EQ(layer.mean, again.layers.at(id).mean);
    }
  }
}

TEST(GeneralRotations, HoldTheirPartsOnAllLayersOrOnNone) {
  const test::TemporaryFolder folder;
  RotationSet set = general_set(Granularity::head);
  set.layers.at(2).read.clear();
  save_rotations(folder / "k.pt", set);
  EXPECT_THROW_WITH(load_rotations(folder / "k.pt", Side::key), InputError,
                    "\"q_rotation\" is on layer 0 but not on layer 2");
  set = general_set(Granularity::head);
  set.layers.at(11).mean.pop_back();
  save_rotations(folder / "k.pt", set);
  EXPECT_THROW_WITH(load_rotations(folder / "k.pt", Side::key), InputError,
                    "\"k_mean\" holds 2 rows on layer 11");
}

class RoundTrip : public testing::TestWithParam<std::tuple<Granularity, int>> {};

TEST_P(RoundTrip, KeepsEveryBit) {
  const auto [granularity, dim] = GetParam();
  const test::TemporaryFolder folder;
  RotationSet set = random_set(granularity, dim, 1);
  set.calibration = Calibration{.generation_id = "abc", .model_path = "some/model", .tokens = 8192};
  save_rotations(folder / "k.pt", set);
  const RotationSet again = load_rotations(folder / "k.pt", Side::key);
  expect_equal(set, again);
  EXPECT_EQ(again.calibration->generation_id, "abc");
  EXPECT_EQ(again.calibration->tokens, 8192);
  const std::string bytes = read_file(folder / "k.pt");
  save_rotations(folder / "k.pt", again);
  EXPECT_EQ(read_file(folder / "k.pt"), bytes);
}

INSTANTIATE_TEST_SUITE_P(RotationFile, RoundTrip,
                         testing::Combine(testing::Values(Granularity::layer, Granularity::head),
                                          testing::Values(4, 64, 80)));

TEST(RotationFile, ReadsAndRewritesPublishedPairs) {
  OSCAR_NEEDS(test::shared("data/rotations"));
  const test::TemporaryFolder folder;
  int files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(test::shared("data/rotations"))) {
    if (entry.path().extension() != ".pt") continue;
    const RotationSet set = load_rotations(entry.path(), Side::key);
    save_rotations(folder / "copy.pt", set);
    expect_equal(set, load_rotations(folder / "copy.pt", Side::key));
    ++files;
  }
  EXPECT_EQ(files, 8);
}

/// Whatever is done to a file's bytes, reading it ends in a value or an InputError.
TEST(RotationFile, SurvivesDamage) {
  const test::TemporaryFolder folder;
  const std::string whole = read_file(test::fixture("zoo/v1.pt"));
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = whole;
    for (unsigned n = random() % 4 + 1; n-- > 0;)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    if (i % 3 == 0) damaged.resize(random() % damaged.size() + 1);
    write_file(folder / "damaged.pt", damaged);
    try {
      load_rotations(folder / "damaged.pt", Side::key);
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 2000);
}

TEST(RotationFile, NamesAsPublished) {
  RotationSet set = random_set(Granularity::layer, 4, 1);
  EXPECT_EQ(rotation_file_name(set), "k_rotation_qqt_r_h_pbr.pt");
  set.side = Side::value;
  set.objective = "sst_r_h_pbr";
  EXPECT_EQ(rotation_file_name(set), "v_rotation_sst_r_h_pbr.pt");
  set.granularity = Granularity::head;
  EXPECT_EQ(rotation_file_name(set), "v_rotation_perhead.pt");
}

}  // namespace
}  // namespace oscar
