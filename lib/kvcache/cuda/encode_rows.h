#pragma once

#include <cuda_runtime_api.h>

#include "oscar/kvcache/codec.h"

namespace oscar::cuda {

/// Encodes rows of any type, size, group and alignment, one row a warp.
void encode_any_rows(const EncodeJob& job, cudaStream_t stream);

}  // namespace oscar::cuda
