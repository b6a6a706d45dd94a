#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "oscar/kvcache/codec.h"

namespace oscar::cuda {

/// Encodes rows of any type, size, group and alignment, one row a warp.
void encode_any_rows(const EncodeJob& job, cudaStream_t stream);

/// Whether rotate_encode takes the job: bf16 rows of 128 channels.
bool supports_rotate_encode(const EncodeJob& job);

/// Rotates and encodes in one launch, jobs of one kind together.
void rotate_encode(std::span<const EncodeJob* const> jobs, cudaStream_t stream);

}  // namespace oscar::cuda
