#pragma once

#include <cuda_runtime_api.h>

#ifdef __CUDACC__
// nvcc 13.0 refuses fmt 9 in C++20 (its compile-time check of format strings), so .cu files see
// this one function of error.h and leave messages of their own to the .cpp file that checks.
#include <string>

namespace oscar {
[[noreturn]] void fail_call(const char* call, const std::string& reason, const char* file,
                            int line);
}  // namespace oscar
#else
#include "oscar/core/error.h"
#endif

/// Throws Error with the call's text, what CUDA said, file and line. For .cpp and .cu files of CUDA
/// back ends only.
#define OSCAR_CUDA_CHECK(call)                                                    \
  do {                                                                            \
    const cudaError_t status_ = (call);                                           \
    if (status_ != cudaSuccess) {                                                 \
      ::oscar::fail_call(#call, cudaGetErrorString(status_), __FILE__, __LINE__); \
    }                                                                             \
  } while (false)
