#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace oscar {

/// Rotary position embedding, with the scaling that extends the context.
struct RopeConfig {
  enum class Scaling { none, linear, llama3, yarn };
  double theta = 10000.0;
  Scaling scaling = Scaling::none;
  double factor = 1.0;                      ///< linear, llama3, yarn
  double low_frequency_factor = 1.0;        ///< llama3
  double high_frequency_factor = 4.0;       ///< llama3
  std::int64_t original_max_positions = 0;  ///< llama3, yarn
  double beta_fast = 32.0;                  ///< yarn
  double beta_slow = 1.0;                   ///< yarn
  double attention_factor = 0.0;            ///< yarn; 0: computed from factor (and mscale fields)
  double mscale = 0.0;                      ///< yarn; 0: not given
  double mscale_all_dim = 0.0;              ///< yarn; 0: not given
  bool truncate = true;  ///< yarn: round the correction range to whole dimensions
};

/// What the decoder needs to know of a model; read from config.json or GGUF metadata. A field that
/// changes the mathematics and is not understood is an error when the checkpoint is opened.
struct ModelConfig {
  std::string architecture;  ///< "llama", "mistral", "qwen2", "qwen3"
  std::int64_t vocabulary = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  int layers = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;   ///< D of queries and keys
  int value_dim = 0;  ///< of values; equal to head_dim in every architecture supported so far
  double norm_epsilon = 1e-5;
  bool qkv_bias = false;     ///< q_proj, k_proj, v_proj have biases (Qwen2)
  bool output_bias = false;  ///< o_proj has a bias (Llama with attention_bias)
  bool mlp_bias = false;
  bool qk_norm = false;  ///< RMSNorm over each head of q and k before RoPE (Qwen3)
  bool tied_embeddings = false;
  std::int64_t max_positions = 0;
  RopeConfig rope;
  std::string stored_type;  ///< "float32", "bfloat16", "float16", "Q4_1", ...: what most weights
                            ///< are stored in
};

/// Reads the config.json of a Hugging Face folder, in the old spelling (rope_theta, rope_scaling,
/// torch_dtype) and the new one (rope_parameters, dtype). Throws InputError naming the field.
ModelConfig read_config(const std::filesystem::path& path);

}  // namespace oscar
