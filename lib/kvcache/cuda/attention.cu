#include <algorithm>
#include <vector>

#include "kvcache/backend.h"
#include "kvcache/cuda/attention_kernels.h"
#include "kvcache/cuda/launch.cuh"

namespace oscar::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kRowsPerWarp = 4;
constexpr int kQueries = kWarps * kRowsPerWarp;  // positions of one block
constexpr int kKeys = 32;                        // keys of one tile: one a lane
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ float warp_max(float value) {
  for (int step = 16; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}

template <typename T>
__device__ T warp_sum(T value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

/// Rows begin ... begin + kKeys - 1 of one head into tile[key][dim + 1]; rows outside [from, to)
/// are zero.
__device__ void load_exact(const ConstRows& rows, int head, std::int64_t begin, std::int64_t from,
                           std::int64_t to, float* tile) {
  for (int i = threadIdx.x; i < kKeys * rows.dim; i += blockDim.x) {
    const int key = i / rows.dim, channel = i % rows.dim;
    const std::int64_t token = begin + key;
    tile[key * (rows.dim + 1) + channel] =
        token >= from && token < to ? load_element(rows, row_offset(rows, token, head) + channel)
                                    : 0.0f;
  }
}

__device__ void load_coded(const CodecSettings& settings, const ConstCodedRows& coded, int head,
                           std::int64_t begin, std::int64_t from, std::int64_t to, float* tile) {
  for (int i = threadIdx.x; i < kKeys * settings.dim; i += blockDim.x) {
    const int key = i / settings.dim, channel = i % settings.dim;
    const std::int64_t token = begin + key;
    tile[key * (settings.dim + 1) + channel] =
        token >= from && token < to ? decode_element(settings, coded, token, head, channel) : 0.0f;
  }
}

/// The warp's rows of `queries` [kQueries][dim] against the lane's key.
__device__ void score(const float* queries, const float* tile, int dim,
                      float (&out)[kRowsPerWarp]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* key = tile + lane * (dim + 1);
  for (int r = 0; r < kRowsPerWarp; ++r) out[r] = 0;
  for (int i = 0; i < dim; ++i) {
    for (int r = 0; r < kRowsPerWarp; ++r) {
      out[r] = fmaf(queries[(warp * kRowsPerWarp + r) * dim + i], key[i], out[r]);
    }
  }
}

/// Adds Σ weight·value over the tile's keys; lane l holds channels l, l + 32, ...
template <int kChannels>
__device__ void accumulate(const float* tile, int dim, const float (&weight)[kRowsPerWarp],
                           float (&output)[kRowsPerWarp][kChannels]) {
  const int lane = threadIdx.x % 32;
  for (int key = 0; key < kKeys; ++key) {
    float w[kRowsPerWarp];
    for (int r = 0; r < kRowsPerWarp; ++r) w[r] = __shfl_sync(kAllLanes, weight[r], key);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const int channel = lane + 32 * c;
      const float value = channel < dim ? tile[key * (dim + 1) + channel] : 0.0f;
#pragma unroll
      for (int r = 0; r < kRowsPerWarp; ++r) output[r][c] = fmaf(w[r], value, output[r][c]);
    }
  }
}

/// Block (x: kQueries positions, y: query head). `errors` [query heads][blocks of positions] or
/// null. Dynamic shared memory: the exact and the coded queries, then one tile of keys or values.
template <int kChannels>
__global__ void __launch_bounds__(kWarps * 32)
    attend_kernel(TeacherForcedAttention problem, double* errors) {
  extern __shared__ float shared[];
  __shared__ double warp_errors[kWarps];
  const int dim = problem.key_codec.dim, value_dim = problem.value_codec.dim;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int head = blockIdx.y;
  const int kv_head = head / (problem.query_exact.heads / problem.key_exact.heads);
  const MixedWindow window = problem.window;
  const std::int64_t tokens = problem.query_exact.tokens;
  const std::int64_t first =
      problem.first_output + static_cast<std::int64_t>(blockIdx.x) * kQueries;
  const std::int64_t last = min(first + kQueries, tokens) - 1;
  float* query_exact = shared;
  float* query_coded = shared + kQueries * dim;
  float* tile = shared + 2 * kQueries * dim;
  for (int i = threadIdx.x; i < kQueries * dim; i += blockDim.x) {
    const std::int64_t token = min(first + i / dim, last);
    const int channel = i % dim;
    query_exact[i] =
        load_element(problem.query_exact, row_offset(problem.query_exact, token, head) + channel);
    query_coded[i] =
        load_element(problem.query_coded, row_offset(problem.query_coded, token, head) + channel);
  }
  __syncthreads();

  float maximum[kRowsPerWarp], sum[kRowsPerWarp];
  float exact[kRowsPerWarp][kChannels] = {}, coded[kRowsPerWarp][kChannels] = {};
  for (int r = 0; r < kRowsPerWarp; ++r) {
    maximum[r] = -INFINITY;
    sum[r] = 0;
  }
  double error = 0;
  const std::int64_t oldest = window.sliding == 0 ? 0 : max(0L, first - window.sliding + 1);
  for (std::int64_t begin = oldest / kKeys * kKeys; begin <= last; begin += kKeys) {
    const std::int64_t end = min(begin + kKeys, last + 1);
    // INT2 for some row: sink <= j <= last - recent; exact for some row: j < sink or j > first -
    // recent.
    const std::int64_t coded_from = max(begin, window.sink);
    const std::int64_t coded_to = min(end, last - window.recent + 1);
    const bool any_coded = coded_from < coded_to;
    const bool any_exact = begin < window.sink || end > first - window.recent + 1;
    const bool counted = errors != nullptr && any_coded && last >= problem.first_query;
    float score_exact[kRowsPerWarp] = {}, score_coded[kRowsPerWarp] = {};
    if (any_exact || counted) {
      load_exact(problem.key_exact, kv_head, begin, begin, end, tile);
      __syncthreads();
      score(query_exact, tile, dim, score_exact);
      __syncthreads();
    }
    if (any_coded) {
      load_coded(problem.key_codec, problem.key_coded, kv_head, begin, coded_from, coded_to, tile);
      __syncthreads();
      score(query_coded, tile, dim, score_coded);
      __syncthreads();
    }
    float weight_exact[kRowsPerWarp], weight_coded[kRowsPerWarp];
    const std::int64_t key = begin + lane;
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const std::int64_t position = min(first + warp * kRowsPerWarp + r, last);
      const bool in_block = first + warp * kRowsPerWarp + r <= last;
      const bool seen = key <= position && (window.sliding == 0 || key > position - window.sliding);
      const bool is_exact = key < window.sink || key > position - window.recent;
      if (counted && in_block && seen && !is_exact && position >= problem.first_query) {
        const float difference = problem.scale * (score_coded[r] - score_exact[r]);
        error += static_cast<double>(difference) * difference;
      }
      const float logit =
          seen ? problem.scale * (is_exact ? score_exact[r] : score_coded[r]) : -INFINITY;
      const float highest = fmaxf(maximum[r], warp_max(logit));
      const float reference = highest == -INFINITY ? 0.0f : highest;
      const float rescale = expf(maximum[r] - reference);
      const float weight = expf(logit - reference);
      maximum[r] = highest;
      sum[r] = fmaf(sum[r], rescale, warp_sum(weight));
      weight_exact[r] = is_exact ? weight : 0.0f;
      weight_coded[r] = is_exact ? 0.0f : weight;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        exact[r][c] *= rescale;
        coded[r][c] *= rescale;
      }
    }
    if (any_exact) {
      load_exact(problem.value_exact, kv_head, begin, begin, end, tile);
      __syncthreads();
      accumulate(tile, value_dim, weight_exact, exact);
      __syncthreads();
    }
    if (any_coded) {
      load_coded(problem.value_codec, problem.value_coded, kv_head, begin, coded_from, coded_to,
                 tile);
      __syncthreads();
      accumulate(tile, value_dim, weight_coded, coded);
      __syncthreads();
    }
  }

  const bool one_output = problem.output_exact.data == problem.output_coded.data;
  for (int r = 0; r < kRowsPerWarp; ++r) {
    const std::int64_t position = first + warp * kRowsPerWarp + r;
    if (position > last) break;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const int channel = lane + 32 * c;
      if (channel >= value_dim) continue;
      const float of_coded = coded[r][c] / sum[r], of_exact = exact[r][c] / sum[r];
      store_element(problem.output_exact,
                    row_offset(problem.output_exact, position, head) + channel,
                    one_output ? of_exact + of_coded : of_exact);
      if (!one_output) {
        store_element(problem.output_coded,
                      row_offset(problem.output_coded, position, head) + channel, of_coded);
      }
    }
  }
  if (errors == nullptr) return;
  error = warp_sum(error);
  if (lane == 0) warp_errors[warp] = error;
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0;
    for (int w = 0; w < kWarps; ++w) total += warp_errors[w];
    errors[static_cast<std::int64_t>(head) * gridDim.x + blockIdx.x] = total;
  }
}

