#include <algorithm>
#include <utility>
#include <vector>

#include "kvcache/cuda/encode_rows.h"
#include "kvcache/cuda/hopper.cuh"
#include "kvcache/cuda/launch.cuh"
#include "kvcache/cuda/matrix.cuh"
#include "kvcache/cuda/row_codec.cuh"

/// Rotation and coding of rows of 128 channels in one pass: docs/kernels.md explains the design.
namespace oscar::cuda {
namespace {

constexpr int kDim = 128;
constexpr int kWarps = 8;
constexpr int kTileRows = 32;  // of a warp at a time

constexpr int kJobs = 16;  // of one launch

struct Strides {
  std::int64_t token, head;

  __device__ std::int64_t offset(std::int64_t token_index, int head_index) const {
    return token_index * token + head_index * head;
  }
};

struct Job {
  const std::uint16_t* rows;
  const float* matrices;
  std::uint16_t* rotated;  // or null
  std::uint8_t* codes;
  char* scales;
  float* thresholds;
  const std::int32_t *from, *to;
  Strides row, rotated_row;  // elements
  Strides code, scale;       // bytes
  std::uint32_t tokens;
  int heads;
  bool transposed;
  RowCodecSettings settings;
};

struct Jobs {
  Job job[kJobs];
};

/// Where a row of a matrix's rows lies.
struct Row {
  std::uint32_t token;
  int head;

