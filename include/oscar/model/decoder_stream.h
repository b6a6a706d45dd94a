#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "oscar/checkpoint/checkpoint.h"
#include "oscar/checkpoint/checkpoint_patch.h"
#include "oscar/core/device.h"
#include "oscar/model/attention_hook.h"
#include "oscar/text/prompts.h"

namespace oscar {

enum class Precision { fp32, bf16 };
const char* name_of(Precision precision);
/// "fp32", "bf16", or "auto": bf16 on a GPU, fp32 on a CPU (where bf16 is slower).
Precision parse_precision(std::string_view word, const Device& device);

struct StreamOptions {
  Device device;
  Precision precision = Precision::fp32;
  std::int64_t chunk_tokens =
      0;  ///< tokens that pass through the linear layers at once; 0: by device
  bool check_finite =
      true;  ///< non-finite activations throw, naming layer, head, sequence and token
  const CheckpointPatch* patch = nullptr;  ///< of stream 0; must outlive the stream
};

/// Causal attention of one sequence. The default is exact; a candidate stream puts the INT2 cache
/// here. Gets an event whose `output` is undefined, returns the output [T, q_heads, Dv].
using AttentionFunction = std::function<at::Tensor(const AttentionEvent&)>;

/// A decoder streamed one layer at a time over all tokens: the hidden states of every sequence stay
/// in memory, layers come from the mapped checkpoint one after another, pass over everything, and
/// are dropped. Memory is that of one or two layers whatever the model's size, and each weight is
/// read once for all streams.
///
///     DecoderStream stream(*checkpoint, tokens, options);
///     auto registration = stream.add_hook(recorder);
///     while (stream.next_layer() < stream.layer_count()) stream.run_layer();
class DecoderStream {
 public:
  /// Embeds the tokens of stream 0, the reference. The checkpoint and the tokens must outlive the
  /// stream. Throws InputError for a token id outside the vocabulary, or a sequence beyond the
  /// model's positions.
  DecoderStream(const Checkpoint& checkpoint, const TokenBatch& tokens,
                const StreamOptions& options);
  ~DecoderStream();
  DecoderStream(const DecoderStream&) = delete;
  DecoderStream& operator=(const DecoderStream&) = delete;

  /// Adds a stream with hidden states of its own, another attention and perhaps patched weights
  /// (the patch must outlive the stream); before the first layer only. Returns its index.
  int add_stream(AttentionFunction attention, const CheckpointPatch* patch = nullptr);

  /// Keeps a hook registered while it lives.
  class [[nodiscard]] HookRegistration;
  HookRegistration add_hook(AttentionHook& hook);

  int layer_count() const;
  /// The layer that run_layer() will run; layer_count() when all are done.
  int next_layer() const;
  /// Runs the next layer over every chunk of every stream.
  void run_layer();

  /// Final norm and language-model head for positions [first, last) of a sequence: float32
  /// [last-first, vocabulary] on the device. After the last layer only.
  at::Tensor logits(int stream, std::int64_t sequence, std::int64_t first, std::int64_t last);

  /// Writes the hidden states of stream 0 before next_layer() as a whole file, or reads them back;
  /// after restoring, the stream goes on at that layer with the same bits. Throws InputError if the
  /// file is of another shape, precision, model or data.
  void save_state(const std::filesystem::path& path) const;
  void restore_state(const std::filesystem::path& path);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// RAII handle of a registered hook; movable. It may outlive the stream.
class DecoderStream::HookRegistration {
 public:
  explicit HookRegistration(std::function<void()> remove) : remove_(std::move(remove)) {}
  HookRegistration(HookRegistration&& other) noexcept
      : remove_(std::exchange(other.remove_, nullptr)) {}
  HookRegistration& operator=(HookRegistration&& other) noexcept {
    std::swap(remove_, other.remove_);
    return *this;
  }
  ~HookRegistration() {
    if (remove_) remove_();
  }

 private:
  std::function<void()> remove_;
};

}  // namespace oscar
