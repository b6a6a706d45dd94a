#pragma once

#include "oscar/model/attention_hook.h"
#include "oscar/validate/report.h"
#include "validate/quantised_attention.h"

namespace oscar {

/// Measures, on an unquantised stream's own q, k and v, what one candidate's cache does to the
/// attention logits and outputs of every layer.
class LocalError : public AttentionHook {
 public:
  /// `stream`: the one that is measured on. `first_scored`: first position of a sequence that
  /// counts; -1: the second half.
  LocalError(QuantisedAttention& attention, int stream, std::int64_t first_scored)
      : attention_(attention), stream_(stream), first_scored_(first_scored) {}

  void on_attention(const AttentionEvent& event) override;

  /// One entry per layer that was seen, in order.
  std::vector<LayerError> layers() const;

 private:
  struct Sums {
    at::Tensor error, norm, logit_error;  ///< float64 [q_heads]
    std::int64_t pairs = 0;               ///< of one head
  };
  QuantisedAttention& attention_;
  int stream_;
  std::int64_t first_scored_;
  std::map<int, Sums> sums_;
};

/// The first position of a sequence of this length that is scored.
inline std::int64_t first_scored_position(std::int64_t asked, std::int64_t length) {
  return asked >= 0 ? std::min(asked, length) : length / 2;
}

}  // namespace oscar
