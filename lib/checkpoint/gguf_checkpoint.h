#pragma once

#include <memory>

#include "oscar/checkpoint/checkpoint.h"
#include "oscar/checkpoint/gguf.h"

namespace oscar {

/// Opens a GGUF file: its tensors under their Hugging Face names and in Hugging Face's row order.
std::unique_ptr<Checkpoint> open_gguf(const std::filesystem::path& path);

/// The configuration in a GGUF file's metadata. Throws InputError naming the key.
ModelConfig read_gguf_config(const GgufFile& file);

}  // namespace oscar
