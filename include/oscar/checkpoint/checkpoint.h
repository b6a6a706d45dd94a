#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "oscar/checkpoint/config.h"
#include "oscar/checkpoint/tensor_view.h"

namespace oscar {

/// A model's weights on disk, memory-mapped, whatever the format. Tensors go by their Hugging Face
/// names
/// ("model.layers.3.self_attn.q_proj.weight", "model.embed_tokens.weight", "model.norm.weight",
/// "lm_head.weight") and come in Hugging Face's row order after conversion.
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  /// Opens a Hugging Face folder (config.json and one or many safetensors files) or a GGUF file,
  /// checks the headers, and checks that every tensor that the configuration calls for is there
  /// with the right shape. Throws InputError.
  static std::unique_ptr<Checkpoint> open(const std::filesystem::path& path);

  virtual const ModelConfig& config() const = 0;
  virtual const std::filesystem::path& path() const = 0;
  /// Throws InputError if there is no such tensor. With tied embeddings "lm_head.weight" is the
  /// embedding.
  virtual const TensorView& tensor(const std::string& name) const = 0;
  virtual bool has(const std::string& name) const = 0;

  /// Identifies the weights without a full read: a hash over the configuration, every tensor's
  /// name, type, shape and samples of its bytes. "xxh3:" and 32 hexadecimal digits.
  virtual std::string fingerprint() const = 0;

  /// Hints for streaming: layer `layer` is wanted soon, or not again. Never an error.
  virtual void prefetch_layer(int layer) const = 0;
  virtual void release_layer(int layer) const = 0;
};

}  // namespace oscar
