#pragma once

#include <cstddef>
#include <cstdint>

#include "oscar/kvcache/codec.h"
#include "oscar/kvcache/execution.h"
#include "oscar/kvcache/rows.h"

namespace oscar {

/// Tokens of one page of the INT2 tier.
inline constexpr int kPageTokens = 8;

/// How far one request's tokens have come through the tiers. Token t of the request lies
/// - in the sink tier if t < sink,
/// - in the INT2 tier, as its token t - sink, if t < sink + coded,
/// - in the recent tier otherwise, at place (t - sink) mod (places of a request's ring).
struct RequestTiers {
  std::int32_t slot = 0;    ///< the request's row of the block table, of the sink and recent tiers
  std::int32_t length = 0;  ///< tokens, the newest included
  std::int32_t sink = 0;
  std::int32_t coded = 0;
};

/// One layer of a mixed cache, in rotated space, in memory that the caller owns.
struct MixedCacheView {
  ConstRows key_sink;                         ///< [slots · sink places, KV heads, D], bf16
  ConstRows value_sink;                       ///< [slots · sink places, KV heads, Dv], bf16
  ConstRows key_recent;                       ///< [slots · ring places, KV heads, D], bf16
  ConstRows value_recent;                     ///< [slots · ring places, KV heads, Dv], bf16
  ConstCodedRows key_coded;                   ///< [pages · kPageTokens, KV heads]
  ConstCodedRows value_coded;                 ///< [pages · kPageTokens, KV heads]
  CodecSettings key_codec;                    ///< dim = D
  CodecSettings value_codec;                  ///< dim = Dv
  int sink_places = 64;                       ///< of a slot
  int ring_places = 264;                      ///< of a slot: the recent window and one page more
  const std::int32_t* block_table = nullptr;  ///< [slots, pages_per_slot], where the operation runs
  std::int64_t pages_per_slot = 0;
  const RequestTiers* requests = nullptr;  ///< [count], where the operation runs
  int count = 0;
  std::int64_t longest = 0;  ///< an upper bound of the requests' lengths, for sharing out the work
};

/// Attention of one new token a request, the last of its `length` tokens, over all three tiers.
struct DecodeAttention {
  ConstRows query;                     ///< [requests, query heads, D], rotated by R_K
  MutableRows output;                  ///< [requests, query heads, Dv], in R_V's space
  float scale = 1;                     ///< multiplies q·k, usually 1/sqrt(D)
  float soft_cap = 0;                  ///< logits become cap·tanh(logit/cap); 0: off
  std::int64_t sliding = 0;            ///< only the last `sliding` tokens are seen; 0: all
  const float* sink_logits = nullptr;  ///< optional [query heads], where the operation runs: an
                                       ///< extra logit in the softmax's sum, with no value
  /// Optional scratch memory for CUDA, of decode_workspace_bytes; without it, each call takes some
  /// from the stream's pool.
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

/// Scratch memory that is enough for `requests` requests with this many query heads and value
/// channels, of any lengths, on any device.
std::size_t decode_workspace_bytes(int requests, int query_heads, int value_dim);

/// Runs it: softmax in fp32 over all tiers together, fp32 accumulation. On CUDA the context is
/// split over the multiprocessors. Block-table entries and lengths lie on the device and are not
/// checked; MixedCache keeps them right. Throws InputError where shapes disagree.
void attend(const MixedCacheView& cache, const DecodeAttention& problem,
            const Execution& where = {});

}  // namespace oscar
