#include "oscar/kvcache/rotate.h"

#include "kvcache/backend.h"
#include "kvcache/checks.h"
#include "oscar/core/error.h"

namespace oscar {

void rotate_rows(const ConstRows& input, const Rotations& rotations, const MutableRows& output,
                 const RotationRounding& rounding, const Execution& where) {
  checks::rows("the rows to rotate", input, input.tokens, input.heads, rotations.dim);
  checks::rows("the rotated rows", output, input.tokens, input.heads, rotations.dim);
  if (input.tokens == 0) return;
  if (rotations.dim < 1 || rotations.dim > kMaxHeadDim) {
    fail_input("rotation: head dimension {} is not from 1 to {}", rotations.dim, kMaxHeadDim);
  }
  if (rotations.data == nullptr) fail_input("the rotation has no data");
  if (rotations.matrices < 1 || input.heads % rotations.matrices != 0) {
    fail_input("{} rotation matrices can't be shared out among {} heads", rotations.matrices,
               input.heads);
  }
  if (where.device.is_cuda()) {
    cuda::rotate_rows(input, rotations, output, rounding, where);
  } else {
    cpu::rotate_rows(input, rotations, output, rounding);
  }
}

}  // namespace oscar
