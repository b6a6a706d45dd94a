#include "model/decoder_layer.h"

#include <ATen/ATen.h>

#include "model/rope.h"

namespace oscar {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor normed = wide * (wide.square().mean(-1, true) + epsilon).rsqrt();
  return weight * normed.to(x.scalar_type());
}

at::Tensor apply_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return bias.defined() ? at::linear(x, weight, bias) : at::linear(x, weight);
}

Projections project(const at::Tensor& normed, const LayerWeights& w, const ModelConfig& c,
                    const at::Tensor& cos, const at::Tensor& sin) {
  const std::int64_t tokens = normed.size(0);
  at::Tensor q = apply_linear(normed, w.q, w.q_bias).view({tokens, c.q_heads, c.head_dim});
  at::Tensor k = apply_linear(normed, w.k, w.k_bias).view({tokens, c.kv_heads, c.head_dim});
  const at::Tensor v = apply_linear(normed, w.v, w.v_bias).view({tokens, c.kv_heads, c.value_dim});
  if (c.qk_norm) {
    q = rms_norm(q, w.q_norm, c.norm_epsilon);
    k = rms_norm(k, w.k_norm, c.norm_epsilon);
  }
  return {apply_rope(q, cos, sin), apply_rope(k, cos, sin), v};
}

at::Tensor exact_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           double scale) {
  const std::int64_t group = q.size(1) / k.size(1);
  const auto heads_first = [](const at::Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
  const auto grouped = [&](const at::Tensor& x) {
    return group == 1 ? x : x.repeat_interleave(group, 1);
  };
  const at::Tensor output = at::scaled_dot_product_attention(
      heads_first(q), heads_first(grouped(k)), heads_first(grouped(v)), std::nullopt, 0.0,
      /*is_causal=*/true, scale);
  return output.squeeze(0).transpose(0, 1).contiguous();
}

at::Tensor feed_forward(const at::Tensor& x, const LayerWeights& w) {
  at::Tensor gate = apply_linear(x, w.gate, w.gate_bias);
  at::silu_(gate).mul_(apply_linear(x, w.up, w.up_bias));
  return apply_linear(gate, w.down, w.down_bias);
}

}  // namespace oscar
