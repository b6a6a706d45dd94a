#include "oscar/zoo/verify.h"

#include <algorithm>
#include <limits>

#include "oscar/core/error.h"
#include "oscar/linalg/orthogonal.h"
#include "oscar/zoo/pair_folder.h"
#include "oscar/zoo/rotation_file.h"
#include "zoo/manifest.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {

constexpr double kOrthogonalFp32 = 1e-6, kOrthogonalBf16 = 5e-3;
/// Published pairs have participation ratios from 3.6 up, and smallest eigenvalues above 1e-4 of
/// the largest; a dozen calibration tokens leave most eigenvalues at rounding error.
constexpr double kSmallestParticipation = 1.5, kNumericallyZero = 1e-9, kLargestZeroShare = 0.1;

Check coverage(const RotationSet& set, const std::string& side) {
  std::vector<int> ids;
  for (const auto& [id, layer] : set.layers) ids.push_back(id);
  const int step = ids.size() > 1 ? ids[1] - ids[0] : 1;
  std::vector<int> holes;
  for (std::size_t i = 1; i < ids.size(); ++i) {
    for (int missing = ids[i - 1] + step; missing < ids[i]; missing += step)
      holes.push_back(missing);
  }
  // Hybrid models keep every n-th layer, the last of each group: 3, 7, 11, ...
  const bool regular = holes.empty() && (ids[0] == 0 || ids[0] == step - 1);
  return {side + " coverage", regular,
          regular ? fmt::format("{} layers, {} to {}{}", ids.size(), ids.front(), ids.back(),
                                step > 1 ? fmt::format(", every {}th", step) : "")
                  : fmt::format(
                        "layers {} to {} with holes ({}); engines silently use the identity there",
                        ids.front(), ids.back(),
                        holes.empty() ? fmt::format("0 to {}", ids[0] - 1)
                                      : fmt::format("{}", fmt::join(holes, ", ")))};
}

Check shapes(const RotationSet& set, const std::string& side) {
  const auto& first = set.layers.begin()->second.rotation;
  for (const auto& [id, layer] : set.layers) {
    for (const MatrixF& matrix : layer.rotation) {
      if (matrix.rows() % 4 != 0 || matrix.rows() < 4) {
        return {side + " shapes", false,
                fmt::format("layer {}: dimension {} is not a multiple of 4, so it cannot be packed",
                            id, matrix.rows())};
      }
    }
  }
  return {side + " shapes", true,
          first.size() > 1
              ? fmt::format("{} KV heads of {}x{}", first.size(), first[0].rows(), first[0].cols())
              : fmt::format("{}x{}", first[0].rows(), first[0].cols())};
}

Check orthogonality(const RotationSet& set, const std::string& side, bool rounded) {
  double worst = 0;
  int layer_of_worst = set.layers.begin()->first;
  for (const auto& [id, layer] : set.layers) {
    for (std::size_t i = 0; i < layer.rotation.size(); ++i) {
      const MatrixF &write = layer.rotation[i], &read = layer.read_side()[i];
      const double error = rounded
                               ? duality_error(round_to_bfloat16(write), round_to_bfloat16(read))
                               : duality_error(write, read);
      // Rounding counts relative to the entries, which are larger where the two sides differ.
      const double relative = error / std::max(1.0, duality_amplification(write, read));
      if (!(relative <= worst)) {
        worst = relative;
        layer_of_worst = id;
      }
    }
  }
  const bool orthogonal = set.is_orthogonal();
  const double limit = rounded ? kOrthogonalBf16 : kOrthogonalFp32;
  return {fmt::format("{} {} in {}", side, orthogonal ? "orthogonality" : "duality",
                      rounded ? "bf16" : "fp32"),
          worst <= limit,
          fmt::format("largest {} {:.2g} (layer {}), at most {:.0e}",
                      orthogonal ? "|RR' - I|" : "|RQ' - I| / max |R||Q'|", worst, layer_of_worst,
                      limit)};
}

Check health(const RotationSet& set, const std::string& side) {
  double smallest = std::numeric_limits<double>::infinity(), zero_share = 0;
  for (const auto& [id, layer] : set.layers) {
    for (const VectorF& values : layer.eigenvalues) {
      const Vector v = values.cast<double>().cwiseMax(0.0);
      const double squares = v.squaredNorm();
      smallest = std::min(smallest, squares > 0 ? v.sum() * v.sum() / squares : 0);
      const auto zeros = (v.array() <= kNumericallyZero * v.maxCoeff()).count();
      zero_share = std::max(zero_share, static_cast<double>(zeros) / static_cast<double>(v.size()));
    }
  }
  if (smallest == std::numeric_limits<double>::infinity()) {
    return {side + " health", true, "no eigenvalues in the file, so it cannot be judged"};
  }
  const bool sound = smallest >= kSmallestParticipation && zero_share <= kLargestZeroShare;
  return {
      side + " health", sound,
      fmt::format("smallest participation ratio {:.1f}, {:.0f} % of a layer's eigenvalues vanish{}",
                  smallest, 100 * zero_share, sound ? "" : "; too few calibration tokens?")};
}

void check_set(const RotationSet& set, const std::string& side, std::vector<Check>& checks) {
  checks.push_back(coverage(set, side));
  checks.push_back(shapes(set, side));
  checks.push_back(orthogonality(set, side, false));
  checks.push_back(orthogonality(set, side, true));
  checks.push_back(health(set, side));
}

void check_pair(const fs::path& folder, std::vector<Check>& checks) {
  const PairFolder pair = load_pair(folder);
  checks.push_back({"schema", true, "both files load"});
  checks.push_back({"hashes", true,
                    pair.info ? "as manifest.json recorded" : "no manifest.json to compare with"});
  check_set(pair.pair.key, "key", checks);
  check_set(pair.pair.value, "value", checks);
  const auto& run = pair.pair.key.calibration;
  checks.push_back(
      {"one run", true,
       run && pair.pair.value.calibration ? "run " + run->generation_id : "the files name no run"});
}

}  // namespace

bool Verification::passed() const {
  return std::all_of(checks.begin(), checks.end(), [](const Check& check) { return check.passed; });
}

Verification verify(const fs::path& path) {
  if (!fs::exists(path)) fail_input("{}: does not exist", path.string());
  Verification result;
  try {
    if (fs::is_directory(path)) {
      check_pair(path, result.checks);
    } else {
      const RotationSet set = load_rotations(path, Side::key);
      result.checks.push_back({"schema", true, "the file loads"});
      check_set(set, "rotation", result.checks);
    }
  } catch (const InputError& error) {
    result.checks.push_back({"readable", false, error.what()});
  }
  return result;
}

std::string to_text(const Verification& verification) {
  std::string text;
  for (const Check& check : verification.checks) {
    text +=
        fmt::format("{}  {:<28}  {}\n", check.passed ? "ok  " : "FAIL", check.name, check.detail);
  }
  return text + (verification.passed() ? "All checks passed.\n" : "Some checks failed.\n");
}

OrderedJson to_json(const Verification& verification) {
  OrderedJson checks = OrderedJson::array();
  for (const Check& check : verification.checks) {
    checks.push_back({{"name", check.name}, {"passed", check.passed}, {"detail", check.detail}});
  }
  return {{"schema", "oscar-verification"},
          {"schema_version", 1},
          {"passed", verification.passed()},
          {"checks", checks}};
}

}  // namespace oscar
