#include "../device_memory.h"

#include "oscar/core/error.h"

namespace oscar::test {

void* allocate_on_device(std::size_t) {
  fail("built without CUDA");
}
void free_on_device(void*) {}
void copy_to_device(void*, const void*, std::size_t) {
  fail("built without CUDA");
}
void copy_from_device(void*, const void*, std::size_t) {
  fail("built without CUDA");
}

}  // namespace oscar::test
