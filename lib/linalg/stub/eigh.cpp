#include "linalg/eigh_backend.h"
#include "oscar/core/error.h"

namespace oscar::cuda {

std::vector<Eigensystem> eigh_one_size(const std::vector<const Matrix*>&, int) {
  fail("this program was built without CUDA");
}

}  // namespace oscar::cuda
