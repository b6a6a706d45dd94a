#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "oscar/checkpoint/checkpoint_patch.h"
#include "oscar/core/json.h"
#include "oscar/statistics/statistics.h"

namespace oscar {

/// How far a key bias may be taken out of the weights. A part of it that RoPE turns by a small
/// angle over the whole context adds nearly the same number to all logits of a query, which changes
/// no attention weight; yet it is what two bits would be spent on.
struct KeyBiasOptions {
  std::int64_t context = 0;  ///< tokens that will be served at most
  double max_angle = 0.1;    ///< radians over that context
};

/// A head whose keys share a large constant (KeyOffset), and what is taken off it.
struct TakenBias {
  int layer = 0;
  int head = 0;
  double bias = 0, bias_left = 0;    ///< lengths of the key bias
  double ratio = 0, ratio_left = 0;  ///< KeyOffset::ratio, and an estimate of it afterwards
  /// Root mean square over queries of how far a logit may move against the other keys' (before
  /// softmax): an upper bound, as if all planes turned the wrong way together.
  double logit_bound = 0;
};

struct KeyBiasPatch {
  std::int64_t context = 0;
  double max_angle = 0;
  int planes = 0;      ///< RoPE planes of a head that are taken out: the slowest ones
  double angle = 0;    ///< that the fastest of them turns by over the context
  double slowest = 0;  ///< the angle of the slowest plane, taken out or not
  std::vector<TakenBias> heads;
  std::vector<PatchTensor> tensors;  ///< the k_proj.bias of the layers concerned
};

/// What to take out of the model's key biases, in the heads above kLargeKeyOffset alone; no tensors
/// if no head or no plane qualifies. Throws InputError if the model has no key biases, or the
/// statistics are of another model or of patched weights.
KeyBiasPatch take_key_biases(const Checkpoint& checkpoint, const Statistics& statistics,
                             const KeyBiasOptions& options);

std::string to_text(const KeyBiasPatch& patch);
OrderedJson to_json(const KeyBiasPatch& patch);

}  // namespace oscar
