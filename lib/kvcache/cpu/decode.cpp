#include <algorithm>
#include <cmath>
#include <vector>

#include "kvcache/backend.h"
#include "kvcache/cpu/decode_part.h"
#include "kvcache/cpu/targets.h"
#include "kvcache/cpu/workspace.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvcache/cpu/decode.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file again for each instruction set.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kvcache/cpu/gemm-inl.h"
#include "kvcache/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscar {
namespace HWY_NAMESPACE {

using cpu::DecodePart;
using cpu::DecodeScratch;
using cpu::kDecodeTile;

/// The key and value rows of tokens begin ... begin + count - 1 as fp32.
void load_tokens(const MixedCacheView& cache, const DecodePart& part, std::int64_t begin, int count,
                 const DecodeScratch& scratch) {
  const RequestTiers& request = cache.requests[part.request];
  const int dim = cache.key_codec.dim, value_dim = cache.value_codec.dim, head = part.kv_head;
  for (int i = 0; i < count; ++i) {
    float* key = scratch.keys + static_cast<std::ptrdiff_t>(i) * dim;
    float* value = scratch.values + static_cast<std::ptrdiff_t>(i) * value_dim;
    const std::int64_t token = begin + i, index = token - request.sink;
    if (index < 0) {
      const std::int64_t place = std::int64_t{request.slot} * cache.sink_places + token;
      load_row(cache.key_sink, place, head, key);
      load_row(cache.value_sink, place, head, value);
    } else if (index >= request.coded) {
      const std::int64_t place =
          std::int64_t{request.slot} * cache.ring_places + index % cache.ring_places;
      load_row(cache.key_recent, place, head, key);
      load_row(cache.value_recent, place, head, value);
    } else {
      const std::int64_t page =
          cache.block_table[request.slot * cache.pages_per_slot + index / kPageTokens];
      const std::int64_t place = page * kPageTokens + index % kPageTokens;
      decode_row(cache.key_codec, cache.key_coded, place, head, key);
      decode_row(cache.value_codec, cache.value_coded, place, head, value);
    }
  }
}

/// Products to weights; brings maximum and sum up to date and rescales the output.
void softmax_tile(const DecodeAttention& problem, int count, const DecodeScratch& scratch,
                  int value_dim) {
  const hn::ScalableTag<float> d;
  const auto scale = hn::Set(d, problem.scale);
  for (std::size_t column = 0; column < scratch.stride; column += hn::Lanes(d)) {
    const auto old = hn::LoadU(d, scratch.maximum + column);
    auto maximum = old;
    for (int key = 0; key < count; ++key) {
      float* at = scratch.scores + key * scratch.stride + column;
      auto score = hn::Mul(hn::LoadU(d, at), scale);
      if (problem.soft_cap > 0) {
        const auto cap = hn::Set(d, problem.soft_cap);
        score = hn::Mul(cap, hn::Tanh(d, hn::Div(score, cap)));
      }
      hn::StoreU(score, d, at);
      maximum = hn::Max(maximum, score);
    }
    const auto rescale = hn::Exp(d, hn::Sub(old, maximum));
    auto sum = hn::Mul(hn::LoadU(d, scratch.sum + column), rescale);
    for (int key = 0; key < count; ++key) {
      float* at = scratch.scores + key * scratch.stride + column;
      const auto weight = hn::Exp(d, hn::Sub(hn::LoadU(d, at), maximum));
      sum = hn::Add(sum, weight);
      hn::StoreU(weight, d, at);
    }
    hn::StoreU(maximum, d, scratch.maximum + column);
    hn::StoreU(sum, d, scratch.sum + column);
    for (int i = 0; i < value_dim; ++i) {
      float* at = scratch.output + i * scratch.stride + column;
      hn::StoreU(hn::Mul(hn::LoadU(d, at), rescale), d, at);
    }
  }
}

/// Leaves maximum, sum and output of the part in scratch, a query head a lane.
void decode_part(const MixedCacheView& cache, const DecodeAttention& problem,
                 const DecodePart& part, const DecodeScratch& scratch) {
  const int dim = cache.key_codec.dim, value_dim = cache.value_codec.dim;
  const std::size_t stride = scratch.stride;
  for (std::size_t r = 0; r < stride; ++r) {
    const int head = part.kv_head * part.grouped + std::min(static_cast<int>(r), part.grouped - 1);
    load_row(problem.query, part.request, head, scratch.keys);
    for (int i = 0; i < dim; ++i) scratch.query[i * stride + r] = scratch.keys[i];
  }
  std::fill_n(scratch.maximum, stride, -1e30f);
  std::fill_n(scratch.sum, stride, 0.0f);
  std::fill_n(scratch.output, stride * value_dim, 0.0f);
  for (std::int64_t begin = part.begin; begin < part.end; begin += kDecodeTile) {
    const int count = static_cast<int>(std::min<std::int64_t>(kDecodeTile, part.end - begin));
    load_tokens(cache, part, begin, count, scratch);
    gemm<false>({scratch.keys, dim, 1}, scratch.query, stride, scratch.scores, stride, count,
                stride, dim);
    softmax_tile(problem, count, scratch, value_dim);
    gemm<true>({scratch.values, 1, value_dim}, scratch.scores, stride, scratch.output, stride,
               value_dim, stride, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscar {
HWY_EXPORT(decode_part);

namespace cpu {
namespace {

constexpr std::int64_t kPartTokens = 2048;

std::vector<DecodePart> split(const MixedCacheView& cache, const DecodeAttention& problem) {
  std::vector<DecodePart> parts;
  const int grouped = problem.query.heads / cache.key_coded.heads;
  for (int r = 0; r < cache.count; ++r) {
    const std::int64_t length = cache.requests[r].length;
    const std::int64_t oldest =
        problem.sliding == 0 ? 0 : std::max<std::int64_t>(0, length - problem.sliding);
    for (int head = 0; head < cache.key_coded.heads; ++head) {
      for (std::int64_t begin = oldest; begin < length; begin += kPartTokens) {
        parts.push_back({r, head, grouped, begin, std::min(begin + kPartTokens, length)});
      }
    }
  }
  return parts;
}

void store(const MutableRows& rows, std::int64_t token, int head, int channel, float value) {
  const std::int64_t at = token * rows.token_stride + head * rows.head_stride + channel;
  if (rows.type == ElementType::fp32) {
    static_cast<float*>(rows.data)[at] = value;
  } else {
    static_cast<std::uint16_t*>(rows.data)[at] = float_to_bfloat16(value);
  }
}

}  // namespace

void attend(const MixedCacheView& cache, const DecodeAttention& problem) {
  const std::vector<DecodePart> parts = split(cache, problem);
  const int grouped = problem.query.heads / cache.key_coded.heads;
  const int dim = cache.key_codec.dim, value_dim = cache.value_codec.dim;
  Workspace workspace(DecodeScratch::floats(grouped, dim, value_dim));
  const std::size_t record = static_cast<std::size_t>(value_dim) + 2;  // output, maximum, sum
  std::vector<float> results(parts.size() * grouped * record);
  const auto total = static_cast<std::int64_t>(parts.size());
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t i = 0; i < total; ++i) {
    const DecodeScratch scratch(workspace.mine(), grouped, dim, value_dim);
    HWY_DYNAMIC_DISPATCH(decode_part)(cache, problem, parts[i], scratch);
    for (int g = 0; g < grouped; ++g) {
      float* out = results.data() + (i * grouped + g) * record;
      for (int c = 0; c < value_dim; ++c) out[c] = scratch.output[c * scratch.stride + g];
      out[value_dim] = scratch.maximum[g];
      out[value_dim + 1] = scratch.sum[g];
    }
  }
  // Parts of one request and KV head follow each other.
  for (std::int64_t first = 0; first < total;) {
    std::int64_t end = first + 1;
    while (end < total && parts[end].request == parts[first].request &&
           parts[end].kv_head == parts[first].kv_head) {
      ++end;
    }
    for (int g = 0; g < grouped; ++g) {
      const int head = parts[first].kv_head * grouped + g;
      const auto result = [&](std::int64_t i) { return &results[(i * grouped + g) * record]; };
      const bool extra = problem.sink_logits != nullptr;
      float maximum = extra ? problem.sink_logits[head] : -1e30f;
      for (std::int64_t i = first; i < end; ++i) {
        maximum = std::max(maximum, result(i)[value_dim]);
      }
      float sum = extra ? std::exp(problem.sink_logits[head] - maximum) : 0.0f;
      std::vector<float> output(value_dim, 0.0f);
      for (std::int64_t i = first; i < end; ++i) {
        const float weight = std::exp(result(i)[value_dim] - maximum);
        sum += weight * result(i)[value_dim + 1];
        for (int c = 0; c < value_dim; ++c) output[c] += weight * result(i)[c];
      }
      for (int c = 0; c < value_dim; ++c) {
        store(problem.output, parts[first].request, head, c, output[c] / sum);
      }
    }
    first = end;
  }
}

}  // namespace cpu
}  // namespace oscar
#endif
