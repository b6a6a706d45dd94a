#include "kvcache/checks.h"

#include "oscar/core/error.h"

namespace oscar::checks {

void rows(std::string_view name, const ConstRows& rows, std::int64_t tokens, int heads, int dim) {
  if (rows.tokens != tokens || rows.heads != heads || rows.dim != dim) {
    fail_input("{} has shape [{} tokens, {} heads, {} channels]; expected [{}, {}, {}]", name,
               rows.tokens, rows.heads, rows.dim, tokens, heads, dim);
  }
  if (tokens < 0 || tokens > kMaxTokens || heads < 1 || heads > kMaxHeads) {
    fail_input("{} has {} tokens of {} heads; expected at most {} tokens of 1 to {} heads", name,
               tokens, heads, kMaxTokens, kMaxHeads);
  }
  if (tokens > 0 && rows.data == nullptr) fail_input("{} has no data", name);
}

void coded(std::string_view name, const ConstCodedRows& coded, std::int64_t tokens, int heads) {
  if (coded.tokens != tokens || coded.heads != heads) {
    fail_input("{} has shape [{} tokens, {} heads]; expected [{}, {}]", name, coded.tokens,
               coded.heads, tokens, heads);
  }
  if (tokens > 0 && (coded.codes == nullptr || coded.scales_zeros == nullptr)) {
    fail_input("{} has no {}", name, coded.codes == nullptr ? "codes" : "scales_zeros");
  }
}

}  // namespace oscar::checks
