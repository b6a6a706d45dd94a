#include "oscar/zoo/pair_folder.h"

#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "oscar/linalg/hadamard.h"
#include "oscar/zoo/diff.h"
#include "oscar/zoo/publish.h"
#include "oscar/zoo/rotation_file.h"
#include "oscar/zoo/verify.h"
#include "support.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

/// A pair of three layers of 8x8, healthy in every respect.
RotationPair good_pair(const std::string& run = "run-1") {
  RotationPair pair;
  pair.key.objective = "qqt_r_h_pbr";
  pair.value.objective = "sst_r_h_pbr";
  pair.value.side = Side::value;
  for (RotationSet* set : {&pair.key, &pair.value}) {
    for (int layer = 0; layer < 3; ++layer) {
      set->layers[layer].rotation = {hadamard(8).cast<float>()};
      set->layers[layer].eigenvalues = {VectorF::LinSpaced(8, 1.0f, 2.0f)};
    }
    set->calibration = Calibration{};
    set->calibration->generation_id = run;
    set->calibration->tokens = 4096;
  }
  return pair;
}

PairInfo info() {
  PairInfo info;
  info.model = "models/Tiny-1B/";
  info.model_fingerprint = "xxh3:1";
  info.tokens = 4096;
  info.sequences = 2;
  info.sequence_length = 2048;
  info.precision = "fp32";
  info.objective = "qqt+sst";
  info.composition = "r_h_pbr";
  info.settings.k_clip = 0.94;
  return info;
}

class Folder : public testing::Test {
 protected:
  Folder() { fs::create_directory(folder_ / "pair"); }
  fs::path write(const RotationPair& pair) {
    write_pair(folder_ / "pair", pair, info());
    return folder_ / "pair";
  }
  bool verified(const RotationPair& pair) { return verify(write(pair)).passed(); }
  test::TemporaryFolder folder_;
};

TEST_F(Folder, PublishesThePatchThatThePairNeeds) {
  const fs::path folder = write(good_pair());
  EXPECT_FALSE(load_pair(folder).patch_file);
  write_file(folder / kPatchFileName, "patch");
  write_pair(folder, good_pair(), info(), {kPatchFileName});
  ASSERT_TRUE(load_pair(folder).patch_file);
  PublishOptions options;
  options.rotations = folder;
  options.zoo = folder_ / "zoo";
  const Published published = publish(options);
  EXPECT_EQ(read_file(published.folder / kPatchFileName), "patch");
  EXPECT_NE(read_file(published.folder / "README.md").find("weights must be patched"),
            std::string::npos);
  write_file(folder / kPatchFileName, "other");
  EXPECT_THROW_WITH(load_pair(folder), InputError, "checkpoint_patch.safetensors differs");
}

TEST_F(Folder, KeepsThePairAndWhatIsKnownOfIt) {
  const PairFolder loaded = load_pair(write(good_pair()));
  EXPECT_EQ(loaded.pair.key.layers.at(1).rotation, good_pair().key.layers.at(1).rotation);
  EXPECT_EQ(loaded.key_file.filename(), "k_rotation_qqt_r_h_pbr.pt");
  EXPECT_EQ(loaded.info->model_fingerprint, "xxh3:1");
  EXPECT_EQ(loaded.info->settings.k_clip, 0.94);
  EXPECT_EQ(loaded.info->sequence_length, 2048);
}

TEST_F(Folder, SamePairSameBytes) {
  const fs::path path = write(good_pair());
  const std::string manifest = read_file(path / "manifest.json");
  write(good_pair());
  EXPECT_EQ(read_file(path / "manifest.json"), manifest);
}

TEST_F(Folder, ReplacesAPairUnderAnotherName) {
  write(good_pair());
  RotationPair other = good_pair();
  other.key.objective = "ktk_r_h_pbr";
  EXPECT_EQ(load_pair(write(other)).key_file.filename(), "k_rotation_ktk_r_h_pbr.pt");
}

TEST_F(Folder, RefusesWhatDoesNotBelongTogether) {
  const fs::path path = write(good_pair());
  EXPECT_THROW_WITH(load_pair(path / "absent"), InputError, "not a folder");
  fs::copy_file(path / "k_rotation_qqt_r_h_pbr.pt", path / "k_rotation_other.pt");
  EXPECT_THROW_WITH(load_pair(path), InputError, "exactly one");
  fs::remove(path / "k_rotation_other.pt");
  RotationPair stranger = good_pair("run-2");
  save_rotations(path / "v_rotation_sst_r_h_pbr.pt", stranger.value);
  EXPECT_THROW_WITH(load_pair(path), InputError, "differs from what the manifest recorded");
  fs::remove(path / "manifest.json");
  EXPECT_THROW_WITH(load_pair(path), InputError, "run-2; they are not a pair");
  stranger = good_pair();
  stranger.value.layers.erase(2);
  save_rotations(path / "v_rotation_sst_r_h_pbr.pt", stranger.value);
  EXPECT_THROW_WITH(load_pair(path), InputError, "not a pair");
}

