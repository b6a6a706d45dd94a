#pragma once

#include <memory>

#include "oscar/checkpoint/checkpoint.h"

namespace oscar {

/// Opens a Hugging Face folder: config.json and model.safetensors, or the shards that
/// model.safetensors.index.json names.
std::unique_ptr<Checkpoint> open_huggingface(const std::filesystem::path& folder);

}  // namespace oscar
