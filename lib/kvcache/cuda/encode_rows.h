#pragma once

#include <cuda_runtime_api.h>

#include "oscar/kvcache/codec.h"

namespace oscar::cuda {

/// Encodes rows of any type, size, group and alignment, one row a warp.
void encode_any_rows(const EncodeJob& job, cudaStream_t stream);

/// Rotates and encodes in one launch, if it is bf16 rows of 128 channels; else does nothing and
/// returns false.
bool rotate_encode(const EncodeJob& job, cudaStream_t stream);

}  // namespace oscar::cuda
