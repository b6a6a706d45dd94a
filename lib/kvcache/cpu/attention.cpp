#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "kvcache/backend.h"
#include "kvcache/cpu/attention_block.h"
#include "kvcache/cpu/targets.h"
#include "kvcache/cpu/workspace.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kvcache/cpu/attention.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, which includes this file again for each instruction set.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kvcache/cpu/gemm-inl.h"
#include "kvcache/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace oscar {
namespace HWY_NAMESPACE {

using cpu::AttentionBlock;
using cpu::AttentionScratch;
using cpu::KeyTile;

/// Which rows read a key exactly, and which see it at all: comparisons of the rows' positions.
class RowMasks {
 public:
  using D = hn::ScalableTag<float>;
  using DI = hn::RebindToSigned<D>;

  explicit RowMasks(const MixedWindow& window) : window_(window) {}

  /// position < key + recent, or the key is in the sink
  hn::Mask<D> exact(hn::Vec<DI> position, std::int64_t key) const {
    return key < window_.sink ? below(position, std::numeric_limits<std::int32_t>::max())
                              : below(position, key + window_.recent);
  }
  /// key <= position, and position < key + sliding
  hn::Mask<D> seen(hn::Vec<DI> position, std::int64_t key) const {
    const auto causal = hn::Not(below(position, key));
    if (window_.sliding == 0) return causal;
    return hn::And(causal, below(position, key + window_.sliding));
  }
  /// position < bound
  static hn::Mask<D> below(hn::Vec<DI> position, std::int64_t bound) {
    const std::int64_t largest = std::numeric_limits<std::int32_t>::max();
    const auto limit = static_cast<std::int32_t>(std::min(bound, largest));
    return hn::RebindMask(D(), hn::Lt(position, hn::Set(DI(), limit)));
  }

