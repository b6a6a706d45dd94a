#pragma once

#include <ATen/core/Tensor.h>

#include "oscar/kvcache/attention.h"
#include "oscar/model/decoder_stream.h"
#include "oscar/rotation/rotation_set.h"
#include "oscar/zoo/pair_folder.h"

namespace oscar {

/// Attention that reads keys and values as the INT2 cache would return them: rotates, encodes and
/// attends with the kernels of room kvcache, teacher-forced over a whole sequence (contract,
/// sections 3 and 6).
class QuantisedAttention {
 public:
  /// The pair must fit the model and outlive this object. With `quantise` false every key stays in
  /// the exact tier: what is left is the rounding of the rotated cache.
  QuantisedAttention(const RotationPair& pair, const ServedSettings& settings, Precision precision,
                     const Device& device, bool quantise = true);

  struct Result {
    at::Tensor
        output;  ///< [T, q_heads, Dv] in the model's type and space; rows before `first` undefined
    at::Tensor logit_error_sums;  ///< float64 [q_heads]: Σ (q k̂ᵀ - q kᵀ)²·scale², queries >= first
  };

  /// Attention outputs of queries first ... T - 1.
  Result attend(const AttentionEvent& event, std::int64_t first);

  /// INT2 pairs of one head that attend() sums over.
  std::int64_t coded_pairs(std::int64_t tokens, std::int64_t first) const;

 private:
  const RotationPair& pair_;
  ServedSettings settings_;
  Precision precision_;
  Execution where_;
  bool quantise_;
  int cached_layer_ = -1;
  at::Tensor key_write_, key_read_, value_write_, value_read_;  ///< float32 [1 or kv_heads, D, D]
  at::Tensor key_mean_;  ///< float32 [1 or kv_heads, D]; undefined where keys are not centred

  void load_layer(int layer, const at::Device& device);
};

}  // namespace oscar
