#pragma once

#include <ATen/core/Tensor.h>

#include "oscar/model/rope.h"

namespace oscar {

/// Tables of cosines and sines, float32 [positions, D]: the halves repeat, as Hugging Face's
/// half-split rotation wants them.
struct RopeTables {
  at::Tensor cos, sin;
};
RopeTables rope_tables(const ModelConfig& config, std::int64_t positions, const at::Device& device);

/// Rotates x [N, heads, D] by the tables' rows cos, sin [N, 1, D].
at::Tensor apply_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

}  // namespace oscar
