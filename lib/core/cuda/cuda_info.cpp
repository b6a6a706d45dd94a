#include "core/cuda_info.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "oscar/core/cuda_check.h"

namespace oscar::cuda {

bool built_in() {
  return true;
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // no driver or no device is an answer, not an error to be found later
    return 0;
  }
  return count;
}

std::string describe(int index) {
  cudaDeviceProp properties{};
  OSCAR_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  return fmt::format("{}, {:.0f} GiB, compute capability {}.{}", properties.name,
                     static_cast<double>(properties.totalGlobalMem) / (1 << 30), properties.major,
                     properties.minor);
}

}  // namespace oscar::cuda
