#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "oscar/validate/score.h"
#include "oscar/validate/validate.h"

namespace oscar {

/// The candidates and baselines that the options ask for, checked against the model: layers, heads,
/// dimensions, orthogonality, fingerprint. Warns when a pair was calibrated on the data it is
/// scored on.
std::vector<Candidate> load_candidates(const ValidateOptions& options, const Checkpoint& checkpoint,
                                       const std::string& dataset_sha256);

/// The same matrix for every layer, keys and values: "identity" or "hadamard". Throws InputError
/// for another name.
RotationPair baseline_pair(const std::string& name, const ModelConfig& config);

}  // namespace oscar
