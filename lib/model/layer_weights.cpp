#include "model/layer_weights.h"

#include <ATen/ATen.h>
#include <omp.h>

#include <cmath>

#include "oscar/core/error.h"

namespace oscar {

at::Tensor load_tensor(const TensorView& view, std::int64_t first_row, std::int64_t row_count,
                       at::ScalarType type, const at::Device& device) {
  std::vector<std::int64_t> shape = view.shape;
  if (!shape.empty()) shape[0] = row_count;
  const auto options = at::TensorOptions(type).pinned_memory(device.is_cuda());
  at::Tensor host = at::empty(shape, options);
  if (type == at::kBFloat16) {
    read_rows_bfloat16(view, first_row, row_count,
                       static_cast<std::uint16_t*>(host.mutable_data_ptr()));
  } else {
    read_rows(view, first_row, row_count, host.mutable_data_ptr<float>());
  }
  // A sum is finite exactly if all terms are, short of an overflow, which isfinite then settles.
  if (!std::isfinite(host.sum(at::kFloat).item().toDouble()) &&
      !at::isfinite(host).all().item().toBool()) {
    fail_input("the weight {} holds NaN or infinity; the checkpoint is damaged", view.name);
  }
  return host.to(device, /*non_blocking=*/false);
}

LayerLoader::LayerLoader(const Checkpoint& checkpoint, at::ScalarType type, at::Device device)
    : checkpoint_(checkpoint), type_(type), device_(device) {}

LayerLoader::~LayerLoader() {
  if (pending_.valid()) pending_.wait();
}

LayerWeights LayerLoader::load(int layer) const {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const auto get = [&](const char* name) {
    const TensorView& view = checkpoint_.tensor(prefix + name);
    return load_tensor(view, 0, view.rows(), type_, device_);
  };
  const auto get_if = [&](bool there, const char* name) {
    return there ? get(name) : at::Tensor();
  };
  const ModelConfig& c = checkpoint_.config();
  LayerWeights w;
  try {
    w.input_norm = get("input_layernorm.weight");
    w.q = get("self_attn.q_proj.weight");
    w.k = get("self_attn.k_proj.weight");
    w.v = get("self_attn.v_proj.weight");
    w.o = get("self_attn.o_proj.weight");
    w.post_attention_norm = get("post_attention_layernorm.weight");
    w.gate = get("mlp.gate_proj.weight");
    w.up = get("mlp.up_proj.weight");
    w.down = get("mlp.down_proj.weight");
    w.q_bias = get_if(c.qkv_bias, "self_attn.q_proj.bias");
    w.k_bias = get_if(c.qkv_bias, "self_attn.k_proj.bias");
    w.v_bias = get_if(c.qkv_bias, "self_attn.v_proj.bias");
    w.o_bias = get_if(c.output_bias, "self_attn.o_proj.bias");
    w.gate_bias = get_if(c.mlp_bias, "mlp.gate_proj.bias");
    w.up_bias = get_if(c.mlp_bias, "mlp.up_proj.bias");
    w.down_bias = get_if(c.mlp_bias, "mlp.down_proj.bias");
    w.q_norm = get_if(c.qk_norm, "self_attn.q_norm.weight");
    w.k_norm = get_if(c.qk_norm, "self_attn.k_norm.weight");
  } catch (const InputError& error) {
    fail_input("{}: layer {}: {}", checkpoint_.path().string(), layer, error.what());
  }
  checkpoint_.release_layer(layer);
  return w;
}

void LayerLoader::begin(int layer) {
  pending_layer_ = layer;
  pending_ = std::async(std::launch::async, [this, layer] {
    // Where the processor also computes, a second team of threads would only wait in its way.
    if (device_.is_cpu()) omp_set_num_threads(1);
    return load(layer);
  });
}

LayerWeights LayerLoader::take(int layer) {
  if (pending_layer_ != layer) {
    if (pending_.valid()) pending_.wait();
    begin(layer);
  }
  LayerWeights weights = pending_.get();
  pending_layer_ = -1;
  if (layer + 1 < checkpoint_.config().layers) {
    checkpoint_.prefetch_layer(layer + 1);
    begin(layer + 1);
  }
  return weights;
}

}  // namespace oscar
