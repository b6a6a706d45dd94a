#pragma once

#include <ATen/core/Tensor.h>

#include <future>

#include "oscar/checkpoint/checkpoint.h"
#include "oscar/checkpoint/checkpoint_patch.h"

namespace oscar {

/// Weights of one decoder layer on the device. Projections are [out, in]; absent biases and norms
/// are undefined.
struct LayerWeights {
  at::Tensor input_norm, post_attention_norm;
  at::Tensor q, k, v, o, q_bias, k_bias, v_bias, o_bias;
  at::Tensor q_norm, k_norm;
  at::Tensor gate, up, down, gate_bias, up_bias, down_bias;
};

/// Brings layers from the checkpoint one after another, the next one while the current one
/// computes.
class LayerLoader {
 public:
  LayerLoader(const Checkpoint& checkpoint, at::ScalarType type, at::Device device);
  ~LayerLoader();

  /// The weights of layer `layer`; begins to load layer + 1. Throws InputError naming layer and
  /// tensor if a weight is NaN or infinite.
  LayerWeights take(int layer);
  /// The same with a patch's tensors in the place of the checkpoint's; the rest is shared.
  LayerWeights patched(LayerWeights weights, int layer, const CheckpointPatch& patch) const;

 private:
  LayerWeights load(int layer) const;
  void begin(int layer);

  const Checkpoint& checkpoint_;
  at::ScalarType type_;
  at::Device device_;
  int pending_layer_ = -1;
  std::future<LayerWeights> pending_;
};

/// A tensor, or some of its rows, converted to `type` on `device`. Throws InputError naming the
/// tensor if it holds NaN or infinity.
at::Tensor load_tensor(const TensorView& view, std::int64_t first_row, std::int64_t row_count,
                       at::ScalarType type, const at::Device& device);

}  // namespace oscar
