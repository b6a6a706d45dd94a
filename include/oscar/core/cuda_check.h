#pragma once

#include <cuda_runtime_api.h>

#include "oscar/core/error.h"

/// Throws Error with the call's text, what CUDA said, file and line. For .cpp and .cu files of CUDA
/// back ends only.
#define OSCAR_CUDA_CHECK(call)                                                    \
  do {                                                                            \
    const cudaError_t status_ = (call);                                           \
    if (status_ != cudaSuccess) {                                                 \
      ::oscar::fail_call(#call, cudaGetErrorString(status_), __FILE__, __LINE__); \
    }                                                                             \
  } while (false)
