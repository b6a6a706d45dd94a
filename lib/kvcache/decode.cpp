#include "oscar/kvcache/decode.h"

#include "kvcache/backend.h"
#include "kvcache/checks.h"
#include "oscar/core/error.h"

namespace oscar {
namespace {

void check(const MixedCacheView& cache, const DecodeAttention& problem) {
  cache.key_codec.check();
  cache.value_codec.check();
  const int heads = cache.key_coded.heads, query_heads = problem.query.heads;
  const int dim = cache.key_codec.dim, value_dim = cache.value_codec.dim;
  if (heads < 1 || query_heads < 1 || query_heads % heads != 0) {
    fail_input("attention: {} query heads can't be shared out among {} KV heads", query_heads,
               heads);
  }
  if (cache.count < 0 || cache.sink_places < 0 || cache.ring_places < 1 ||
      cache.pages_per_slot < 0) {
    fail_input(
        "attention: a cache of {} requests, {} sink and {} recent places and {} pages a slot",
        cache.count, cache.sink_places, cache.ring_places, cache.pages_per_slot);
  }
  checks::rows("query", problem.query, cache.count, query_heads, dim);
  checks::rows("output", problem.output, cache.count, query_heads, value_dim);
  checks::rows("key_sink", cache.key_sink, cache.key_sink.tokens, heads, dim);
  checks::rows("value_sink", cache.value_sink, cache.key_sink.tokens, heads, value_dim);
  checks::rows("key_recent", cache.key_recent, cache.key_recent.tokens, heads, dim);
  checks::rows("value_recent", cache.value_recent, cache.key_recent.tokens, heads, value_dim);
  checks::coded("key_coded", cache.key_coded, cache.key_coded.tokens, heads);
  checks::coded("value_coded", cache.value_coded, cache.key_coded.tokens, heads);
  for (const ConstRows* rows :
       {&cache.key_sink, &cache.value_sink, &cache.key_recent, &cache.value_recent}) {
    if (rows->type != ElementType::bf16) {
      fail_input("attention: the sink and recent tiers hold bf16, not fp32");
    }
  }
  if (cache.count > 0 && cache.requests == nullptr) fail_input("attention: no requests");
  if (problem.sliding < 0 || !(problem.soft_cap >= 0)) {
    fail_input("attention: the window {} and the soft cap {} must not be negative", problem.sliding,
               problem.soft_cap);
  }
}

}  // namespace

std::size_t decode_workspace_bytes(int requests, int query_heads, int value_dim) {
  return static_cast<std::size_t>(requests) * query_heads * (value_dim + 2) * sizeof(float) *
         kMostDecodeParts;
}

void attend(const MixedCacheView& cache, const DecodeAttention& problem, const Execution& where) {
  check(cache, problem);
  if (cache.count == 0) return;
  if (where.device.is_cuda()) {
    cuda::attend(cache, problem, where);
  } else {
    cpu::attend(cache, problem);
  }
}

}  // namespace oscar
