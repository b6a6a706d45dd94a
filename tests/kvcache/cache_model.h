#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "oscar/kvcache/mixed_cache.h"
#include "reference.h"

namespace oscar::test {

/// Contract, section 3, token by token in plain memory: what MixedCache is tested against.
class CacheModel {
 public:
  struct Token {
    std::vector<float> key, value;  ///< [KV heads, dim], as attention reads them
  };
  struct Request {
    std::int64_t prompt = 0;
    std::vector<Token> sink, coded, recent;
  };

  explicit CacheModel(const MixedCacheSettings& settings) : settings_(settings) {}

  void open(int request, std::int64_t prompt) {
    requests_.resize(std::max<std::size_t>(requests_.size(), request + 1));
    requests_[request] = {prompt, {}, {}, {}};
  }
  /// A prefill chunk or a decoded token.
  void append(int request, const std::vector<Token>& tokens, bool decode);
  const Request& request(int index) const { return requests_[index]; }
  /// The newest token's attention, [query heads, Dv], in float64.
  std::vector<double> attend(int request, const std::vector<float>& query, int query_heads,
                             const DecodeAttention& problem,
                             const std::vector<float>& sink_logits) const;

 private:
  void demote(Request& request, std::size_t count, bool decode) const;
  MixedCacheSettings settings_;
  std::vector<Request> requests_;
};

}  // namespace oscar::test