  __device__ Row(std::uint32_t row, int index, std::uint32_t heads)
      : token(heads == 1 ? row : row / heads),
        head(static_cast<int>(index * heads + (row - token * heads))) {}
  __device__ std::int64_t source(const Job& a) const {
    return a.from == nullptr ? token : a.from[token];
  }
  __device__ const std::uint16_t* input(const Job& a) const {
    return a.rows + a.row.offset(source(a), head);
  }
};

/// Writes a rotated row, which its four lanes hold, as far as it is wanted.
template <bool kGrouped>
__device__ void finish_row(const Job& a, const Row& place, bool store,
                           RegisterRow<4, 4, kGrouped>& row) {
  const int t = threadIdx.x % 4;
  if (store && a.rotated != nullptr) {
    std::uint16_t* out = a.rotated + a.rotated_row.offset(place.source(a), place.head) + 8 * t;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      *reinterpret_cast<uint4*>(out + 32 * q) = {row.x[q][0], row.x[q][1], row.x[q][2],
                                                 row.x[q][3]};
    }
  }
  const std::int64_t target = a.to == nullptr ? place.token : a.to[place.token];
  float* threshold =
      a.thresholds == nullptr
          ? nullptr
          : a.thresholds + static_cast<std::int64_t>(place.token) * a.heads + place.head;
  std::uint32_t bytes[2];
  row.encode(a.settings, store, a.scales + a.scale.offset(target, place.head), threshold, bytes);
  if (store) {
    std::uint8_t* out = a.codes + a.code.offset(target, place.head) + 8 * t;
    *reinterpret_cast<uint2*>(out) = {bytes[0], bytes[1]};
  }
}

/// The matrix in bf16 as the B operands of kDim / 16 steps and kDim / 8 columns of tiles, so that a
/// lane reads two tiles' operands with one load. Input channels are so permuted that a lane's A
/// operands are 16 contiguous bytes of a row, output channels so that its sums are what
/// RegisterRow<4, 4> holds.
__device__ void load_matrix(const Job& a, int index, std::uint32_t* shared) {
  const float* matrix = a.matrices + static_cast<std::int64_t>(index) * kDim * kDim;
  for (int i = threadIdx.x; i < kDim * kDim / 2; i += blockDim.x) {
    const int half = i % 2, odd = i / 2 % 2, lane = i / 4 % 32, pair = i / 128 % 8, step = i / 1024;
    const int tile = 2 * pair + odd, column = lane / 4, t = lane % 4;
    const int output = tile / 4 * 32 + column / 2 * 8 + tile % 4 * 2 + column % 2;
    const int input = step / 2 * 32 + t * 8 + step % 2 * 4 + half * 2;
    const auto entry = [&](int from) {
      return float_to_bfloat16(matrix[a.transposed ? output * kDim + from : from * kDim + output]);
    };
    shared[i] = entry(input) | static_cast<std::uint32_t>(entry(input + 1)) << 16;
  }
}

/// Block (x: a stripe of one matrix's rows, y: job).
template <bool kGrouped>
__global__ void __launch_bounds__(kWarps * 32, 1)
    rotate_encode_kernel(const __grid_constant__ Jobs jobs, int matrix_count) {
  __shared__ __align__(16) std::uint32_t matrix[kDim * kDim / 2];
  const Job& a = jobs.job[blockIdx.y];
  const int index = blockIdx.x % matrix_count;
  const int stripe = blockIdx.x / matrix_count, stripes = gridDim.x / matrix_count;
  load_matrix(a, index, matrix);
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const std::uint32_t heads = a.heads / matrix_count, rows = a.tokens * heads;
  const std::uint32_t tiles = (rows + kTileRows - 1) / kTileRows;
  for (std::uint32_t tile = stripe * kWarps + warp; tile < tiles; tile += stripes * kWarps) {
    const auto locate = [&](int i) {
      return Row(min(tile * kTileRows + 8 * i + g, rows - 1), index, heads);
    };
    uint4 x[4][4];  // row, 32 channels
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint16_t* in = locate(i).input(a) + 8 * t;
#pragma unroll
      for (int j = 0; j < 4; ++j) x[i][j] = __ldg(reinterpret_cast<const uint4*>(in + 32 * j));
    }
    float sums[2][kDim / 8][4] = {};
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
#pragma unroll
      for (int pair = 0; pair < kDim / 16; ++pair) {
        const uint4 b =
            *reinterpret_cast<const uint4*>(matrix + (step * 8 + pair) * 128 + lane * 4);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint4 &upper = x[2 * m][step / 2], &lower = x[2 * m + 1][step / 2];
          const bool second = step % 2 == 1;
          const std::uint32_t a0 = second ? upper.z : upper.x, a1 = second ? lower.z : lower.x;
          const std::uint32_t a2 = second ? upper.w : upper.y, a3 = second ? lower.w : lower.y;
          multiply_bfloat16(sums[m][2 * pair], a0, a1, a2, a3, b.x, b.y);
          multiply_bfloat16(sums[m][2 * pair + 1], a0, a1, a2, a3, b.z, b.w);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      RegisterRow<4, 4, kGrouped> row;
      row.active = true;
#pragma unroll
      for (int q = 0; q < 4; ++q) {
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          const float* sum = sums[i / 2][4 * q + p] + i % 2 * 2;
          row.x[q][p] = as_bits(__floats2bfloat162_rn(sum[0], sum[1]));
        }
      }
      finish_row(a, locate(i), tile * kTileRows + 8 * i + g < rows, row);
    }
  }
}

constexpr int kGroupRows = 64;  // of a warpgroup at a time
constexpr int kGroupsPerBlock = 2;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// The matrix in bf16 as wgmma reads it without swizzle: for each step of 16 input channels two
/// halves of 8, in each 8 by 8 blocks of output channels, rows of 16 bytes. Channels are permuted
/// as in load_matrix.
__device__ void load_matrix_blocks(const Job& a, int index, std::uint16_t* shared) {
  const float* matrix = a.matrices + static_cast<std::int64_t>(index) * kDim * kDim;
  for (int i = threadIdx.x; i < kDim * kDim; i += blockDim.x) {
    const int row = i / kDim, column = i % kDim;
    const int in = a.transposed ? column : row, out = a.transposed ? row : column;
    const int step = in / 32 * 2 + in % 8 / 4;
    const int k = in % 4 / 2 * 8 + in % 32 / 8 * 2 + in % 2;
    const int n = (out / 32 * 4 + out % 8 / 2) * 8 + out % 32 / 8 * 2 + out % 2;
    shared[step * 2048 + k / 8 * 1024 + n / 8 * 64 + n % 8 * 8 + k % 8] =
        float_to_bfloat16(matrix[i]);
  }
}
#endif

