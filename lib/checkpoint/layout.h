#pragma once

#include <string>
#include <vector>

#include "oscar/checkpoint/checkpoint.h"

namespace oscar {

/// A tensor that a configuration calls for.
struct Expected {
  std::string name;
  std::vector<std::int64_t> shape;
};

/// Every tensor of decoder layer `layer`, by Hugging Face names.
std::vector<Expected> layer_tensors(const ModelConfig& config, int layer);
/// Embedding, final norm and head.
std::vector<Expected> outer_tensors(const ModelConfig& config);

/// Throws InputError naming the first tensor that is missing or has another shape than the
/// configuration calls for.
void check_tensors(const Checkpoint& checkpoint);

/// Identifies the weights: configuration, names, types, shapes and samples of the bytes.
std::string fingerprint_of(const Checkpoint& checkpoint);

}  // namespace oscar
