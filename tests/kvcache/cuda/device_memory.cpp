#include "../device_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "oscar/core/cuda_check.h"

namespace oscar::test {

void* allocate_on_device(std::size_t bytes) {
  void* pointer = nullptr;
  OSCAR_CUDA_CHECK(cudaMalloc(&pointer, std::max<std::size_t>(bytes, 1)));
  return pointer;
}
void free_on_device(void* pointer) {
  cudaFree(pointer);
}
void copy_to_device(void* to, const void* from, std::size_t bytes) {
  OSCAR_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}
void copy_from_device(void* to, const void* from, std::size_t bytes) {
  OSCAR_CUDA_CHECK(cudaDeviceSynchronize());
  OSCAR_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

}  // namespace oscar::test
