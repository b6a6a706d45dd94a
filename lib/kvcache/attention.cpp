#include "oscar/kvcache/attention.h"

#include <algorithm>

#include "kvcache/backend.h"
#include "kvcache/checks.h"
#include "oscar/core/error.h"

namespace oscar {
namespace {

void check(const TeacherForcedAttention& problem) {
  const ConstRows& query = problem.query_exact;
  const ConstRows& key = problem.key_exact;
  const int value_dim = problem.value_exact.dim;
  if (query.heads < 1 || key.heads < 1 || query.heads % key.heads != 0) {
    fail_input("attention: {} query heads can't be shared out among {} KV heads", query.heads,
               key.heads);
  }
  problem.key_codec.check();
  problem.value_codec.check();
  const std::int64_t tokens = query.tokens;
  checks::rows("query_exact", query, tokens, query.heads, problem.key_codec.dim);
  checks::rows("query_coded", problem.query_coded, tokens, query.heads, problem.key_codec.dim);
  checks::rows("key_exact", key, tokens, key.heads, problem.key_codec.dim);
  checks::rows("value_exact", problem.value_exact, tokens, key.heads, problem.value_codec.dim);
  checks::coded("key_coded", problem.key_coded, tokens, key.heads);
  checks::coded("value_coded", problem.value_coded, tokens, key.heads);
  checks::rows("output_exact", problem.output_exact, tokens, query.heads, value_dim);
  checks::rows("output_coded", problem.output_coded, tokens, query.heads, value_dim);
  if (problem.output_exact.data == problem.output_coded.data &&
      (problem.output_exact.type != problem.output_coded.type ||
       problem.output_exact.token_stride != problem.output_coded.token_stride ||
       problem.output_exact.head_stride != problem.output_coded.head_stride)) {
    fail_input("attention: output_exact and output_coded share their data but not their layout");
  }
  const MixedWindow& window = problem.window;
  if (window.sink < 0 || window.recent < 0 || window.sliding < 0) {
    fail_input("attention: the windows sink {}, recent {}, sliding {} must not be negative",
               window.sink, window.recent, window.sliding);
  }
  if (problem.first_output < 0 || problem.first_query < 0) {
    fail_input("attention: first_output {} and first_query {} must not be negative",
               problem.first_output, problem.first_query);
  }
  if (problem.logit_error_sums != nullptr && problem.first_query < problem.first_output) {
    fail_input("attention: error sums from query {} need outputs from there on, not from {}",
               problem.first_query, problem.first_output);
  }
}

}  // namespace

std::int64_t MixedWindow::coded_pairs(std::int64_t tokens, std::int64_t first_query) const {
  std::int64_t pairs = 0;
  for (std::int64_t t = std::max<std::int64_t>(first_query, 0); t < tokens; ++t) {
    const std::int64_t oldest = sliding == 0 ? 0 : std::max<std::int64_t>(0, t - sliding + 1);
    const std::int64_t end = std::min(t - recent, t) + 1;
    pairs += std::max<std::int64_t>(0, end - std::max(sink, oldest));
  }
  return pairs;
}

void attend(const TeacherForcedAttention& problem, const Execution& where) {
  attend(std::span(&problem, 1), where);
}

void attend(std::span<const TeacherForcedAttention> problems, const Execution& where) {
  for (const TeacherForcedAttention& problem : problems) check(problem);
  if (where.device.is_cuda()) {
    cuda::attend(problems, where);
    return;
  }
  for (const TeacherForcedAttention& problem : problems) cpu::attend(problem);
}

}  // namespace oscar
