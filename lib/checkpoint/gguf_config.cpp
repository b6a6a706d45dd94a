#include <cmath>

#include "checkpoint/gguf_checkpoint.h"
#include "oscar/core/error.h"

namespace oscar {

namespace {

/// Metadata under the architecture's prefix.
class Metadata {
 public:
  explicit Metadata(const GgufFile& file)
      : file_(file), architecture_(file.get<std::string_view>("general.architecture")) {}

  const std::string& architecture() const { return architecture_; }
  std::string source() const { return file_.path().string(); }
  std::string key(const char* name) const { return architecture_ + "." + name; }

  int integer(const char* name) const {
    return static_cast<int>(checked(file_.get<std::int64_t>(key(name)), name));
  }
  int integer(const char* name, int otherwise) const {
    const auto value = file_.find_as<std::int64_t>(key(name));
    return value ? static_cast<int>(checked(*value, name)) : otherwise;
  }
  double number(const char* name, double otherwise) const {
    return file_.find_as<double>(key(name)).value_or(otherwise);
  }
  std::string text(const char* name, const char* otherwise) const {
    return std::string(file_.find_as<std::string_view>(key(name)).value_or(otherwise));
  }

 private:
  std::int64_t checked(std::int64_t value, const char* name) const {
    if (value < 0 || value > std::int64_t{1} << 30)
      fail_input("{}: {} is {}", source(), key(name), value);
    return value;
  }
  const GgufFile& file_;
  std::string architecture_;
};

void read_rope(const GgufFile& file, const Metadata& metadata, ModelConfig& c) {
  c.rope.theta = metadata.number("rope.freq_base", 10000.0);
  const int rotated = metadata.integer("rope.dimension_count", c.head_dim);
  if (rotated != c.head_dim) {
    fail_input("{}: {} is {}, but the head dimension is {}; partial rotation is not supported",
               metadata.source(), metadata.key("rope.dimension_count"), rotated, c.head_dim);
  }
  if (file.tensors().contains("rope_freqs.weight")) {
    fail_input(
        "{}: holds rope_freqs.weight (llama3 scaling baked into frequency factors), which is not "
        "supported; use "
        "the Hugging Face folder of this model",
        metadata.source());
  }
  const std::string scaling = metadata.text("rope.scaling.type", "none");
  const double factor =
      metadata.number("rope.scaling.factor", metadata.number("rope.scale_linear", 1.0));
  if (scaling == "none") {
    return;
  }
  if (scaling == "linear") {
    c.rope.scaling = factor == 1.0 ? RopeConfig::Scaling::none : RopeConfig::Scaling::linear;
    c.rope.factor = factor;
  } else if (scaling == "yarn") {
    c.rope.scaling = RopeConfig::Scaling::yarn;
    c.rope.factor = factor;
    c.rope.original_max_positions =
        metadata.integer("rope.scaling.original_context_length", static_cast<int>(c.max_positions));
    const double attention = metadata.number("rope.scaling.attn_factor", 1.0);
    // The runtime multiplies its own 0.1 ln(factor) + 1 by this factor.
    c.rope.attention_factor = attention * (1.0 + 0.1 * std::log(factor));
  } else {
    fail_input("{}: {} \"{}\" is not supported; none, linear and yarn are", metadata.source(),
               metadata.key("rope.scaling.type"), scaling);
  }
}

}  // namespace

ModelConfig read_gguf_config(const GgufFile& file) {
  const Metadata metadata(file);
  ModelConfig c;
  c.architecture = metadata.architecture();
  if (c.architecture != "llama" && c.architecture != "qwen2" && c.architecture != "qwen3") {
    fail_input("{}: general.architecture \"{}\" is not supported; llama, qwen2 and qwen3 are",
               metadata.source(), c.architecture);
  }
  for (const char* expert :
       {"expert_count", "attention.sliding_window", "attn_logit_softcapping", "logit_scale",
        "embedding_scale", "residual_scale", "attention.scale"}) {
    const GgufValue* value = file.find(metadata.key(expert));
    const bool idle =
        value == nullptr || *value == GgufValue(std::int64_t{0}) || *value == GgufValue(0.0);
    if (!idle) {
      fail_input("{}: {} is set, which changes the model's mathematics and is not supported",
                 metadata.source(), metadata.key(expert));
    }
  }
  c.layers = metadata.integer("block_count");
  c.hidden_size = metadata.integer("embedding_length");
  c.intermediate_size = metadata.integer("feed_forward_length");
  c.q_heads = metadata.integer("attention.head_count");
  c.kv_heads = metadata.integer("attention.head_count_kv", c.q_heads);
  if (c.layers < 1 || c.hidden_size < 1 || c.q_heads < 1 || c.kv_heads < 1 ||
      c.q_heads % c.kv_heads != 0) {
    fail_input("{}: {} layers, hidden size {}, {} query and {} KV heads do not make a model",
               metadata.source(), c.layers, c.hidden_size, c.q_heads, c.kv_heads);
  }
  c.head_dim =
      metadata.integer("attention.key_length", static_cast<int>(c.hidden_size / c.q_heads));
  c.value_dim = metadata.integer("attention.value_length", c.head_dim);
  if (c.head_dim < 4 || c.head_dim % 4 != 0 || c.value_dim != c.head_dim) {
    fail_input("{}: key length {} and value length {} must be equal and a multiple of 4",
               metadata.source(), c.head_dim, c.value_dim);
  }
  c.norm_epsilon = metadata.number("attention.layer_norm_rms_epsilon", 1e-6);
  c.max_positions = metadata.integer("context_length");
  const auto& tensors = file.tensors();
  const auto embedding = tensors.find("token_embd.weight");
  if (embedding == tensors.end())
    fail_input("{}: the tensor token_embd.weight is missing", metadata.source());
  c.vocabulary = embedding->second.rows();
  c.tied_embeddings = !tensors.contains("output.weight");
  c.qkv_bias = tensors.contains("blk.0.attn_q.bias");
  c.output_bias = tensors.contains("blk.0.attn_output.bias");
  c.mlp_bias = tensors.contains("blk.0.ffn_gate.bias");
  c.qk_norm = tensors.contains("blk.0.attn_q_norm.weight");
  const auto query = tensors.find("blk.0.attn_q.weight");
  if (query != tensors.end()) c.stored_type = name_of(query->second.type);
  read_rope(file, metadata, c);
  return c;
}

}  // namespace oscar
