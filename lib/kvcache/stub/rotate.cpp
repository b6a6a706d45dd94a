#include "kvcache/backend.h"
#include "oscar/core/error.h"

namespace oscar::cuda {

void rotate_rows(const ConstRows&, const Rotations&, const MutableRows&, const RotationRounding&,
                 const Execution&) {
  fail("rotation on a CUDA device: this program was built without CUDA");
}

}  // namespace oscar::cuda
