#include "validate/candidate.h"

#include <algorithm>

#include "oscar/core/error.h"
#include "oscar/core/log.h"
#include "oscar/linalg/hadamard.h"
#include "oscar/linalg/orthogonal.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {

/// Beyond this a matrix is not a rotation in any precision; `oscar-export verify` asks for 1e-6.
constexpr double kOrthogonalityLimit = 1e-3;

void check_side(const RotationSet& set, const char* side, int dim, const ModelConfig& config,
                const std::string& source) {
  for (int layer = 0; layer < config.layers; ++layer) {
    if (!set.layers.contains(layer)) {
      fail_input(
          "{}: the {} file has no rotation for layer {}; the model has layers 0 to {}, and engines "
          "need every one",
          source, side, layer, config.layers - 1);
    }
  }
  if (set.layers.rbegin()->first >= config.layers) {
    fail_input(
        "{}: the {} file has a rotation for layer {}, but the model has {} layers; is it for "
        "another "
        "model?",
        source, side, set.layers.rbegin()->first, config.layers);
  }
  for (const auto& [id, layer] : set.layers) {
    const auto count = layer.rotation.size();
    if (count != 1 && count != static_cast<std::size_t>(config.kv_heads)) {
      fail_input("{}: the {} file has {} matrices in layer {}, but the model has {} KV heads",
                 source, side, count, id, config.kv_heads);
    }
    if (layer.mean.size() > 1 && layer.mean.size() != static_cast<std::size_t>(config.kv_heads)) {
      fail_input("{}: the {} file has {} means in layer {}, but the model has {} KV heads", source,
                 side, layer.mean.size(), id, config.kv_heads);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const MatrixF& matrix = layer.rotation[i];
      if (matrix.rows() != dim) {
        fail_input("{}: the {} rotation of layer {} is {}x{}, but the model's head dimension is {}",
                   source, side, id, matrix.rows(), matrix.cols(), dim);
      }
      const double error = duality_error(matrix, layer.read_side()[i]);
      if (!(error <= kOrthogonalityLimit)) {
        fail_input(
            "{}: the {} rotation of layer {} is not {} (largest entry of R{}' - I: {:.2g}); "
            "queries and keys would no longer meet",
            source, side, id, layer.read.empty() ? "orthogonal" : "the inverse of its read side",
            layer.read.empty() ? 'R' : 'Q', error);
      }
    }
  }
}

std::string fingerprint_of(const PairFolder& folder) {
  if (folder.info && !folder.info->model_fingerprint.empty()) return folder.info->model_fingerprint;
  return folder.pair.key.calibration ? folder.pair.key.calibration->model_fingerprint : "";
}

/// The folder's own name, made longer until no other candidate has it.
std::string unique_name(const fs::path& folder, const std::vector<Candidate>& taken) {
  fs::path rest = fs::absolute(folder).lexically_normal();
  if (!rest.has_filename()) rest = rest.parent_path();
  std::string name = rest.filename().string();
  const auto is_taken = [&] {
    return std::any_of(taken.begin(), taken.end(),
                       [&](const Candidate& c) { return c.name == name; });
  };
  while (is_taken() && rest.has_relative_path()) {
    rest = rest.parent_path();
    name = rest.filename().string() + "/" + name;
  }
  return name;
}

}  // namespace

void check_fits(const RotationPair& pair, const ModelConfig& config, const std::string& source) {
  check_side(pair.key, "key", config.head_dim, config, source);
  check_side(pair.value, "value", config.value_dim, config, source);
}

RotationPair baseline_pair(const std::string& name, const ModelConfig& config) {
  if (name != "identity" && name != "hadamard") {
    fail_input("baseline \"{}\" is not known; use identity, hadamard or none", name);
  }
  const auto matrix = [&](int dim) -> MatrixF {
    return name == "identity" ? MatrixF(MatrixF::Identity(dim, dim)) : hadamard(dim).cast<float>();
  };
  RotationPair pair;
  pair.key.objective = pair.value.objective = name;
  pair.value.side = Side::value;
  for (int layer = 0; layer < config.layers; ++layer) {
    pair.key.layers[layer].rotation = {matrix(config.head_dim)};
    pair.value.layers[layer].rotation = {matrix(config.value_dim)};
  }
  return pair;
}

std::vector<Candidate> load_candidates(const ValidateOptions& options, const Checkpoint& checkpoint,
                                       const std::string& dataset_sha256) {
  const ModelConfig& config = checkpoint.config();
  const std::string model_fingerprint = checkpoint.fingerprint();
  std::vector<Candidate> candidates;
  for (const fs::path& path : options.rotations) {
    PairFolder folder = load_pair(path);
    check_fits(folder.pair, config, path.string());
    const std::string made_for = fingerprint_of(folder);
    if (!made_for.empty() && made_for != model_fingerprint && !options.force) {
      fail_input(
          "{}: the rotations were made for another model (fingerprint {}, this model {}); pass "
          "--force "
          "to score them all the same",
          path.string(), made_for, model_fingerprint);
    }
    if (folder.info && folder.info->dataset_sha256 == dataset_sha256) {
      spdlog::warn("{}: calibrated on the very tokens it is scored on; choose other --prompts",
                   path.string());
    }
    const ServedSettings served = folder.info ? folder.info->settings : ServedSettings{};
    candidates.push_back(
        {unique_name(path, candidates), false, std::move(folder.pair),
         options.settings.apply(served),
         folder.patch_file ? CheckpointPatch::open(*folder.patch_file, checkpoint) : nullptr});
  }
  for (const std::string& name : options.baselines) {
    candidates.push_back(
        {name, true, baseline_pair(name, config), options.settings.apply({}), nullptr});
  }
  if (candidates.empty()) fail_input("there is nothing to score: no rotations and no baselines");
  return candidates;
}

}  // namespace oscar
