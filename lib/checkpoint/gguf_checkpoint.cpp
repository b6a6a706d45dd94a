#include "checkpoint/gguf_checkpoint.h"

#include <array>
#include <map>

#include "checkpoint/layout.h"
#include "oscar/core/error.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {

struct NamePart {
  const char* gguf;
  const char* hugging_face;
};
constexpr std::array<NamePart, 11> kLayerParts = {{{"attn_norm", "input_layernorm"},
                                                   {"attn_q", "self_attn.q_proj"},
                                                   {"attn_k", "self_attn.k_proj"},
                                                   {"attn_v", "self_attn.v_proj"},
                                                   {"attn_output", "self_attn.o_proj"},
                                                   {"attn_q_norm", "self_attn.q_norm"},
                                                   {"attn_k_norm", "self_attn.k_norm"},
                                                   {"ffn_norm", "post_attention_layernorm"},
                                                   {"ffn_gate", "mlp.gate_proj"},
                                                   {"ffn_up", "mlp.up_proj"},
                                                   {"ffn_down", "mlp.down_proj"}}};
constexpr std::array<NamePart, 3> kOuterParts = {
    {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}}};

/// The Hugging Face name of a GGUF tensor, or empty for one that the decoder does not read.
std::string hugging_face_name(const std::string& gguf) {
  const auto dot = gguf.rfind('.');
  if (dot == std::string::npos) return "";
  const std::string kind = gguf.substr(dot);  // ".weight" or ".bias"
  std::string stem = gguf.substr(0, dot);
  if (!stem.starts_with("blk.")) {
    for (const NamePart& part : kOuterParts) {
      if (stem == part.gguf) return part.hugging_face + kind;
    }
    return "";
  }
  const auto second = stem.find('.', 4);
  if (second == std::string::npos) return "";
  const std::string layer = stem.substr(4, second - 4);
  for (const NamePart& part : kLayerParts) {
    if (stem.substr(second + 1) == part.gguf)
      return "model.layers." + layer + "." + part.hugging_face + kind;
  }
  return "";
}

class GgufCheckpoint : public Checkpoint {
 public:
  explicit GgufCheckpoint(const fs::path& path) : file_(path), config_(read_gguf_config(file_)) {
    for (const auto& [gguf_name, tensor] : file_.tensors()) {
      const std::string name = hugging_face_name(gguf_name);
      if (name.empty()) {
        if (gguf_name.starts_with("blk.")) {
          fail_input("{}: the tensor {} belongs to no part of a {} model that oscar knows",
                     path.string(), gguf_name, config_.architecture);
        }
        continue;
      }
      TensorView view = tensor;
      // llama.cpp's converter reorders the rows of q and k for its Llama architecture alone.
      if (config_.architecture == "llama") {
        if (name.find(".q_proj.") != std::string::npos) view.interleaved_heads = config_.q_heads;
        if (name.find(".k_proj.") != std::string::npos) view.interleaved_heads = config_.kv_heads;
      }
      tensors_.emplace(name, std::move(view));
    }
    if (config_.tied_embeddings) tensors_["lm_head.weight"] = tensor("model.embed_tokens.weight");
  }

  const ModelConfig& config() const override { return config_; }
  const fs::path& path() const override { return file_.path(); }
  bool has(const std::string& name) const override { return tensors_.contains(name); }
  const TensorView& tensor(const std::string& name) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) fail_input("{}: the tensor {} is missing", path().string(), name);
    return found->second;
  }
  std::string fingerprint() const override {
    if (fingerprint_.empty()) fingerprint_ = fingerprint_of(*this);
    return fingerprint_;
  }
  void prefetch_layer(int layer) const override {
    for (const Expected& e : layer_tensors(config_, layer))
      file_.file().will_need(tensor(e.name).data);
  }
  void release_layer(int layer) const override {
    for (const Expected& e : layer_tensors(config_, layer))
      file_.file().done_with(tensor(e.name).data);
  }

 private:
  GgufFile file_;
  ModelConfig config_;
  std::map<std::string, TensorView> tensors_;
  mutable std::string fingerprint_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_gguf(const fs::path& path) {
  return std::make_unique<GgufCheckpoint>(path);
}

}  // namespace oscar
