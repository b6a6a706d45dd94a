#include "oscar/rotation/rotation_set.h"

#include <algorithm>

#include "oscar/core/error.h"

namespace oscar {

bool RotationSet::is_centred() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const auto& item) { return !item.second.mean.empty(); });
}

bool RotationSet::is_orthogonal() const {
  return std::all_of(layers.begin(), layers.end(),
                     [](const auto& item) { return item.second.read.empty(); });
}

const MatrixF& RotationSet::matrix(int layer, int head) const {
  const char* what = side == Side::key ? "key" : "value";
  const auto found = layers.find(layer);
  if (found == layers.end()) {
    fail_input(
        "the {} rotations have no matrix for layer {}; they were made for other layers or another "
        "model",
        what, layer);
  }
  const std::vector<MatrixF>& matrices = found->second.rotation;
  const std::size_t index = granularity == Granularity::layer ? 0 : static_cast<std::size_t>(head);
  if (head < 0 || index >= matrices.size()) {
    fail_input("the {} rotations of layer {} have {} heads; head {} was asked for", what, layer,
               matrices.size(), head);
  }
  return matrices[index];
}

}  // namespace oscar
