#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "oscar/checkpoint/checkpoint.h"

namespace oscar {

/// A safetensors file with other values for some tensors of a checkpoint's decoder layers, by their
/// Hugging Face names: a small change of the weights that goes along with a rotation.
class CheckpointPatch {
 public:
  /// Opens and checks a patch for this checkpoint. Throws InputError if the file is damaged or
  /// empty, or a tensor is not one of the checkpoint's decoder layers or has another shape there.
  static std::shared_ptr<const CheckpointPatch> open(const std::filesystem::path& path,
                                                     const Checkpoint& checkpoint);
  virtual ~CheckpointPatch() = default;

  virtual const std::filesystem::path& path() const = 0;
  virtual const std::string& sha256() const = 0;
  /// The tensor that stands in for the checkpoint's; null where there is none.
  virtual const TensorView* find(const std::string& name) const = 0;
};

/// A tensor to be written: a bias or the like, in float32 or, where that loses nothing, bf16.
struct PatchTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

/// Writes a patch atomically; the same tensors give the same bytes. Stored as BF16 if all values of
/// a tensor are bf16 numbers, else F32.
void write_patch(const std::filesystem::path& path, std::span<const PatchTensor> tensors);

}  // namespace oscar
