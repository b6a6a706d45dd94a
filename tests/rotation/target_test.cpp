#include "oscar/rotation/target.h"

#include "oscar/core/error.h"
#include "oscar/rotation/mixture.h"
#include "support.h"

namespace oscar {
namespace {

FitOptions preset(const char* name) {
  FitOptions options;
  apply_objective(options, name);
  return options;
}

TEST(Target, LoadsItsOwnPreset) {
  for (const Target& target : targets()) {
    EXPECT_TRUE(can_load(target, preset(target.preset))) << target.name;
    EXPECT_NO_THROW(check_target(preset(target.preset), target)) << target.name;
  }
}

TEST(Target, RefusesWhatItsFormatCannotHold) {
  const Target &layers = find_target("sglang-v1"), &heads = find_target("sglang-v2"),
               &general = find_target("sglang-v3");
  EXPECT_FALSE(can_load(layers, preset("head-offset")));
  EXPECT_FALSE(can_load(heads, preset("stretch")));
  FitOptions centred = preset("oscar");
  centred.centred = true;
  EXPECT_FALSE(can_load(heads, centred));
  EXPECT_TRUE(can_load(general, centred));
  EXPECT_THROW_WITH(check_target(preset("head-offset"), layers), InputError,
                    "sglang-v1 loads one matrix a layer");
  EXPECT_THROW_WITH(check_target(centred, heads), InputError, "centred keys");
  EXPECT_THROW_WITH(find_target("tensorrt"), InputError, "\"tensorrt\" is not a target");
}

RotationSet rotations(float angle, int matrices) {
  RotationSet set;
  set.objective = "of " + std::to_string(matrices);
  set.granularity = matrices == 1 ? Granularity::layer : Granularity::head;
  for (const int layer : {0, 1}) {
    for (int i = 0; i < matrices; ++i) {
      MatrixF matrix(2, 2);
      const float turned = angle + static_cast<float>(i);
      matrix << std::cos(turned), std::sin(turned), -std::sin(turned), std::cos(turned);
      set.layers[layer].rotation.push_back(matrix);
      set.layers[layer].eigenvalues.push_back(VectorF::LinSpaced(2, 1, 2));
    }
  }
  return set;
}

TEST(Mixture, TakesEachLayerFromItsSource) {
  const RotationSet a = rotations(0.1f, 1), b = rotations(0.2f, 1);
  const RotationSet mixed = mix({{0, &a}, {1, &b}}, 2);
  EXPECT_EQ(mixed.layers.at(0).rotation, a.layers.at(0).rotation);
  EXPECT_EQ(mixed.layers.at(1).rotation, b.layers.at(1).rotation);
  EXPECT_EQ(mixed.granularity, Granularity::layer);
  EXPECT_FALSE(mixed.is_general());
  EXPECT_EQ(mixed.objective, "of 1");
}

TEST(Mixture, TakesTheMostGeneralForm) {
  const RotationSet layer = rotations(0.1f, 1);
  RotationSet head = rotations(0.2f, 2);
  for (auto& [id, rotation] : head.layers) {
    rotation.read = rotation.rotation;
    for (MatrixF& matrix : rotation.rotation) matrix *= 2;
    for (MatrixF& matrix : rotation.read) matrix /= 2;
    rotation.mean.assign(2, VectorF::Ones(2));
  }
  const RotationSet mixed = mix({{0, &layer}, {1, &head}}, 2);
  EXPECT_EQ(mixed.granularity, Granularity::head);
  EXPECT_EQ(mixed.objective, "mixed");
  const LayerRotation& widened = mixed.layers.at(0);
  const MatrixF& source = layer.layers.at(0).rotation[0];
  EXPECT_EQ(widened.rotation, (std::vector{source, source}));
  EXPECT_EQ(widened.read, (std::vector{source, source}));
  EXPECT_EQ(widened.mean, std::vector<VectorF>(2, VectorF::Zero(2)));
  EXPECT_EQ(widened.eigenvalues.size(), 2u);
  EXPECT_EQ(mixed.layers.at(1).read, head.layers.at(1).read);
  RotationSet hole = layer;
  hole.layers.erase(1);
  EXPECT_THROW_WITH(mix({{0, &layer}, {1, &hole}}, 2), InputError, "no rotation for layer 1");
}

}  // namespace
}  // namespace oscar
