#pragma once

#include <string_view>
#include <vector>

#include "oscar/rotation/fit.h"

namespace oscar {

/// An engine that will load the rotation files, and what it can load (contract, section 4).
struct Target {
  const char* name;
  bool per_head;       ///< one matrix a KV head (format v2)
  bool general;        ///< centred keys and separate read sides (format v3)
  const char* preset;  ///< the best preset that it can load
  const char* summary;
};

/// sglang-v1, sglang-v2, sglang-v3, llama.cpp, vllm, onnxruntime, any.
const std::vector<Target>& targets();
/// Throws InputError listing the names for another word.
const Target& find_target(std::string_view name);
bool can_load(const Target& target, const FitOptions& options);
/// Throws InputError saying what the target cannot load, and what to choose instead, if these
/// options make it.
void check_target(const FitOptions& options, const Target& target);

}  // namespace oscar
