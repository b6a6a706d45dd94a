#include "checkpoint/layout.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "oscar/core/error.h"

namespace oscar {

std::vector<Expected> layer_tensors(const ModelConfig& c, int layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::int64_t q = std::int64_t{c.q_heads} * c.head_dim,
                     k = std::int64_t{c.kv_heads} * c.head_dim;
  const std::int64_t v = std::int64_t{c.kv_heads} * c.value_dim,
                     o = std::int64_t{c.q_heads} * c.value_dim;
  std::vector<Expected> result = {
      {prefix + "input_layernorm.weight", {c.hidden_size}},
      {prefix + "self_attn.q_proj.weight", {q, c.hidden_size}},
      {prefix + "self_attn.k_proj.weight", {k, c.hidden_size}},
      {prefix + "self_attn.v_proj.weight", {v, c.hidden_size}},
      {prefix + "self_attn.o_proj.weight", {c.hidden_size, o}},
      {prefix + "post_attention_layernorm.weight", {c.hidden_size}},
      {prefix + "mlp.gate_proj.weight", {c.intermediate_size, c.hidden_size}},
      {prefix + "mlp.up_proj.weight", {c.intermediate_size, c.hidden_size}},
      {prefix + "mlp.down_proj.weight", {c.hidden_size, c.intermediate_size}}};
  const auto add = [&](const char* name, std::int64_t size) {
    result.push_back({prefix + name, {size}});
  };
  if (c.qkv_bias) {
    add("self_attn.q_proj.bias", q);
    add("self_attn.k_proj.bias", k);
    add("self_attn.v_proj.bias", v);
  }
  if (c.output_bias) add("self_attn.o_proj.bias", c.hidden_size);
  if (c.mlp_bias) {
    add("mlp.gate_proj.bias", c.intermediate_size);
    add("mlp.up_proj.bias", c.intermediate_size);
    add("mlp.down_proj.bias", c.hidden_size);
  }
  if (c.qk_norm) {
    add("self_attn.q_norm.weight", c.head_dim);
    add("self_attn.k_norm.weight", c.head_dim);
  }
  return result;
}

std::vector<Expected> outer_tensors(const ModelConfig& c) {
  return {{"model.embed_tokens.weight", {c.vocabulary, c.hidden_size}},
          {"model.norm.weight", {c.hidden_size}},
          {"lm_head.weight", {c.vocabulary, c.hidden_size}}};
}

namespace {

std::vector<Expected> all_tensors(const ModelConfig& config) {
  std::vector<Expected> result = outer_tensors(config);
  for (int layer = 0; layer < config.layers; ++layer) {
    for (Expected& tensor : layer_tensors(config, layer)) result.push_back(std::move(tensor));
  }
  return result;
}

}  // namespace

void check_tensors(const Checkpoint& checkpoint) {
  for (const Expected& expected : all_tensors(checkpoint.config())) {
    const TensorView& found = checkpoint.tensor(expected.name);
    if (found.shape != expected.shape) {
      fail_input(
          "{}: the tensor {} has the shape [{}], but the configuration calls for [{}]; do the head "
          "counts and "
          "sizes belong to this model?",
          checkpoint.path().string(), expected.name, fmt::join(found.shape, ", "),
          fmt::join(expected.shape, ", "));
    }
  }
}

std::string fingerprint_of(const Checkpoint& checkpoint) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  XXH3_128bits_reset(state.get());
  const auto add = [&](const void* data, std::size_t size) {
    XXH3_128bits_update(state.get(), data, size);
  };
  const auto add_text = [&](const std::string& text) { add(text.c_str(), text.size() + 1); };
  const ModelConfig& c = checkpoint.config();
  const RopeConfig& r = c.rope;
  add_text(fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", c.architecture, c.vocabulary,
                       c.hidden_size, c.intermediate_size, c.layers, c.q_heads, c.kv_heads,
                       c.head_dim, c.value_dim, c.norm_epsilon, c.qkv_bias, c.output_bias,
                       c.mlp_bias, c.qk_norm, c.tied_embeddings));
  add_text(fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", r.theta, static_cast<int>(r.scaling),
                       r.factor, r.low_frequency_factor, r.high_frequency_factor,
                       r.original_max_positions, r.beta_fast, r.beta_slow, r.attention_factor,
                       r.mscale, r.mscale_all_dim, r.truncate));
  constexpr std::size_t kSamples = 8, kSampleBytes = 64;
  for (const Expected& expected : all_tensors(c)) {
    const TensorView& tensor = checkpoint.tensor(expected.name);
    add_text(fmt::format("{} {} {} {}", expected.name, name_of(tensor.type),
                         fmt::join(tensor.shape, ","), tensor.interleaved_heads));
    const std::size_t size = tensor.data.size(), length = std::min(size, kSampleBytes);
    for (std::size_t i = 0; i < kSamples; ++i) {
      add(tensor.data.data() + (size - length) / (kSamples - 1) * i, length);
    }
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return fmt::format("xxh3:{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace oscar
