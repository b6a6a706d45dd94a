#pragma once

#include "oscar/kvcache/execution.h"
#include "oscar/kvcache/rows.h"

namespace oscar {

/// Rotations for rows of `heads` heads: `matrices` row-major matrices [dim, dim] in fp32, head h of
/// the rows using matrix h / (heads / matrices). So one matrix serves a layer, and one matrix for
/// each KV head also serves the query heads grouped on it. Entries are rounded to bf16 before use,
/// as serving engines do.
struct Rotations {
  const float* data = nullptr;
  int matrices = 1;
  int dim = 0;
  bool transposed = false;  ///< multiply by the transpose: takes rotated rows back
};

/// What `rotate_rows` rounds to bf16 beside R. Served arithmetic (contract, section 2, step 1)
/// rounds both; with `--precision fp32` (section 6) x stays fp32, and only the row that enters the
/// codec is rounded, which the codec does.
struct RotationRounding {
  bool input = true;
  bool output = true;
};

/// output = input · bf16(R), row by row, with fp32 accumulation. `input` and `output` may not
/// overlap. A bf16 output is always rounded. Throws InputError where shapes disagree.
void rotate_rows(const ConstRows& input, const Rotations& rotations, const MutableRows& output,
                 const RotationRounding& rounding = {}, const Execution& where = {});

}  // namespace oscar
