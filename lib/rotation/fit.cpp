#include "oscar/rotation/fit.h"

#include <numeric>

#include "oscar/core/error.h"
#include "oscar/core/hash.h"
#include "oscar/linalg/orthogonal.h"

namespace oscar {

namespace {

constexpr double kOrthogonalityLimit = 1e-6;  ///< contract, section 4
constexpr std::size_t kGenerationIdDigits = 32;

/// The matrices to fit, layer by layer.
std::vector<FitUnit> units_of(const Statistics& statistics, Granularity granularity) {
  std::vector<FitUnit> units;
  for (const auto& [id, layer] : statistics.layers) {
    if (layer.tokens < 1) fail_input("layer {}: its statistics hold no tokens", id);
    layer.check(fmt::format("layer {}", id));
    std::vector<int> heads(static_cast<std::size_t>(layer.kv_heads));
    std::iota(heads.begin(), heads.end(), 0);
    if (granularity == Granularity::layer) {
      units.push_back({id, &layer, heads});
    } else {
      for (const int head : heads) units.push_back({id, &layer, {head}});
    }
  }
  return units;
}

RotationSet fit_side(Side side, const std::vector<FitUnit>& units, const FitOptions& options,
                     const Device& device) {
  const Objective& objective =
      find_objective(side, side == Side::key ? options.key : options.value);
  const std::vector<FittedMatrix> fitted = objective.fit(units, {options.composition, device});
  RotationSet set;
  set.side = side;
  set.granularity = options.granularity;
  set.objective = objective.file_name(options.composition);
  for (std::size_t i = 0; i < units.size(); ++i) {
    const MatrixF rotation = fitted[i].rotation.cast<float>();
    const double error = orthogonality_error(rotation);
    if (!(error <= kOrthogonalityLimit)) {
      fail("layer {}: the objective {} gave a matrix that is not orthonormal (max|RRᵀ-I| = {:g})",
           units[i].layer, objective.name(), error);
    }
    LayerRotation& layer = set.layers[units[i].layer];
    layer.rotation.push_back(rotation);
    layer.eigenvalues.push_back(fitted[i].eigenvalues.cast<float>());
  }
  return set;
}

void hash_side(Sha256& hash, const RotationSet& set) {
  hash.update(set.objective);
  for (const auto& [id, layer] : set.layers) {
    hash.update(fmt::format("\n{}\n", id));
    for (const MatrixF& rotation : layer.rotation) {
      hash.update(
          std::as_bytes(std::span(rotation.data(), static_cast<std::size_t>(rotation.size()))));
    }
  }
}

Calibration calibration_of(const Statistics& statistics, const RotationPair& pair) {
  const LayerStatistics& first = statistics.layers.begin()->second;
  Calibration calibration;
  calibration.model_path = statistics.model;
  calibration.model_fingerprint = statistics.model_fingerprint;
  calibration.prompt_sha256 = statistics.dataset_sha256;
  calibration.tokens = statistics.tokens;
  calibration.global_q_heads = first.q_heads;
  calibration.global_kv_heads = first.kv_heads;
  Sha256 hash;
  hash.update(fmt::format("{}\n{}\n{}\n{}\n", statistics.model_fingerprint,
                          statistics.dataset_sha256, statistics.tokens, statistics.precision));
  hash_side(hash, pair.key);
  hash_side(hash, pair.value);
  calibration.generation_id = hash.hex().substr(0, kGenerationIdDigits);
  return calibration;
}

}  // namespace

RotationPair fit(const Statistics& statistics, const FitOptions& options, const Device& device) {
  if (statistics.layers.empty())
    fail_input("the statistics hold no layers; there is nothing to fit");
  const std::vector<FitUnit> units = units_of(statistics, options.granularity);
  RotationPair pair{fit_side(Side::key, units, options, device),
                    fit_side(Side::value, units, options, device)};
  pair.key.calibration = pair.value.calibration = calibration_of(statistics, pair);
  return pair;
}

}  // namespace oscar