/// The same as rotate_encode_kernel with Hopper's warpgroup products, which read the matrix once
/// for 64 rows and run beside the codec of other warps.
template <bool kGrouped>
__global__ void __launch_bounds__(kGroupsPerBlock * 128, 2)
    rotate_encode_hopper_kernel(const __grid_constant__ Jobs jobs, int matrix_count) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  __shared__ __align__(128) std::uint16_t matrix[kDim * kDim];
  const Job& a = jobs.job[blockIdx.y];
  const int index = blockIdx.x % matrix_count;
  const int stripe = blockIdx.x / matrix_count, stripes = gridDim.x / matrix_count;
  load_matrix_blocks(a, index, matrix);
  fence_shared_for_products();
  __syncthreads();
  const std::uint64_t blocks = matrix_descriptor(matrix, 2048, 128);
  const int group = threadIdx.x / 128, g = threadIdx.x % 128 / 4, t = threadIdx.x % 4;
  const std::uint32_t heads = a.heads / matrix_count, rows = a.tokens * heads;
  const std::uint32_t tiles = (rows + kGroupRows - 1) / kGroupRows;
  const std::uint32_t step = stripes * kGroupsPerBlock;
  // Thread 4·g + t of a warpgroup holds of its warp's 16 rows the ones g % 8 and g % 8 + 8.
  const auto row_of = [&](std::uint32_t tile, int i) {
    return tile * kGroupRows + g / 8 * 16 + g % 8 + 8 * i;
  };
  uint4 x[2][4];  // row, 32 channels
  const auto load = [&](std::uint32_t tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint16_t* in = Row(min(row_of(tile, i), rows - 1), index, heads).input(a) + 8 * t;
#pragma unroll
      for (int j = 0; j < 4; ++j) x[i][j] = __ldg(reinterpret_cast<const uint4*>(in + 32 * j));
    }
  };
  std::uint32_t tile = stripe * kGroupsPerBlock + group;
  if (tile < tiles) load(tile);
  for (; tile < tiles; tile += step) {
    float sums[kDim / 2];
    begin_products();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      multiply_rows_128(sums, x[0][j].x, x[1][j].x, x[0][j].y, x[1][j].y, blocks + j * 512, j > 0);
      multiply_rows_128(sums, x[0][j].z, x[1][j].z, x[0][j].w, x[1][j].w, blocks + j * 512 + 256,
                        true);
    }
    finish_products(sums);
    RegisterRow<4, 4, kGrouped> row[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      row[i].active = true;
#pragma unroll
      for (int n = 0; n < 16; ++n) {
        const float* sum = sums + 4 * n + 2 * i;
        row[i].x[n / 4][n % 4] = as_bits(__floats2bfloat162_rn(sum[0], sum[1]));
      }
    }
    if (tile + step < tiles) load(tile + step);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t at = row_of(tile, i);
      finish_row(a, Row(min(at, rows - 1), index, heads), at < rows, row[i]);
    }
  }
#endif
}

bool aligned(const void* pointer, std::initializer_list<std::int64_t> strides, int bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0 &&
         std::ranges::all_of(strides, [&](std::int64_t stride) { return stride % bytes == 0; });
}

