#include "core/cuda_info.h"

#include "oscar/core/error.h"

namespace oscar::cuda {

bool built_in() {
  return false;
}
int device_count() {
  return 0;
}
std::string describe(int) {
  fail("this program was built without CUDA");
}

}  // namespace oscar::cuda