TEST_F(Folder, VerifyPassesAGoodPair) {
  EXPECT_TRUE(verified(good_pair())) << to_text(verify(folder_ / "pair"));
}

TEST_F(Folder, VerifyFindsWhatLoadersOverlook) {
  const auto failing = [&](const char* name, const std::function<void(RotationPair&)>& spoil) {
    RotationPair pair = good_pair();
    spoil(pair);
    const Verification v = verify(write(pair));
    EXPECT_FALSE(v.passed()) << name;
    EXPECT_NE(to_text(v).find(std::string("FAIL  ") + name), std::string::npos) << to_text(v);
  };
  failing("key orthogonality in fp32",
          [](RotationPair& p) { p.key.layers[1].rotation[0](0, 0) += 1e-4f; });
  failing("value orthogonality in bf16",
          [](RotationPair& p) { p.value.layers[2].rotation[0] *= 1.01f; });
  failing("key coverage", [](RotationPair& p) {
    for (auto* set : {&p.key, &p.value}) {
      set->layers[4] = set->layers[2];  // 3 is missing
    }
  });
  failing("value health", [](RotationPair& p) {
    p.value.layers[0].eigenvalues[0] = VectorF::Zero(8);
    p.value.layers[0].eigenvalues[0][7] = 1;
  });
}

TEST_F(Folder, VerifyKnowsHybrids) {
  RotationPair pair = good_pair();
  for (auto* set : {&pair.key, &pair.value}) {
    const LayerRotation layer = set->layers[0];
    set->layers = {{3, layer}, {7, layer}, {11, layer}};
  }
  EXPECT_TRUE(verified(pair));
}

TEST(Verify, PassesPublishedPairs) {
  OSCAR_NEEDS(test::shared("data/rotations"));
  for (const auto& entry : fs::directory_iterator(test::shared("data/rotations"))) {
    const Verification v = verify(entry.path());
    EXPECT_TRUE(v.passed()) << entry.path() << "\n" << to_text(v);
  }
}

TEST_F(Folder, DiffIsBlindToSignsWhereItSaysSo) {
  const fs::path a = write(good_pair());
  EXPECT_TRUE(diff(a, a).identical);
  const fs::path b = folder_ / "other";
  fs::create_directory(b);
  RotationPair flipped = good_pair();
  flipped.key.layers[1].rotation[0].col(2) *= -1;
  write_pair(b, flipped, info());
  const RotationDiff d = diff(a, b);
  EXPECT_FALSE(d.identical);
  EXPECT_EQ(d.key[0].relative_difference, 0);
  EXPECT_GT(d.key[1].relative_difference, 0.1);
  EXPECT_EQ(d.key[1].relative_difference_up_to_sign, 0);
  EXPECT_NEAR(*d.key[0].leading_angle_degrees, 0, 1e-3);
  EXPECT_NE(to_text(d).find("differ"), std::string::npos);
}

TEST_F(Folder, PublishesInTheZooLayout) {
  const fs::path pair = write(good_pair());
  const fs::path report = folder_ / "report.json";
  write_file(
      report,
      R"({"schema": "oscar-validation", "model_fingerprint": "xxh3:1", "ppl_reference": 10.0, "tokens": 99,
    "dataset_sha256": "d", "sequence_length": 1024, "candidates": {"pair": {"baseline": false, "ppl": 11.5, "kld_mean": 0.1,
    "kld_standard_error": 0.01, "kld_percentiles": {}, "top1_agreement": 0.9, "settings": {}},
    "identity": {"baseline": true}}})");
  PublishOptions options{pair, folder_ / "zoo", "", report, false};
  const Published published = publish(options);
  EXPECT_EQ(published.folder, folder_ / "zoo/Tiny-1B/seq4096_prompt2_group8");
  EXPECT_TRUE(verify(published.folder).passed());
  const std::string card = read_file(published.folder / "README.md");
  EXPECT_TRUE(card.starts_with("---\nlicense: apache-2.0\n"));
  EXPECT_NE(card.find("| 10.000 | 11.500 |"), std::string::npos) << card;
  EXPECT_THROW_WITH(publish(options), InputError, "exists already");
  options.force = true;
  publish(options);
  EXPECT_EQ(std::distance(fs::directory_iterator(published.folder.parent_path()), {}), 1);
  options.model_name = "../evil";
  EXPECT_THROW_WITH(publish(options), InputError, "plain folder name");
}

TEST_F(Folder, DoesNotPublishWhatFailsVerification) {
  RotationPair pair = good_pair();
  pair.key.layers[1].rotation[0] *= 2;
  EXPECT_THROW_WITH(publish({write(pair), folder_ / "zoo", "", std::nullopt, false}), InputError,
                    "must not be published");
  EXPECT_FALSE(fs::exists(folder_ / "zoo"));
}

}  // namespace
}  // namespace oscar