Job kernel_job(const EncodeJob& job) {
  const CodecSettings& settings = job.settings;
  const auto element = static_cast<std::int64_t>(bytes_of(settings.scale_type));
  Job result{static_cast<const std::uint16_t*>(job.rows.data),
             job.rotation.data,
             static_cast<std::uint16_t*>(job.rotated.data),
             job.coded.codes,
             static_cast<char*>(job.coded.scales_zeros),
             job.thresholds,
             job.map.from,
             job.map.to,
             {job.rows.token_stride, job.rows.head_stride},
             {job.rotated.token_stride, job.rotated.head_stride},
             {job.coded.code_token_stride, job.coded.code_head_stride},
             {job.coded.scale_token_stride * element, job.coded.scale_head_stride * element},
             static_cast<std::uint32_t>(job.tokens()),
             job.rows.heads,
             job.rotation.transposed,
             {settings.dim, settings.clip_index(), settings.rule, settings.scale_type,
              settings.group / (kDim / 4)}};
  // Tensors of one matrix without a gap between their tokens count as one head.
  Strides* const all[] = {&result.row, &result.rotated_row, &result.code, &result.scale};
  if (job.map.count < 0 && job.rotation.matrices == 1 &&
      std::ranges::all_of(all,
                          [&](const Strides* s) { return s->token == job.rows.heads * s->head; })) {
    result.tokens *= job.rows.heads;
    result.heads = 1;
    for (Strides* s : all) s->token = s->head;
  }
  return result;
}

}  // namespace

bool supports_rotate_encode(const EncodeJob& job) {
  const CodecSettings& settings = job.settings;
  const auto bf16 = [](const ConstRows& r) {
    return r.type == ElementType::bf16 &&
           aligned(r.data, {2 * r.token_stride, 2 * r.head_stride}, 16);
  };
  return settings.dim == kDim && settings.levels == LevelRule::uniform &&
         settings.group % (kDim / 4) == 0 && bf16(job.rows) &&
         (job.rotated.data == nullptr || bf16(job.rotated)) &&
         aligned(job.coded.codes, {job.coded.code_token_stride, job.coded.code_head_stride}, 8) &&
         job.tokens() * job.rows.heads <= 0x7fffffff;
}

void rotate_encode(std::span<const EncodeJob* const> list, cudaStream_t stream) {
  int device = 0, processors = 0, major = 0;
  OSCAR_CUDA_CHECK(cudaGetDevice(&device));
  OSCAR_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  OSCAR_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  const bool hopper = kBuiltForHopper && major == 9;
  const auto kind = [](const EncodeJob* job) {
    return std::pair(job->settings.group != job->settings.dim, job->rotation.matrices);
  };
  std::vector<bool> done(list.size(), false);
  for (std::size_t first = 0; first < list.size(); ++first) {
    if (done[first]) continue;
    // Jobs of one kind share a launch.
    Jobs jobs{};
    unsigned count = 0;
    std::int64_t rows = 0;
    for (std::size_t i = first; i < list.size() && count < kJobs; ++i) {
      if (done[i] || kind(list[i]) != kind(list[first])) continue;
      done[i] = true;
      jobs.job[count++] = kernel_job(*list[i]);
      rows = std::max(rows, list[i]->tokens() * list[i]->rows.heads);
    }
    const auto [grouped, matrices] = kind(list[first]);
    const int at_once = hopper ? kGroupsPerBlock * kGroupRows : kWarps * kTileRows;  // rows
    const std::int64_t tiles = (rows / matrices + at_once - 1) / at_once;
    const std::int64_t places = (hopper ? 2 : 1) * processors;
    const auto stripes = static_cast<unsigned>(
        std::clamp<std::int64_t>(places / (matrices * static_cast<std::int64_t>(count)), 1,
                                 std::max<std::int64_t>(tiles, 1)));
    const dim3 grid(stripes * matrices, count);
    const auto launch = [&](auto kernel, int threads) {
      kernel<<<grid, threads, 0, stream>>>(jobs, matrices);
    };
    if (hopper) {
      launch(grouped ? rotate_encode_hopper_kernel<true> : rotate_encode_hopper_kernel<false>,
             kGroupsPerBlock * 128);
    } else {
      launch(grouped ? rotate_encode_kernel<true> : rotate_encode_kernel<false>, kWarps * 32);
    }
    OSCAR_CUDA_CHECK(cudaGetLastError());
  }
}

}  // namespace oscar::cuda
