#pragma once

#include <cstdint>
#include <span>

#include "oscar/kvcache/codec.h"
#include "oscar/kvcache/execution.h"
#include "oscar/kvcache/rows.h"

namespace oscar {

/// Which keys of a sequence are exact for the query at position t (contract, section 3): key j <= t
/// is exact if j < sink or j > t - recent, else INT2.
struct MixedWindow {
  std::int64_t sink = 64;
  std::int64_t recent = 256;
  std::int64_t sliding = 0;  ///< a sliding-window layer: only keys j > t - sliding are seen; 0: all

  bool sees(std::int64_t t, std::int64_t j) const {
    return j <= t && (sliding == 0 || j > t - sliding);
  }
  bool is_exact(std::int64_t t, std::int64_t j) const { return j < sink || j > t - recent; }
  /// The number of (query, INT2 key) pairs of queries first_query ... tokens - 1, for one head.
  std::int64_t coded_pairs(std::int64_t tokens, std::int64_t first_query) const;
};

/// Causal attention of one whole sequence over the mixed cache, as token-by-token decode with
/// demotion after every token would see it. Query head h reads KV head h / (query heads / KV
/// heads).
///
/// The exact tier and the INT2 tier may live in different spaces, so that both precisions are
/// served:
/// - bf16 (contract, sections 2 and 3): everything rotated; query_exact and query_coded are the
/// same rows,
///   and output_exact and output_coded may be the same buffer;
/// - fp32 (section 6): query_exact, key_exact and value_exact as they are, query_coded = q ·
/// bf16(R_K). The INT2 value rows are in R_V's space: the caller multiplies output_coded by R_Vᵀ.
struct TeacherForcedAttention {
  ConstRows query_exact;  ///< [tokens, query heads, D], meets key_exact
  ConstRows query_coded;  ///< [tokens, query heads, D], meets key_coded
  ConstRows key_exact;    ///< [tokens, KV heads, D]
  ConstRows value_exact;  ///< [tokens, KV heads, Dv]
  ConstCodedRows
      key_coded;  ///< [tokens, KV heads]; rows that no query reads as INT2 are not touched
  ConstCodedRows value_coded;  ///< [tokens, KV heads]
  CodecSettings key_codec;     ///< dim = D
  CodecSettings value_codec;   ///< dim = Dv
  MutableRows output_exact;    ///< [tokens, query heads, Dv]: Σ p·v over the exact tier
  MutableRows
      output_coded;  ///< Σ p·v̂ over the INT2 tier; same data as output_exact: the sum of both
  float scale = 1;   ///< multiplies q·k, usually 1/sqrt(D)
  MixedWindow window;
  std::int64_t first_output = 0;  ///< outputs of earlier queries are not computed and not written

  /// Optional, [query heads] float64 where the operation runs, overwritten: Σ (s_coded - s_exact)²
  /// over queries from first_query on and the INT2 keys they see, s_coded = scale·query_coded·k̂ and
  /// s_exact = scale·query_exact·key_exact. Divide by MixedWindow::coded_pairs for the mean.
  double* logit_error_sums = nullptr;
  std::int64_t first_query = 0;  ///< must be >= first_output when error sums are asked for
};

/// Runs it: one joint softmax in fp32 over both tiers, fp32 accumulation. The same inputs give the
/// same bits on a machine whatever its number of threads. Throws InputError where shapes disagree.
void attend(const TeacherForcedAttention& problem, const Execution& where = {});
/// Several sequences; on CUDA those of one shape share a launch. bf16 rows of 64 or 128 channels
/// with one group, one query and one output for both tiers run on tensor cores: probabilities
/// (times the value's scale) are then rounded to bf16 before they meet the values.
void attend(std::span<const TeacherForcedAttention> problems, const Execution& where = {});

}  // namespace oscar