 private:
  MixedWindow window_;
};

/// Which tier's scores a tile needs.
enum class Tier { exact, coded, mixed };

/// Turns a tile's products q·k into probabilities against the running maximum, tier by tier, and
/// brings maximum, sum and rescale up to date. Scores of keys outside a tier's range are never
/// read.
template <Tier kTier>
void softmax_tile(const TeacherForcedAttention& problem, const KeyTile& tile,
                  const AttentionScratch& scratch) {
  const RowMasks::D d;
  const RowMasks::DI di;
  const RowMasks masks(problem.window);
  const auto scale = hn::Set(d, problem.scale);
  const auto nothing = hn::Set(d, -std::numeric_limits<float>::infinity());
  float* scores = kTier == Tier::coded ? scratch.scores_coded : scratch.scores_exact;
  for (std::size_t column = 0; column < scratch.stride; column += hn::Lanes(d)) {
    const auto position = hn::LoadU(di, scratch.position + column);
    const auto old = hn::LoadU(d, scratch.maximum + column);
    auto maximum = old;
    for (int key = 0; key < tile.count; ++key) {
      float* at = scores + key * scratch.stride + column;
      auto score = hn::LoadU(d, at);
      if (kTier == Tier::mixed) {
        const auto coded = hn::LoadU(d, scratch.scores_coded + key * scratch.stride + column);
        score = hn::IfThenElse(masks.exact(position, tile.begin + key), score, coded);
      }
      score = hn::Mul(score, scale);
      if (tile.masked) {
        score = hn::IfThenElse(masks.seen(position, tile.begin + key), score, nothing);
      }
      hn::StoreU(score, d, at);
      maximum = hn::Max(maximum, score);
    }
    // A row that has seen nothing yet keeps -inf; 0 in its place gives exp(-inf) = 0 and not NaN.
    const auto reference = hn::IfThenZeroElse(hn::Eq(maximum, nothing), maximum);
    const auto rescale = hn::Exp(d, hn::Sub(old, reference));
    auto sum = hn::Zero(d);
    for (int key = 0; key < tile.count; ++key) {
      float* at = scores + key * scratch.stride + column;
      const auto weight = hn::Exp(d, hn::Sub(hn::LoadU(d, at), reference));
      sum = hn::Add(sum, weight);
      if (kTier == Tier::mixed) {
        const auto exact = masks.exact(position, tile.begin + key);
        float* coded = scratch.scores_coded + key * scratch.stride + column;
        hn::StoreU(hn::IfThenElseZero(exact, weight), d, at);
        hn::StoreU(hn::IfThenZeroElse(exact, weight), d, coded);
      } else {
        hn::StoreU(weight, d, at);
      }
    }
    hn::StoreU(maximum, d, scratch.maximum + column);
    hn::StoreU(rescale, d, scratch.rescale + column);
    const auto before = hn::Mul(hn::LoadU(d, scratch.sum + column), rescale);
    hn::StoreU(hn::Add(before, sum), d, scratch.sum + column);
  }
}

/// Squared differences of the two scores over the tile's INT2 keys, added to `errors` [rows] in
/// float64.
void add_logit_errors(const TeacherForcedAttention& problem, const AttentionBlock& block,
                      const KeyTile& tile, const AttentionScratch& scratch, double* errors) {
  const RowMasks::D d;
  const RowMasks::DI di;
  const RowMasks masks(problem.window);
  const auto scale = hn::Set(d, problem.scale);
  for (std::size_t column = 0; column < scratch.stride; column += hn::Lanes(d)) {
    const auto position = hn::LoadU(di, scratch.position + column);
    const auto early = RowMasks::below(position, problem.first_query);
    auto sum = hn::Zero(d);
    for (int key = tile.coded_begin; key < tile.coded_end; ++key) {
      const std::size_t at = key * scratch.stride + column;
      const auto difference = hn::Mul(scale, hn::Sub(hn::LoadU(d, scratch.scores_coded + at),
                                                     hn::LoadU(d, scratch.scores_exact + at)));
      const auto ignored = hn::Or(early, hn::Or(masks.exact(position, tile.begin + key),
                                                hn::Not(masks.seen(position, tile.begin + key))));
      sum = hn::Add(sum, hn::IfThenZeroElse(ignored, hn::Mul(difference, difference)));
    }
    hn::StoreU(sum, d, scratch.errors + column);
  }
  for (int r = 0; r < block.rows(); ++r) errors[r] += static_cast<double>(scratch.errors[r]);
}

/// One input row a lane: [dim][stride] from the block's query rows; rows of padding repeat the
/// last.
void load_queries(const ConstRows& query, const AttentionBlock& block, std::size_t stride,
                  float* row, float* out) {
  for (std::size_t r = 0; r < stride; ++r) {
    const int used = std::min(static_cast<int>(r), block.rows() - 1);
    load_row(query, block.first + used / block.grouped,
             block.kv_head * block.grouped + used % block.grouped, row);
    for (int i = 0; i < query.dim; ++i) out[i * stride + r] = row[i];
  }
}

void store_outputs(const MutableRows& output, const AttentionBlock& block, std::size_t stride,
                   const float* sums, const float* accumulated) {
  for (int r = 0; r < block.rows(); ++r) {
    const std::int64_t offset =
        (block.first + r / block.grouped) * output.token_stride +
        (block.kv_head * block.grouped + r % block.grouped) * output.head_stride;
    const float sum = sums[r];
    for (int i = 0; i < output.dim; ++i) {
      store_element(output, offset + i, accumulated[i * stride + r] / sum);
    }
  }
}

/// output[Dv][stride] += Σ over keys begin ... end - 1 of value · probability
void add_values(const float* values, int value_dim, const float* probabilities, std::size_t stride,
                int begin, int end, float* output) {
  const std::ptrdiff_t first = begin;
  gemm<true>({values + first * value_dim, 1, value_dim}, probabilities + first * stride, stride,
             output, stride, value_dim, stride, end - begin);
}

void rescale_outputs(const AttentionScratch& scratch, int value_dim) {
  const hn::ScalableTag<float> d;
  if (std::all_of(scratch.rescale, scratch.rescale + scratch.stride,
                  [](float factor) { return factor == 1; })) {
    return;
  }
  for (int i = 0; i < value_dim; ++i) {
    for (std::size_t column = 0; column < scratch.stride; column += hn::Lanes(d)) {
      const auto factor = hn::LoadU(d, scratch.rescale + column);
      float* exact = scratch.output_exact + i * scratch.stride + column;
      float* coded = scratch.output_coded + i * scratch.stride + column;
      hn::StoreU(hn::Mul(hn::LoadU(d, exact), factor), d, exact);
      if (coded != exact) hn::StoreU(hn::Mul(hn::LoadU(d, coded), factor), d, coded);
    }
  }
}

void attend_tile(const TeacherForcedAttention& problem, const AttentionBlock& block,
                 const KeyTile& tile, const AttentionScratch& scratch, double* errors) {
  const int dim = problem.key_codec.dim, value_dim = problem.value_codec.dim;
  const int head = block.kv_head;
  const std::size_t stride = scratch.stride;
  const bool any_coded = tile.coded_end > tile.coded_begin;
  const bool any_exact = tile.exact_end > tile.exact_begin;
  const bool counted =
      errors != nullptr && any_coded && block.first + block.count > problem.first_query;
  const auto score = [&](const float* query, const float* keys, int begin, int end, float* scores) {
    gemm<false>({keys + static_cast<std::ptrdiff_t>(begin) * dim, dim, 1}, query, stride,
                scores + begin * stride, stride, end - begin, stride, dim);
  };
  if (any_coded) {
    if (tile.mixed) std::fill_n(scratch.scores_coded, stride * tile.count, 0.0f);
    for (int key = tile.coded_begin; key < tile.coded_end; ++key) {
      decode_row(problem.key_codec, problem.key_coded, tile.begin + key, head,
                 scratch.keys_coded + static_cast<std::ptrdiff_t>(key) * dim);
    }
    score(scratch.query_coded, scratch.keys_coded, tile.coded_begin, tile.coded_end,
          scratch.scores_coded);
  }
  if (any_exact || counted) {
    for (int key = 0; key < tile.count; ++key) {
      load_row(problem.key_exact, tile.begin + key, head,
               scratch.keys_exact + static_cast<std::ptrdiff_t>(key) * dim);
    }
    score(scratch.query_exact, scratch.keys_exact, 0, tile.count, scratch.scores_exact);
  }
  if (counted) add_logit_errors(problem, block, tile, scratch, errors);
  if (tile.mixed) {
    softmax_tile<Tier::mixed>(problem, tile, scratch);
  } else if (any_coded) {
    softmax_tile<Tier::coded>(problem, tile, scratch);
  } else {
    softmax_tile<Tier::exact>(problem, tile, scratch);
  }
  rescale_outputs(scratch, value_dim);
  if (any_exact) {
    for (int key = tile.exact_begin; key < tile.exact_end; ++key) {
      load_row(problem.value_exact, tile.begin + key, head,
               scratch.values + static_cast<std::ptrdiff_t>(key) * value_dim);
    }
    add_values(scratch.values, value_dim, scratch.scores_exact, stride, tile.exact_begin,
               tile.exact_end, scratch.output_exact);
  }
  if (any_coded) {
    for (int key = tile.coded_begin; key < tile.coded_end; ++key) {
      decode_row(problem.value_codec, problem.value_coded, tile.begin + key, head,
                 scratch.values + static_cast<std::ptrdiff_t>(key) * value_dim);
    }
    add_values(scratch.values, value_dim, scratch.scores_coded, stride, tile.coded_begin,
               tile.coded_end, scratch.output_coded);
  }
}

/// One block over all the keys it sees. `errors` [rows], zero at the start, or null.
void attend_block(const TeacherForcedAttention& problem, const AttentionBlock& block,
                  const AttentionScratch& scratch, double* errors) {
  const std::size_t stride = scratch.stride;
  const int value_dim = problem.value_codec.dim;
  load_queries(problem.query_exact, block, stride, scratch.keys_exact, scratch.query_exact);
  if (scratch.query_coded != scratch.query_exact) {
    load_queries(problem.query_coded, block, stride, scratch.keys_exact, scratch.query_coded);
  }
  for (std::size_t r = 0; r < stride; ++r) {
    const int used = std::min(static_cast<int>(r), block.rows() - 1);
    scratch.position[r] = static_cast<std::int32_t>(block.first + used / block.grouped);
  }
  std::fill_n(scratch.maximum, stride, -std::numeric_limits<float>::infinity());
  std::fill_n(scratch.sum, stride, 0.0f);
  std::fill_n(scratch.output_exact, stride * value_dim, 0.0f);
  std::fill_n(scratch.output_coded, stride * value_dim, 0.0f);
  const std::int64_t sliding = problem.window.sliding;
  const std::int64_t oldest =
      sliding == 0 ? 0 : std::max<std::int64_t>(0, block.first - sliding + 1);
  for (std::int64_t begin = oldest / cpu::kKeyTile * cpu::kKeyTile;
       begin < block.first + block.count; begin += cpu::kKeyTile) {
    attend_tile(problem, block, KeyTile(block, problem.window, begin), scratch, errors);
  }
  store_outputs(problem.output_exact, block, stride, scratch.sum, scratch.output_exact);
  if (scratch.output_coded != scratch.output_exact) {
    store_outputs(problem.output_coded, block, stride, scratch.sum, scratch.output_coded);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace oscar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace oscar {
HWY_EXPORT(attend_block);

namespace cpu {
namespace {

/// About the rows of a block: enough to hide the decoding of a tile, few enough that a block's
/// scratch memory stays in the second-level cache.
int tokens_per_block(int grouped, int dim) {
  const int rows = dim <= 128 ? 192 : 96;
  return std::clamp(rows / grouped, 1, 128);
}

bool same_rows(const ConstRows& a, const ConstRows& b) {
  return a.data == b.data && a.type == b.type && a.token_stride == b.token_stride &&
         a.head_stride == b.head_stride;
}

/// The blocks of every KV head, those with the most keys first so that threads end together.
std::vector<AttentionBlock> split(const TeacherForcedAttention& problem) {
  const int grouped = problem.query_exact.heads / problem.key_exact.heads;
  const int dim = std::max(problem.key_codec.dim, problem.value_codec.dim);
  const int size = tokens_per_block(grouped, dim);
  const std::int64_t tokens = problem.query_exact.tokens;
  std::vector<AttentionBlock> blocks;
  for (std::int64_t first = problem.first_output; first < tokens; first += size) {
    const int count = static_cast<int>(std::min<std::int64_t>(size, tokens - first));
    for (int head = 0; head < problem.key_exact.heads; ++head) {
      blocks.push_back({head, grouped, first, count});
    }
  }
  std::reverse(blocks.begin(), blocks.end());
  return blocks;
}

}  // namespace

void attend(const TeacherForcedAttention& problem) {
  const std::vector<AttentionBlock> blocks = split(problem);
  const int dim = problem.key_codec.dim, value_dim = problem.value_codec.dim;
  const int grouped = problem.query_exact.heads / problem.key_exact.heads;
  const int rows = tokens_per_block(grouped, std::max(dim, value_dim)) * grouped;
  const bool one_query = same_rows(problem.query_exact, problem.query_coded);
  const bool one_output = problem.output_exact.data == problem.output_coded.data;
  Workspace workspace(AttentionScratch::floats(rows, dim, value_dim));
  std::vector<double> errors;
  if (problem.logit_error_sums != nullptr) errors.assign(blocks.size() * rows, 0.0);

  const auto total = static_cast<std::int64_t>(blocks.size());
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t i = 0; i < total; ++i) {
    const AttentionBlock& block = blocks[i];
    const AttentionScratch scratch(workspace.mine(), block.rows(), dim, value_dim, one_query,
                                   one_output);
    HWY_DYNAMIC_DISPATCH(attend_block)
    (problem, block, scratch, errors.empty() ? nullptr : errors.data() + i * rows);
  }

  if (problem.logit_error_sums == nullptr) return;
  std::fill_n(problem.logit_error_sums, problem.query_exact.heads, 0.0);
  for (std::int64_t i = 0; i < total; ++i) {
    for (int r = 0; r < blocks[i].rows(); ++r) {
      problem.logit_error_sums[blocks[i].kv_head * grouped + r % grouped] += errors[i * rows + r];
    }
  }
}

}  // namespace cpu
}  // namespace oscar
#endif
