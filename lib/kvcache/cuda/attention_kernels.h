#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "oscar/kvcache/attention.h"

namespace oscar::cuda {

/// A problem, and where each block of positions leaves its squared logit errors: [query heads]
/// [tensor_core_blocks], or null.
struct TensorCoreAttention {
  const TeacherForcedAttention* problem;
  double* block_errors;
};

/// bf16 rows of 64 or 128 channels, one group, one query and one output for both tiers.
bool supports_tensor_cores(const TeacherForcedAttention& problem);
std::int64_t tensor_core_blocks(const TeacherForcedAttention& problem);
void attend_with_tensor_cores(std::span<const TensorCoreAttention> list, cudaStream_t stream);

}  // namespace oscar::cuda
