#include "oscar/zoo/diff.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "oscar/core/error.h"
#include "oscar/linalg/orthogonal.h"
#include "oscar/rotation/composition.h"
#include "oscar/zoo/pair_folder.h"
#include "oscar/zoo/rotation_file.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {

/// The eigenvectors of the leading quarter, taken out of R = U·H·P. Eigenvalues are ascending in
/// every file, so their ranks serve where a file does not store them.
Matrix leading_eigenvectors(const MatrixF& rotation) {
  const auto size = rotation.rows();
  const Vector ascending = Vector::LinSpaced(size, 1, static_cast<double>(size));
  return decompose(Composition::r_h_pbr, rotation.cast<double>(), ascending)
      .rightCols(std::max<Eigen::Index>(1, size / 4));
}

bool has_eigenbasis(const RotationSet& set) {
  return set.objective.ends_with("_r_h_pbr");
}

double up_to_sign(const MatrixF& a, const MatrixF& b) {
  double squares = 0;
  for (Eigen::Index column = 0; column < a.cols(); ++column) {
    squares += std::min((a.col(column) - b.col(column)).squaredNorm(),
                        (a.col(column) + b.col(column)).squaredNorm());
  }
  return std::sqrt(squares) / a.norm();
}

void compare(const RotationSet& a, const RotationSet& b, const std::string& side,
             std::vector<LayerDifference>& out, RotationDiff& result) {
  const auto note_missing = [&](const RotationSet& one, const RotationSet& other,
                                const char* which) {
    for (const auto& [id, layer] : one.layers) {
      if (!other.layers.contains(id))
        result.notes.push_back(fmt::format("{}: layer {} is only in the {}", side, id, which));
    }
  };
  note_missing(a, b, "first");
  note_missing(b, a, "second");
  for (const auto& [id, layer] : a.layers) {
    if (!b.layers.contains(id)) continue;
    const auto& others = b.layers.at(id).rotation;
    // One matrix a layer stands for every KV head.
    const std::size_t heads = std::max(layer.rotation.size(), others.size());
    for (std::size_t head = 0; head < heads; ++head) {
      const MatrixF& x = layer.rotation[layer.rotation.size() == 1 ? 0 : head];
      const MatrixF& y = others[others.size() == 1 ? 0 : std::min(head, others.size() - 1)];
      if (x.rows() != y.rows()) {
        result.notes.push_back(
            fmt::format("{}: layer {} is {}x{} in the first, {}x{} in the second", side, id,
                        x.rows(), x.cols(), y.rows(), y.cols()));
        break;
      }
      LayerDifference d;
      d.layer = id;
      d.head = static_cast<int>(head);
      d.relative_difference = (x - y).norm() / x.norm();
      d.relative_difference_up_to_sign = up_to_sign(x, y);
      if (has_eigenbasis(a) && has_eigenbasis(b)) {
        d.leading_angle_degrees =
            principal_angles(leading_eigenvectors(x), leading_eigenvectors(y)).maxCoeff() * 180 /
            std::numbers::pi;
      }
      out.push_back(d);
    }
  }
}

void table(const std::vector<LayerDifference>& differences, const char* side, std::string& text) {
  if (differences.empty()) return;
  text += fmt::format("{}\n{:>6}  {:>4}  {:>11}  {:>11}  {:>13}\n", side, "layer", "head",
                      "difference", "up to sign", "leading angle");
  for (const LayerDifference& d : differences) {
    text += fmt::format(
        "{:>6}  {:>4}  {:>11.4g}  {:>11.4g}  {:>13}\n", d.layer, d.head, d.relative_difference,
        d.relative_difference_up_to_sign,
        d.leading_angle_degrees ? fmt::format("{:.2f} deg", *d.leading_angle_degrees) : "-");
  }
}

OrderedJson list(const std::vector<LayerDifference>& differences) {
  OrderedJson result = OrderedJson::array();
  for (const LayerDifference& d : differences) {
    result.push_back(
        {{"layer", d.layer},
         {"head", d.head},
         {"relative_difference", d.relative_difference},
         {"relative_difference_up_to_sign", d.relative_difference_up_to_sign},
         {"leading_angle_degrees",
          d.leading_angle_degrees ? OrderedJson(*d.leading_angle_degrees) : OrderedJson(nullptr)}});
  }
  return result;
}

}  // namespace

RotationDiff diff(const fs::path& a, const fs::path& b) {
  RotationDiff result;
  if (fs::is_directory(a) != fs::is_directory(b)) {
    fail_input("{} and {}: compare two folders or two files", a.string(), b.string());
  }
  if (fs::is_directory(a)) {
    const PairFolder x = load_pair(a), y = load_pair(b);
    compare(x.pair.key, y.pair.key, "key", result.key, result);
    compare(x.pair.value, y.pair.value, "value", result.value, result);
  } else {
    compare(load_rotations(a, Side::key), load_rotations(b, Side::key), "rotation", result.key,
            result);
  }
  const auto equal = [](const LayerDifference& d) { return d.relative_difference == 0; };
  result.identical = result.notes.empty() &&
                     std::all_of(result.key.begin(), result.key.end(), equal) &&
                     std::all_of(result.value.begin(), result.value.end(), equal);
  return result;
}

std::string to_text(const RotationDiff& difference) {
  std::string text;
  table(difference.key, difference.value.empty() ? "Rotation" : "Key rotation", text);
  table(difference.value, "Value rotation", text);
  for (const std::string& note : difference.notes) text += note + "\n";
  return text +
         (difference.identical ? "The rotations are identical.\n" : "The rotations differ.\n");
}

OrderedJson to_json(const RotationDiff& difference) {
  return {{"schema", "oscar-diff"},
          {"schema_version", 1},
          {"identical", difference.identical},
          {"key", list(difference.key)},
          {"value", list(difference.value)},
          {"notes", difference.notes}};
}

}  // namespace oscar