/// One block a query head: adds its blocks' sums, always in the same order.
__global__ void sum_errors_kernel(const double* errors, std::int64_t blocks, double* sums) {
  const double* mine = errors + blockIdx.x * blocks;
  double total = 0;
  for (std::int64_t i = threadIdx.x; i < blocks; i += 32) total += mine[i];
  total = warp_sum(total);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

using Kernel = void (*)(TeacherForcedAttention, double*);

/// The instance with the fewest registers that holds this many value channels.
Kernel kernel_for(int value_dim) {
  if (value_dim <= 64) return attend_kernel<2>;
  if (value_dim <= 96) return attend_kernel<3>;
  if (value_dim <= 128) return attend_kernel<4>;
  if (value_dim <= 192) return attend_kernel<6>;
  if (value_dim <= 256) return attend_kernel<8>;
  static_assert(kMaxHeadDim <= 512);
  return attend_kernel<16>;
}

}  // namespace

namespace {

/// Any shape and precision, fp32 arithmetic. `errors` as sum_errors_kernel reads them, or null.
void attend_any(const TeacherForcedAttention& problem, double* errors, cudaStream_t stream) {
  const int heads = problem.query_exact.heads;
  const std::int64_t queries = problem.query_exact.tokens - problem.first_output;
  const int dim = problem.key_codec.dim, value_dim = problem.value_codec.dim;
  const std::size_t floats = 2 * kQueries * dim + kKeys * (std::max(dim, value_dim) + 1);
  const std::size_t shared = floats * sizeof(float);
  const Kernel kernel = kernel_for(value_dim);
  OSCAR_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(shared)));
  const dim3 grid(static_cast<unsigned>((queries + kQueries - 1) / kQueries), heads);
  kernel<<<grid, kWarps * 32, shared, stream>>>(problem, errors);
  OSCAR_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void attend(std::span<const TeacherForcedAttention> problems, const Execution& where) {
  const DeviceScope scope(where);
  const cudaStream_t stream = stream_of(where);
  std::vector<TensorCoreAttention> fast;
  std::vector<std::pair<const TeacherForcedAttention*, std::int64_t>> sums;  // with its blocks
  std::size_t doubles = 0;
  std::vector<const TeacherForcedAttention*> slow;
  for (const TeacherForcedAttention& problem : problems) {
    const std::int64_t queries = problem.query_exact.tokens - problem.first_output;
    const int heads = problem.query_exact.heads;
    if (queries <= 0) {
      if (problem.logit_error_sums != nullptr) {
        OSCAR_CUDA_CHECK(
            cudaMemsetAsync(problem.logit_error_sums, 0, heads * sizeof(double), stream));
      }
      continue;
    }
    const bool tensor_cores = supports_tensor_cores(problem);
    if (tensor_cores) {
      fast.push_back({&problem, nullptr});
    } else {
      slow.push_back(&problem);
    }
    if (problem.logit_error_sums != nullptr) {
      const std::int64_t blocks =
          tensor_cores ? tensor_core_blocks(problem) : (queries + kQueries - 1) / kQueries;
      sums.emplace_back(&problem, blocks);
      doubles += static_cast<std::size_t>(blocks) * heads;
    }
  }
  StreamBuffer buffer(std::max<std::size_t>(doubles, 1) * sizeof(double), stream);
  std::size_t at = 0;
  std::vector<double*> places;
  for (const auto& [problem, blocks] : sums) {
    places.push_back(buffer.as<double>() + at);
    at += static_cast<std::size_t>(blocks) * problem->query_exact.heads;
  }
  const auto errors_of = [&](const TeacherForcedAttention* problem) -> double* {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (sums[i].first == problem) return places[i];
    }
    return nullptr;
  };
  for (TensorCoreAttention& item : fast) item.block_errors = errors_of(item.problem);
  attend_with_tensor_cores(fast, stream);
  for (const TeacherForcedAttention* problem : slow) {
    attend_any(*problem, errors_of(problem), stream);
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto& [problem, blocks] = sums[i];
    sum_errors_kernel<<<problem->query_exact.heads, 32, 0, stream>>>(places[i], blocks,
                                                                     problem->logit_error_sums);
    OSCAR_CUDA_CHECK(cudaGetLastError());
  }
}

}  // namespace oscar::cuda
