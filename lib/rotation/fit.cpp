#include "oscar/rotation/fit.h"

#include <algorithm>
#include <numeric>

#include "oscar/core/error.h"
#include "oscar/core/hash.h"
#include "oscar/linalg/orthogonal.h"
#include "rotation/objectives/attended.h"
#include "rotation/objectives/moment.h"

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

/// The mean key of every KV head.
std::vector<VectorF> means_of(const LayerStatistics& layer) {
  std::vector<VectorF> means;
  for (const Vector& sum : layer.key_sum) {
    means.push_back((sum / static_cast<double>(layer.tokens)).cast<float>());
  }
  return means;
}

/// A unit's sampled rows as they are stored before R, and what their errors cost.
TrainingRows training_rows(Side side, const FitUnit& unit, bool centred) {
  const LayerStatistics& layer = *unit.statistics;
  TrainingRows result;
  if (layer.samples() == 0) return result;
  const auto& samples = side == Side::key ? layer.key_samples : layer.value_samples;
  for (const int number : unit.heads) {
    const auto head = static_cast<std::size_t>(number);
    MatrixF rows = samples[head];
    if (centred) {
      rows.rowwise() -=
          (layer.key_sum[head] / static_cast<double>(layer.tokens)).cast<float>().transpose();
    }
    result.rows.push_back(std::move(rows));
    result.weight.push_back(row_weights(layer, head, side));
    result.metric.push_back(error_cost(layer, head, side));
  }
  return result;
}

/// Throws if the two sides of what an objective gave do not undo each other.
void check_duality(const Objective& objective, int layer, const MatrixF& write,
                   const MatrixF& read) {
  const double error =
      duality_error(write, read) / std::max(1.0, duality_amplification(write, read));
  if (!(error <= kOrthogonalityLimit)) {
    fail("layer {}: the objective {} gave matrices that do not undo each other (max|RQᵀ-I| = {:g})",
         layer, objective.name(), error);
  }
}

RotationSet fit_side(Side side, const std::vector<FitUnit>& units, const FitOptions& options,
                     const Device& device) {
  const Objective& objective =
      find_objective(side, side == Side::key ? options.key : options.value);
  const bool centred = options.centred && side == Side::key;
  std::vector<FittedMatrix> fitted = objective.fit(units, {options.composition, device, centred});
  RotationSet set;
  set.side = side;
  set.granularity = options.granularity;
  set.objective = objective.file_name(options.composition);
  if (options.training.steps > 0) {
    std::vector<TrainingRows> rows;
    for (const FitUnit& unit : units) rows.push_back(training_rows(side, unit, centred));
    train(fitted, rows, side == Side::key ? options.k_clip : options.v_clip, options.training,
          device);
    set.objective += "_trained";
  }
  for (std::size_t i = 0; i < units.size(); ++i) {
    LayerRotation& layer = set.layers[units[i].layer];
    layer.rotation.push_back(fitted[i].rotation.cast<float>());
    layer.eigenvalues.push_back(fitted[i].eigenvalues.cast<float>());
    if (fitted[i].read.size() > 0) layer.read.push_back(fitted[i].read.cast<float>());
    if (centred && layer.mean.empty()) layer.mean = means_of(*units[i].statistics);
    check_duality(objective, units[i].layer, layer.rotation.back(), layer.read_side().back());
  }
  return set;
}

void hash_side(Sha256& hash, const RotationSet& set) {
  hash.update(set.objective);
  for (const auto& [id, layer] : set.layers) {
    hash.update(fmt::format("\n{}\n", id));
    const auto add = [&hash](const auto& parts) {
      for (const auto& part : parts) {
        hash.update(std::as_bytes(std::span(part.data(), static_cast<std::size_t>(part.size()))));
      }
    };
    add(layer.rotation);
    add(layer.read);
    add(layer.mean);
  }
}

}  // namespace

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
