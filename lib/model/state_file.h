#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>

namespace oscar {

/// Hidden states between two layers, and what they belong to.
struct StreamState {
  std::string model_fingerprint;
  std::string dataset_sha256;
  std::string precision;
  int next_layer = 0;
  at::Tensor hidden;  ///< [tokens, hidden], on the CPU
};

/// Writes the state as one file that appears whole or not at all.
void save_state_file(const std::filesystem::path& path, const StreamState& state);

/// Reads it back. `expected` has the identity that it must have, and a hidden tensor of the shape
/// and type. Throws InputError naming what differs, or that the file is damaged (its checksum is
/// verified).
StreamState load_state_file(const std::filesystem::path& path, const StreamState& expected);

}  // namespace oscar
