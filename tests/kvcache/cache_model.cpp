#include "cache_model.h"

#include <cmath>

#include "run_codec.h"

namespace oscar::test {

void CacheModel::append(int request, const std::vector<Token>& tokens, bool decode) {
  Request& r = requests_[request];
  for (const Token& token : tokens) {
    const bool in_sink = !decode && r.sink.size() < static_cast<std::size_t>(settings_.sink) &&
                         static_cast<std::int64_t>(r.sink.size()) < r.prompt;
    (in_sink ? r.sink : r.recent).push_back(token);
  }
  std::size_t leaving = 0;
  while (r.recent.size() - leaving >= static_cast<std::size_t>(settings_.recent + 8)) leaving += 8;
  demote(r, leaving, decode);
}

void CacheModel::demote(Request& r, std::size_t count, bool decode) const {
  if (count == 0) return;
  const auto quantise = [&](CodecSettings codec, std::vector<float> Token::*rows) {
    if (decode) {
      codec.rule = codec.dim >= 64 ? ClipRule::bisect : ClipRule::exact;
      codec.levels = LevelRule::uniform;
    }
    std::vector<float> all;
    for (std::size_t i = 0; i < count; ++i) {
      all.insert(all.end(), (r.recent[i].*rows).begin(), (r.recent[i].*rows).end());
    }
    const std::vector<float> back = run_decode(
        kCpu, codec, run_encode(kCpu, codec, all, settings_.kv_heads), settings_.kv_heads);
    const std::size_t size = back.size() / count;
    for (std::size_t i = 0; i < count; ++i) {
      (r.recent[i].*rows)
          .assign(back.begin() + static_cast<std::ptrdiff_t>(i * size),
                  back.begin() + static_cast<std::ptrdiff_t>((i + 1) * size));
    }
  };
  quantise(settings_.key, &Token::key);
  quantise(settings_.value, &Token::value);
  const auto end = r.recent.begin() + static_cast<std::ptrdiff_t>(count);
  r.coded.insert(r.coded.end(), r.recent.begin(), end);
  r.recent.erase(r.recent.begin(), end);
}

std::vector<double> CacheModel::attend(int request, const std::vector<float>& query,
                                       int query_heads, const DecodeAttention& problem,
                                       const std::vector<float>& sink_logits) const {
  const Request& r = requests_[request];
  std::vector<const Token*> tokens;
  for (const auto* tier : {&r.sink, &r.coded, &r.recent}) {
    for (const Token& token : *tier) tokens.push_back(&token);
  }
  if (problem.sliding > 0 && static_cast<std::int64_t>(tokens.size()) > problem.sliding) {
    tokens.erase(tokens.begin(), tokens.end() - problem.sliding);
  }
  const int dim = settings_.key.dim, value_dim = settings_.value.dim;
  std::vector<double> output(static_cast<std::size_t>(query_heads) * value_dim, 0.0);
  for (int head = 0; head < query_heads; ++head) {
    const int kv_head = head / (query_heads / settings_.kv_heads);
    std::vector<double> logits;
    double maximum = sink_logits.empty() ? -1e300 : double{sink_logits[head]};
    for (const Token* token : tokens) {
      double product = 0;
      for (int i = 0; i < dim; ++i) {
        product += double{query[head * dim + i]} * token->key[kv_head * dim + i];
      }
      product *= problem.scale;
      if (problem.soft_cap > 0) product = problem.soft_cap * std::tanh(product / problem.soft_cap);
      logits.push_back(product);
      maximum = std::max(maximum, product);
    }
    double sum = sink_logits.empty() ? 0.0 : std::exp(sink_logits[head] - maximum);
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const double weight = std::exp(logits[t] - maximum);
      sum += weight;
      for (int i = 0; i < value_dim; ++i) {
        output[head * value_dim + i] += weight * tokens[t]->value[kv_head * value_dim + i];
      }
    }
    for (int i = 0; i < value_dim; ++i) output[head * value_dim + i] /= sum;
  }
  return output;
}

}  // namespace oscar::test
