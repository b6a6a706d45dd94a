#include <algorithm>

#include "oscar/linalg/orthogonal.h"
#include "oscar/rotation/composition.h"
#include "oscar/rotation/health.h"
#include "oscar/zoo/pair_folder.h"
#include "oscar/zoo/rotation_file.h"
#include "support.h"

namespace oscar {
namespace {

/// The largest entry of the difference of two matrices, whatever the signs of their columns.
double difference_up_to_sign(const Matrix& a, const Matrix& b) {
  double largest = 0;
  for (Eigen::Index column = 0; column < a.cols(); ++column) {
    largest = std::max(largest, std::min((a.col(column) - b.col(column)).cwiseAbs().maxCoeff(),
                                         (a.col(column) + b.col(column)).cwiseAbs().maxCoeff()));
  }
  return largest;
}

/// Pairs of real models that others published.
class PublishedPair : public testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path folder() const {
    return test::shared("data/rotations") / std::string(GetParam());
  }
};

TEST_P(PublishedPair, IsOneHealthyRotationALayer) {
  OSCAR_NEEDS(folder());
  const RotationPair pair = load_pair(folder()).pair;
  for (const RotationSet* set : {&pair.key, &pair.value}) {
    EXPECT_EQ(set->layers.size(), 36u);
    EXPECT_EQ(set->granularity, Granularity::layer);
    for (const auto& [id, layer] : set->layers) {
      ASSERT_EQ(layer.rotation.size(), 1u);
      ASSERT_EQ(layer.rotation[0].rows(), 128);
      EXPECT_LE(orthogonality_error(layer.rotation[0]), 1e-6) << "layer " << id;
    }
  }
  EXPECT_NE(check_health(pair).verdict, Health::bad) << check_health(pair).message;
}

TEST_P(PublishedPair, ComesApartIntoItsFactorsAndTogetherAgain) {
  OSCAR_NEEDS(folder());
  const RotationPair pair = load_pair(folder()).pair;
  for (const RotationSet* set : {&pair.key, &pair.value}) {
    for (const auto& [id, layer] : set->layers) {
      const Matrix rotation = layer.rotation[0].cast<double>();
      const Vector eigenvalues = layer.eigenvalues.at(0).cast<double>();
      EXPECT_TRUE(std::is_sorted(eigenvalues.begin(), eigenvalues.end())) << "layer " << id;
      const Matrix u = decompose(Composition::r_h_pbr, rotation, eigenvalues);
      EXPECT_LE(orthogonality_error(MatrixF(u.cast<float>())), 1e-6) << "layer " << id;
      EXPECT_LE(difference_up_to_sign(compose(Composition::r_h_pbr, u, eigenvalues), rotation),
                1e-5)
          << "layer " << id;
      EXPECT_GT(difference_up_to_sign(compose(Composition::r_h, u, eigenvalues), rotation), 1e-2)
          << "without P it must be another matrix; layer " << id;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo, PublishedPair, testing::Values("Qwen3-8B", "Qwen3-4B-Thinking-2507"),
                         [](const auto& name) {
                           std::string word = name.param;
                           std::replace(word.begin(), word.end(), '-', '_');
                           return word;
                         });

TEST(PublishedHybrid, HoldsTheFullAttentionLayersOnly) {
  const auto folder = test::shared("data/rotations/Qwen3.5-4B");
  OSCAR_NEEDS(folder);
  const RotationSet key = load_rotations(folder / "k_rotation.pt", Side::key);
  std::vector<int> layers;
  for (const auto& [id, layer] : key.layers) layers.push_back(id);
  EXPECT_EQ(layers, (std::vector<int>{3, 7, 11, 15, 19, 23, 27, 31}));
  EXPECT_EQ(key.matrix(31, 0).rows(), 256);
}

TEST(PublishedHybrid, MayShareOneStorageAmongItsLayers) {
  const auto folder = test::shared("data/rotations/Qwen3.5-4B-hadamard");
  OSCAR_NEEDS(folder);
  const RotationSet key = load_rotations(folder / "k_rotation.pt", Side::key);
  ASSERT_EQ(key.layers.size(), 8u);
  EXPECT_EQ(key.matrix(3, 0), key.matrix(31, 0));
  EXPECT_LE(orthogonality_error(key.matrix(3, 0)), 1e-6);
}

}  // namespace
}  // namespace oscar
