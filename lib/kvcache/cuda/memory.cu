#include "kvcache/backend.h"
#include "kvcache/cuda/launch.cuh"

namespace oscar::cuda {
namespace {

/// Block (x: row of the map, y: head).
__global__ void copy_kernel(CopyJob job) {
  const std::int64_t i = blockIdx.x;
  const std::int64_t source = job.map.from == nullptr ? i : job.map.from[i];
  const std::int64_t target = job.map.to == nullptr ? i : job.map.to[i];
  const std::int64_t from = row_offset(job.from, source, blockIdx.y);
  const std::int64_t to = row_offset(job.to, target, blockIdx.y);
  for (int c = threadIdx.x; c < job.from.dim; c += blockDim.x) {
    store_element(job.to, to + c, load_element(job.from, from + c));
  }
}

__global__ void scatter_kernel(ScatterJob job) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < job.count) job.table[job.index[i]] = job.value[i];
}

}  // namespace

void copy_rows(const CopyJob& job, const Execution& where) {
  if (job.map.count <= 0) return;
  const DeviceScope scope(where);
  const dim3 grid(static_cast<unsigned>(job.map.count), job.from.heads);
  copy_kernel<<<grid, 128, 0, stream_of(where)>>>(job);
  OSCAR_CUDA_CHECK(cudaGetLastError());
}

void scatter(const ScatterJob& job, const Execution& where) {
  if (job.count <= 0) return;
  const DeviceScope scope(where);
  scatter_kernel<<<static_cast<unsigned>((job.count + 255) / 256), 256, 0, stream_of(where)>>>(job);
  OSCAR_CUDA_CHECK(cudaGetLastError());
}

void* allocate(std::size_t bytes, const Execution& where) {
  const DeviceScope scope(where);
  void* memory = nullptr;
  OSCAR_CUDA_CHECK(cudaMalloc(&memory, bytes == 0 ? 1 : bytes));
  OSCAR_CUDA_CHECK(cudaMemsetAsync(memory, 0, bytes, stream_of(where)));
  return memory;
}

void release(void* memory, const Execution& where) {
  const DeviceScope scope(where);
  cudaFree(memory);
}

void upload(void* to, const void* from, std::size_t bytes, const Execution& where) {
  const DeviceScope scope(where);
  OSCAR_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_of(where)));
  OSCAR_CUDA_CHECK(cudaStreamSynchronize(stream_of(where)));
}

}  // namespace oscar::cuda
