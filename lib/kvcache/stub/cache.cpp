#include "kvcache/backend.h"
#include "oscar/core/error.h"

namespace oscar::cuda {

namespace {
[[noreturn]] void refuse() {
  fail("a mixed cache on a CUDA device: this program was built without CUDA");
}
}  // namespace

void copy_rows(const CopyJob&, const Execution&) {
  refuse();
}
void scatter(const ScatterJob&, const Execution&) {
  refuse();
}
void attend(const MixedCacheView&, const DecodeAttention&, const Execution&) {
  refuse();
}
void* allocate(std::size_t, const Execution&) {
  refuse();
}
void release(void*, const Execution&) {}
void upload(void*, const void*, std::size_t, const Execution&) {
  refuse();
}

}  // namespace oscar::cuda
