#include <algorithm>

#include "kvcache/cuda/encode_rows.h"
#include "kvcache/cuda/launch.cuh"
#include "kvcache/cuda/matrix.cuh"
#include "kvcache/cuda/row_codec.cuh"

/// Rotation and coding of rows of 128 channels in one pass: docs/kernels.md explains the design.
namespace oscar::cuda {
namespace {

constexpr int kDim = 128;
constexpr int kWarps = 8;
constexpr int kTileRows = 32;  // of a warp at a time

struct Arguments {
  const std::uint16_t* rows;
  const float* matrices;
  std::uint16_t* rotated;  // or null
  std::uint8_t* codes;
  char* scales;
  float* thresholds;
  const std::int32_t *from, *to;
  std::int64_t row_token, row_head, rotated_token, rotated_head, code_token, code_head, scale_token,
      scale_head;
  std::uint32_t tokens;
  int heads, matrix_count;
  bool transposed;
  RowCodecSettings settings;
};

/// The matrix in bf16 as the B operands of kDim / 16 steps and kDim / 8 columns of tiles, so that a
/// lane reads two tiles' operands with one load. Input channels are so permuted that a lane's A
/// operands are 16 contiguous bytes of a row, output channels so that its sums are what
/// RegisterRow<4, 4> holds.
__device__ void load_matrix(const Arguments& a, int index, std::uint32_t* shared) {
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

/// Block (x: a stripe of one matrix's rows).
template <bool kGrouped>
__global__ void __launch_bounds__(kWarps * 32, 1)
    rotate_encode_kernel(const __grid_constant__ Arguments a) {
  __shared__ __align__(16) std::uint32_t matrix[kDim * kDim / 2];
  const int index = blockIdx.x % a.matrix_count;
  const int stripe = blockIdx.x / a.matrix_count, stripes = gridDim.x / a.matrix_count;
  load_matrix(a, index, matrix);
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const std::uint32_t heads = a.heads / a.matrix_count, rows = a.tokens * heads;
  const std::uint32_t tiles = (rows + kTileRows - 1) / kTileRows;
  for (std::uint32_t tile = stripe * kWarps + warp; tile < tiles; tile += stripes * kWarps) {
    const auto locate = [&](int i, std::uint32_t& token, int& head) {
      const std::uint32_t row = min(tile * kTileRows + 8 * i + g, rows - 1);
      token = row / heads;
      head = static_cast<int>(index * heads + row % heads);
    };
    uint4 x[4][4];  // row, 32 channels
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint32_t token;
      int head;
      locate(i, token, head);
      const std::int64_t source = a.from == nullptr ? token : a.from[token];
      const std::uint16_t* in = a.rows + source * a.row_token + head * a.row_head + 8 * t;
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
      std::uint32_t token;
      int head;
      locate(i, token, head);
      const bool store = tile * kTileRows + 8 * i + g < rows;
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
      if (store && a.rotated != nullptr) {
        const std::int64_t source = a.from == nullptr ? token : a.from[token];
        std::uint16_t* out = a.rotated + source * a.rotated_token + head * a.rotated_head + 8 * t;
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          *reinterpret_cast<uint4*>(out + 32 * q) = {row.x[q][0], row.x[q][1], row.x[q][2],
                                                     row.x[q][3]};
        }
      }
      const std::int64_t target = a.to == nullptr ? token : a.to[token];
      float* threshold = a.thresholds == nullptr
                             ? nullptr
                             : a.thresholds + static_cast<std::int64_t>(token) * a.heads + head;
      std::uint32_t bytes[2];
      row.encode(a.settings, store, a.scales + target * a.scale_token + head * a.scale_head,
                 threshold, bytes);
      if (store) {
        *reinterpret_cast<uint2*>(a.codes + target * a.code_token + head * a.code_head + 8 * t) = {
            bytes[0], bytes[1]};
      }
    }
  }
}

bool aligned(const void* pointer, std::initializer_list<std::int64_t> strides, int bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0 &&
         std::ranges::all_of(strides, [&](std::int64_t stride) { return stride % bytes == 0; });
}

}  // namespace

bool rotate_encode(const EncodeJob& job, cudaStream_t stream) {
  const CodecSettings& settings = job.settings;
  const ConstRows& rows = job.rows;
  const int quarters = settings.group / (kDim / 4);
  const bool grouped = settings.group != settings.dim;
  const auto bf16 = [](const ConstRows& r) {
    return r.type == ElementType::bf16 &&
           aligned(r.data, {2 * r.token_stride, 2 * r.head_stride}, 16);
  };
  if (settings.dim != kDim || settings.levels != LevelRule::uniform ||
      settings.group % (kDim / 4) != 0 || !bf16(rows) ||
      (job.rotated.data != nullptr && !bf16(job.rotated)) ||
      !aligned(job.coded.codes, {job.coded.code_token_stride, job.coded.code_head_stride}, 8) ||
      job.tokens() * rows.heads > 0x7fffffff) {
    return false;
  }
  const auto element = static_cast<std::int64_t>(bytes_of(settings.scale_type));
  const Arguments a{
      static_cast<const std::uint16_t*>(rows.data),
      job.rotation.data,
      static_cast<std::uint16_t*>(job.rotated.data),
      job.coded.codes,
      static_cast<char*>(job.coded.scales_zeros),
      job.thresholds,
      job.map.from,
      job.map.to,
      rows.token_stride,
      rows.head_stride,
      job.rotated.token_stride,
      job.rotated.head_stride,
      job.coded.code_token_stride,
      job.coded.code_head_stride,
      job.coded.scale_token_stride * element,
      job.coded.scale_head_stride * element,
      static_cast<std::uint32_t>(job.tokens()),
      rows.heads,
      job.rotation.matrices,
      job.rotation.transposed,
      {settings.dim, settings.clip_index(), settings.rule, settings.scale_type, quarters}};
  int device = 0, processors = 0;
  OSCAR_CUDA_CHECK(cudaGetDevice(&device));
  OSCAR_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  const std::int64_t tiles =
      (job.tokens() * (rows.heads / a.matrix_count) + kTileRows - 1) / kTileRows;
  const auto stripes = static_cast<unsigned>(
      std::clamp<std::int64_t>(processors / a.matrix_count, 1, (tiles + kWarps - 1) / kWarps));
  const unsigned blocks = stripes * a.matrix_count;
  if (grouped) {
    rotate_encode_kernel<true><<<blocks, kWarps * 32, 0, stream>>>(a);
  } else {
    rotate_encode_kernel<false><<<blocks, kWarps * 32, 0, stream>>>(a);
  }
  OSCAR_CUDA_CHECK(cudaGetLastError());
  return true;
}

}  // namespace oscar::cuda
