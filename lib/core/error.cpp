#include "oscar/core/error.h"

namespace oscar {

void fail_call(const char* call, const std::string& reason, const char* file, int line) {
  throw Error(fmt::format("{} failed: {} ({}:{})", call, reason, file, line));
}

}  // namespace oscar
