#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "oscar/model/attention_hook.h"
#include "oscar/statistics/statistics.h"

namespace oscar {

/// Turns attention events into the second moments of contract section 5, one layer at a time. Sums
/// are float64 matrix products on the device that computed the event, so they cost a few per cent
/// of the forward pass and do not depend on how sequences were grouped.
class Recorder : public AttentionHook {
 public:
  struct Options {
    std::set<int> layers;  ///< which to record; empty: all
    std::int64_t samples =
        0;  ///< rows of keys and values to keep beside the sums, spread evenly ...
    std::int64_t total_tokens = 0;  ///< ... over this many tokens, which the run will bring
  };
  explicit Recorder(Options options);
  ~Recorder() override;

  /// Adds one sequence to the current layer's sums. Events of other streams than the reference are
  /// ignored.
  void on_attention(const AttentionEvent& event) override;

  /// Completes the layer's sums (the surrogate C_S needs the whole of C_Q) and starts afresh.
  /// Throws Error if no event of that layer was seen.
  LayerStatistics finish_layer(int layer);

  /// Called after every recorded sequence with its number of tokens.
  void on_progress(std::function<void(std::int64_t tokens)> callback);

 private:
  struct Sums;
  /// Indices, within a sequence of `count` tokens that begins at token `first`, of the rows to
  /// keep.
  std::vector<std::int64_t> sampled(std::int64_t first, std::int64_t count) const;

  Options options_;
  std::unique_ptr<Sums> sums_;
  std::function<void(std::int64_t)> progress_;
};

}  // namespace oscar
