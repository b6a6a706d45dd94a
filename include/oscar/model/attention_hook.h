#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace oscar {

/// What attention computed for one sequence in one layer of one stream. Tensors are the model's
/// own, not copies: read them during the call, clone what is to be kept.
struct AttentionEvent {
  int layer = 0;              ///< global decoder id
  int stream = 0;             ///< 0: the reference stream
  std::int64_t sequence = 0;  ///< index into the TokenBatch
  at::Tensor positions;       ///< int64 [T]
  at::Tensor q;               ///< [T, q_heads, D], after QK-norm and RoPE
  at::Tensor k;               ///< [T, kv_heads, D], after QK-norm and RoPE
  at::Tensor v;               ///< [T, kv_heads, Dv], as projected
  at::Tensor output;          ///< [T, q_heads, Dv], before W_o
  at::Tensor output_weight;   ///< W_o [hidden, q_heads·Dv]: what multiplies `output` next
  double scale = 1.0;         ///< scores are q·kᵀ · scale
};

/// Sees every attention call of a DecoderStream it is registered with. Derive, override, register:
///
///     class Recorder : public oscar::AttentionHook { void on_attention(const AttentionEvent& e)
///     override; }; Recorder recorder; auto registration = stream.add_hook(recorder);   // removed
///     when `registration` goes out of scope
class AttentionHook {
 public:
  virtual ~AttentionHook() = default;
  virtual void on_attention(const AttentionEvent& event) = 0;
};

}  // namespace oscar
