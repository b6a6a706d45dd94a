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

namespace {

struct NamedWeight {
  const char* name;
  at::Tensor LayerWeights::*tensor;
  bool ModelConfig::*needed = nullptr;  ///< null: always there
};

constexpr NamedWeight kWeights[] = {
    {"input_layernorm.weight", &LayerWeights::input_norm},
    {"self_attn.q_proj.weight", &LayerWeights::q},
    {"self_attn.k_proj.weight", &LayerWeights::k},
    {"self_attn.v_proj.weight", &LayerWeights::v},
    {"self_attn.o_proj.weight", &LayerWeights::o},
    {"post_attention_layernorm.weight", &LayerWeights::post_attention_norm},
    {"mlp.gate_proj.weight", &LayerWeights::gate},
    {"mlp.up_proj.weight", &LayerWeights::up},
    {"mlp.down_proj.weight", &LayerWeights::down},
    {"self_attn.q_proj.bias", &LayerWeights::q_bias, &ModelConfig::qkv_bias},
    {"self_attn.k_proj.bias", &LayerWeights::k_bias, &ModelConfig::qkv_bias},
    {"self_attn.v_proj.bias", &LayerWeights::v_bias, &ModelConfig::qkv_bias},
    {"self_attn.o_proj.bias", &LayerWeights::o_bias, &ModelConfig::output_bias},
    {"mlp.gate_proj.bias", &LayerWeights::gate_bias, &ModelConfig::mlp_bias},
    {"mlp.up_proj.bias", &LayerWeights::up_bias, &ModelConfig::mlp_bias},
    {"mlp.down_proj.bias", &LayerWeights::down_bias, &ModelConfig::mlp_bias},
    {"self_attn.q_norm.weight", &LayerWeights::q_norm, &ModelConfig::qk_norm},
    {"self_attn.k_norm.weight", &LayerWeights::k_norm, &ModelConfig::qk_norm},
};

std::string full_name(int layer, const NamedWeight& weight) {
  return fmt::format("model.layers.{}.{}", layer, weight.name);
}

}  // namespace

LayerWeights LayerLoader::load(int layer) const {
  const ModelConfig& config = checkpoint_.config();
  LayerWeights weights;
  try {
    for (const NamedWeight& weight : kWeights) {
      if (weight.needed != nullptr && !(config.*weight.needed)) continue;
      const TensorView& view = checkpoint_.tensor(full_name(layer, weight));
      weights.*weight.tensor = load_tensor(view, 0, view.rows(), type_, device_);
    }
  } catch (const InputError& error) {
    fail_input("{}: layer {}: {}", checkpoint_.path().string(), layer, error.what());
  }
  checkpoint_.release_layer(layer);
  return weights;
}

LayerWeights LayerLoader::patched(LayerWeights weights, int layer,
                                  const CheckpointPatch& patch) const {
  try {
    for (const NamedWeight& weight : kWeights) {
      const TensorView* view = patch.find(full_name(layer, weight));
      if (view == nullptr) continue;
      weights.*weight.tensor = load_tensor(*view, 0, view->rows(), type_, device_);
    }
  } catch (const InputError& error) {
    fail_input("{}: layer {}: {}", patch.path().string(), layer, error.what());
  }
  return weights;
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
