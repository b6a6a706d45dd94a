#pragma once

#include <ATen/core/Tensor.h>

#include "model/layer_weights.h"
#include "oscar/checkpoint/config.h"

namespace oscar {

/// Root-mean-square norm over the last dimension, computed in float32 and returned in x's type.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

/// q [N, q_heads, D], k [N, kv_heads, D] after QK-norm and RoPE, v [N, kv_heads, Dv].
struct Projections {
  at::Tensor q, k, v;
};
/// `normed` [N, hidden]; cos, sin [N, 1, D] in x's type.
Projections project(const at::Tensor& normed, const LayerWeights& weights,
                    const ModelConfig& config, const at::Tensor& cos, const at::Tensor& sin);

/// Causal attention of one sequence: [T, q_heads, Dv].
at::Tensor exact_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           double scale);

/// SwiGLU: down(silu(gate(x)) * up(x)).
at::Tensor feed_forward(const at::Tensor& x, const LayerWeights& weights);

/// x · weightᵀ (+ bias).
at::Tensor apply_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

}  // namespace oscar
