#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "oscar/kvcache/decode.h"

namespace oscar {

struct MixedCacheSettings {
  int layers = 1;
  int kv_heads = 1;
  /// The rule in them is that of prefill; demotion during decode always bisects (contract,
  /// section 2), with even levels.
  CodecSettings key, value;
  int sink = 64;            ///< tokens, a multiple of 8
  int recent = 256;         ///< tokens, a multiple of 8
  int requests = 1;         ///< at most so many at once
  std::int64_t tokens = 0;  ///< of a request at its longest
  std::int64_t pages = 0;   ///< INT2 pages of 8 tokens that all requests share; 0: enough for all

  /// Throws InputError naming the limit that is broken.
  void check() const;
};

/// The mixed cache of contract, section 3, for all layers of a model: sink and recent tokens in
/// bf16, the rest INT2 in pages of 8 tokens. Everything is stored rotated; the caller rotates.
///
/// A step is begin_prefill or begin_decode for some requests, then write (and, in decode, attend)
/// for every layer. A request's first min(sink, prompt) tokens are its sink; new tokens enter the
/// recent tier, and whenever it holds `recent` + 8 the oldest 8 are demoted, before the step's
/// attention, so that attention sees `recent` to `recent` + 7 of them.
class MixedCache {
 public:
  /// Takes all memory at once. Throws InputError as MixedCacheSettings::check, Error where memory
  /// is short.
  explicit MixedCache(const MixedCacheSettings& settings, const Execution& where = {});
  ~MixedCache();
  MixedCache(const MixedCache&) = delete;
  MixedCache& operator=(const MixedCache&) = delete;

  const MixedCacheSettings& settings() const { return settings_; }

  /// A new request's number. Throws InputError if all are taken.
  int open(std::int64_t prompt_tokens);
  /// Gives the request's pages back.
  void close(int request);
  const RequestTiers& tiers(int request) const;
  std::int64_t free_pages() const { return static_cast<std::int64_t>(free_pages_.size()); }

  /// Makes room for one more token of each of these requests. Throws InputError, and changes
  /// nothing, if a request is not open or named twice, too long, or pages run out.
  void begin_decode(std::span<const int> requests);
  /// The same for a chunk of tokens[i] more tokens of requests[i].
  void begin_prefill(std::span<const int> requests, std::span<const std::int64_t> tokens);
  /// One layer's rows of the step, [tokens, KV heads, D] and [tokens, KV heads, Dv]: the tokens of
  /// the step's first request, then those of its second, and so on. Once a layer and step.
  void write(int layer, const ConstRows& keys, const ConstRows& values);
  /// Attention of the newest token of each of the step's requests, after write. The problem's
  /// workspace is the cache's own.
  void attend(int layer, const DecodeAttention& problem);
  /// One layer as attention sees it, with the step's requests.
  MixedCacheView view(int layer) const;

  /// Bytes taken: tiers, block table, and nothing else.
  std::size_t bytes() const { return bytes_; }
  /// Bytes that hold tokens: a page counts whole.
  std::size_t bytes_in_use() const;
  /// Bits of the tokens held (block table left out) for each of their elements.
  double effective_bits() const;

 private:
  struct Memory;
  struct Plan;
  void begin(std::span<const int> requests, std::span<const std::int64_t> tokens, bool decode);
  void upload_plan(Plan& plan);

  MixedCacheSettings settings_;
  Execution where_;
  std::unique_ptr<Memory> memory_;
  std::vector<RequestTiers> requests_;
  std::vector<std::int64_t> prompts_;  ///< -1: the request is not open
  std::vector<std::int32_t> free_pages_;
  std::vector<std::int32_t> table_;  ///< the block table, as on the device
  std::vector<bool> written_;        ///< a layer: in this step
  std::unique_ptr<Plan> plan_;
  std::size_t bytes_ = 0;
};

}  // namespace oscar
