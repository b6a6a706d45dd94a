#include <algorithm>

#include "kvcache/backend.h"
#include "kvcache/cuda/decode_problem.h"
#include "kvcache/cuda/launch.cuh"

namespace oscar::cuda {
namespace {

constexpr unsigned kEveryLane = 0xffffffffu;
constexpr float kLogTwoE = 1.44269504f;
constexpr int kCombineWarps = 8;

/// Block (x: request and query head, y: 32 channels): each warp adds every eighth part.
__global__ void __launch_bounds__(kCombineWarps * 32)
    combine_kernel(DecodeSplits splits, DecodeAttention problem) {
  __shared__ float shared[kCombineWarps][33];
  __shared__ float sums[kCombineWarps];
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();  // launched while the parts are still at work
#endif
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int heads = problem.query.heads, parts = splits.parts();
  const int head = blockIdx.x % heads;
  const std::int64_t request = blockIdx.x / heads;
  const float* maxima = splits.maximum + static_cast<std::int64_t>(blockIdx.x) * parts;
  float maximum = -1e30f;
  for (int part = lane; part < parts; part += 32) maximum = fmaxf(maximum, maxima[part]);
  for (int step = 16; step > 0; step /= 2) {
    maximum = fmaxf(maximum, __shfl_xor_sync(kEveryLane, maximum, step));
  }
  float extra = 0;
  if (problem.sink_logits != nullptr) {
    const float logit = problem.sink_logits[head] * kLogTwoE;
    maximum = fmaxf(maximum, logit);
    extra = exp2f(logit - maximum);
  }
  const int dim = problem.output.dim;
  const int channel = blockIdx.y * 32 + lane;
  float total = 0, sum = 0;
#pragma unroll 4
  for (int part = warp; part < parts; part += kCombineWarps) {
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * parts + part;
    const float weight = exp2f(splits.maximum[at] - maximum);
    sum = fmaf(weight, splits.sum[at], sum);
    if (channel < dim) total = fmaf(weight, splits.output[at * dim + channel], total);
  }
  shared[warp][lane] = total;
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (warp != 0 || channel >= dim) return;
  total = 0;
  sum = extra;
  for (int w = 0; w < kCombineWarps; ++w) {
    total += shared[w][lane];
    sum += sums[w];
  }
  store_element(problem.output, row_offset(problem.output, request, head) + channel, total / sum);
}

constexpr int kAnyWarps = 8;
constexpr int kAnyChannels = kMaxHeadDim / 32;  // of a lane

/// Token t of a request: the tier that holds it, and its place there.
struct Found {
  bool exact;
  const ConstRows *key, *value;
  std::int64_t place;
};

__device__ Found find_token(const MixedCacheView& cache, const RequestTiers& request, int t) {
  if (t < request.sink) {
    return {true, &cache.key_sink, &cache.value_sink,
            static_cast<std::int64_t>(request.slot) * cache.sink_places + t};
  }
  const int index = t - request.sink;
  if (index >= request.coded) {
    return {
        true, &cache.key_recent, &cache.value_recent,
        static_cast<std::int64_t>(request.slot) * cache.ring_places + index % cache.ring_places};
  }
  const std::int64_t page =
      cache.block_table[request.slot * cache.pages_per_slot + index / kPageTokens];
  return {false, nullptr, nullptr, page * kPageTokens + index % kPageTokens};
}

/// Block (x: query head, y: request): a token a warp at a time.
__global__ void __launch_bounds__(kAnyWarps * 32)
    decode_any_kernel(MixedCacheView cache, DecodeAttention problem) {
  __shared__ float query[kMaxHeadDim];
  __shared__ float outputs[kAnyWarps][kMaxHeadDim];
  __shared__ float maxima[kAnyWarps], sums[kAnyWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int head = blockIdx.x, kv_head = head / (problem.query.heads / cache.key_coded.heads);
  const int dim = cache.key_codec.dim, value_dim = cache.value_codec.dim;
  const RequestTiers request = cache.requests[blockIdx.y];
  for (int i = threadIdx.x; i < dim; i += blockDim.x) {
    query[i] = load_element(problem.query, row_offset(problem.query, blockIdx.y, head) + i);
  }
  __syncthreads();
  float maximum = -1e30f, sum = 0, output[kAnyChannels] = {};
  const int oldest = problem.sliding == 0
                         ? 0
                         : static_cast<int>(max(std::int64_t{0}, request.length - problem.sliding));
  for (int t = oldest + warp; t < request.length; t += kAnyWarps) {
    const Found found = find_token(cache, request, t);
    float product = 0;
    for (int i = lane; i < dim; i += 32) {
      const float key =
          found.exact ? load_element(*found.key, row_offset(*found.key, found.place, kv_head) + i)
                      : decode_element(cache.key_codec, cache.key_coded, found.place, kv_head, i);
      product = fmaf(query[i], key, product);
    }
    for (int step = 16; step > 0; step /= 2) {
      product += __shfl_xor_sync(kEveryLane, product, step);
    }
    float logit = product * problem.scale;
    if (problem.soft_cap > 0) logit = problem.soft_cap * tanhf(logit / problem.soft_cap);
    const float next = fmaxf(maximum, logit);
    const float rescale = expf(maximum - next), weight = expf(logit - next);
    maximum = next;
    sum = fmaf(sum, rescale, weight);
#pragma unroll
    for (int c = 0; c < kAnyChannels; ++c) {
      const int i = lane + 32 * c;
      if (i >= value_dim) break;
      const float value =
          found.exact
              ? load_element(*found.value, row_offset(*found.value, found.place, kv_head) + i)
              : decode_element(cache.value_codec, cache.value_coded, found.place, kv_head, i);
      output[c] = fmaf(output[c], rescale, weight * value);
    }
  }
#pragma unroll
  for (int c = 0; c < kAnyChannels; ++c) {
    if (lane + 32 * c < value_dim) outputs[warp][lane + 32 * c] = output[c];
  }
  if (lane == 0) {
    maxima[warp] = maximum;
    sums[warp] = sum;
  }
  __syncthreads();
  float top = problem.sink_logits == nullptr ? -1e30f : problem.sink_logits[head];
  for (int w = 0; w < kAnyWarps; ++w) top = fmaxf(top, maxima[w]);
  float whole = problem.sink_logits == nullptr ? 0 : expf(problem.sink_logits[head] - top);
  for (int w = 0; w < kAnyWarps; ++w) whole += expf(maxima[w] - top) * sums[w];
  for (int i = threadIdx.x; i < value_dim; i += blockDim.x) {
    float total = 0;
    for (int w = 0; w < kAnyWarps; ++w) total += expf(maxima[w] - top) * outputs[w][i];
    store_element(problem.output, row_offset(problem.output, blockIdx.y, head) + i, total / whole);
  }
}

int rounded_up(std::int64_t number, int unit) {
  return static_cast<int>((number + unit - 1) / unit * unit);
}

/// Enough parts to fill the device, a few times over where the work is large, so that its parts end
/// together; none of them small.
DecodeSplits choose_splits(const MixedCacheView& cache, const DecodeAttention& problem,
                           int processors) {
  const std::int64_t heads = cache.key_coded.heads, grouped = problem.query.heads / heads;
  const std::int64_t blocks = cache.count * ((grouped + 7) / 8) * ((heads + 7) / 8);  // of a part
  const std::int64_t places = 2LL * processors * 8 / std::min<std::int64_t>(heads, 8);
  DecodeSplits splits;
  const std::int64_t exact =
      std::min<std::int64_t>(cache.longest, std::int64_t{cache.sink_places} + cache.ring_places);
  const std::int64_t coded =
      std::max<std::int64_t>(1, std::min(cache.longest, cache.pages_per_slot * kPageTokens));
  const std::int64_t waves = std::clamp<std::int64_t>(blocks * coded / (places * 2048), 1, 4);
  const std::int64_t most = std::min<std::int64_t>(kMostDecodeParts - 64, (coded + 63) / 64);
  const std::int64_t parts = std::clamp<std::int64_t>(places * waves / blocks, 1, most);
  splits.coded_tokens = rounded_up((coded + parts - 1) / parts, 32);
  splits.coded = static_cast<int>((coded + splits.coded_tokens - 1) / splits.coded_tokens);
  // Blocks of the INT2 tier take the exact ones along, unless places are left for blocks of their
  // own.
  const std::int64_t left = places / blocks - splits.coded;
  splits.separate = left * 32 >= exact;
  const std::int64_t sharers = splits.separate ? left : splits.coded;
  splits.exact_tokens =
      std::max({waves > 1 ? 48 : 16, rounded_up((exact + sharers - 1) / sharers, 16),
                rounded_up((exact + 63) / 64, 16)});
  splits.exact = static_cast<int>((exact + splits.exact_tokens - 1) / splits.exact_tokens);
  return splits;
}

}  // namespace

void combine_splits(const MixedCacheView& cache, const DecodeAttention& problem,
                    const DecodeSplits& splits, cudaStream_t stream) {
  const dim3 grid(cache.count * problem.query.heads, (problem.output.dim + 31) / 32);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = grid;
  launch.blockDim = dim3(kCombineWarps * 32);
  launch.stream = stream;
  launch.attrs = &early;
  launch.numAttrs = 1;
  OSCAR_CUDA_CHECK(cudaLaunchKernelEx(&launch, combine_kernel, splits, problem));
}

void decode_any(const MixedCacheView& cache, const DecodeAttention& problem, cudaStream_t stream) {
  decode_any_kernel<<<dim3(problem.query.heads, cache.count), kAnyWarps * 32, 0, stream>>>(cache,
                                                                                           problem);
  OSCAR_CUDA_CHECK(cudaGetLastError());
}

void attend(const MixedCacheView& cache, const DecodeAttention& problem, const Execution& where) {
  const DeviceScope scope(where);
  const cudaStream_t stream = stream_of(where);
  if (!supports_split_decode(cache, problem)) {
    decode_any(cache, problem, stream);
    return;
  }
  int processors = 0;
  OSCAR_CUDA_CHECK(
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, where.device.index));
  DecodeSplits splits = choose_splits(cache, problem, processors);
  const std::int64_t results = std::int64_t{cache.count} * problem.query.heads * splits.parts();
  const std::size_t bytes = sizeof(float) * results * (2 + problem.output.dim);
  const auto run = [&](float* memory) {
    splits.output = memory;
    splits.maximum = memory + results * problem.output.dim;
    splits.sum = splits.maximum + results;
    split_decode(cache, problem, splits, stream);
    combine_splits(cache, problem, splits, stream);
  };
  if (problem.workspace != nullptr && problem.workspace_bytes >= bytes) {
    run(static_cast<float*>(problem.workspace));
  } else {
    StreamBuffer buffer(bytes, stream);
    run(buffer.as<float>());
  }
}

}  // namespace oscar::cuda
