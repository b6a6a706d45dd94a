#include "kvcache/backend.h"
#include "kvcache/cuda/launch.cuh"

namespace oscar::cuda {
namespace {

constexpr int kTile = 64;   // tokens and channels of one block
constexpr int kDepth = 16;  // channels of the product's inner dimension at a time
constexpr int kPerThread = 4;
constexpr int kSide = kTile / kPerThread;

/// Block (x: tokens, y: channels, z: head) computes kTile x kTile numbers, kPerThread² a thread.
__global__ void __launch_bounds__(kSide* kSide)
    rotate_kernel(ConstRows input, Rotations rotations, MutableRows output, bool round_input,
                  bool round_output) {
  __shared__ float left[kDepth][kTile + 1];
  __shared__ float right[kDepth][kTile + 1];
  const int dim = input.dim, head = blockIdx.z;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const int first_channel = blockIdx.y * kTile;
  const int matrix_index = head / (input.heads / rotations.matrices);
  const float* matrix = rotations.data + static_cast<std::int64_t>(matrix_index) * dim * dim;
  const int row = threadIdx.x / kSide, column = threadIdx.x % kSide;

  float sum[kPerThread][kPerThread] = {};
  for (int k0 = 0; k0 < dim; k0 += kDepth) {
    for (int i = threadIdx.x; i < kTile * kDepth; i += kSide * kSide) {
      const int k = i % kDepth, token = i / kDepth;
      float value = 0;
      if (first + token < input.tokens && k0 + k < dim) {
        value = load_element(input, row_offset(input, first + token, head) + k0 + k);
        if (round_input) value = round_to_bfloat16(value);
      }
      left[k][token] = value;
    }
    for (int i = threadIdx.x; i < kTile * kDepth; i += kSide * kSide) {
      const int c = i % kTile, k = i / kTile;
      const std::int64_t from = k0 + k, to = first_channel + c;
      float value = 0;
      if (from < dim && to < dim) {
        value = round_to_bfloat16(matrix[rotations.transposed ? to * dim + from : from * dim + to]);
      }
      right[k][c] = value;
    }
    __syncthreads();
    for (int k = 0; k < kDepth; ++k) {
      for (int i = 0; i < kPerThread; ++i) {
        for (int j = 0; j < kPerThread; ++j) {
          sum[i][j] = fmaf(left[k][row + i * kSide], right[k][column + j * kSide], sum[i][j]);
        }
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kPerThread; ++i) {
    const std::int64_t token = first + row + i * kSide;
    if (token >= input.tokens) continue;
    for (int j = 0; j < kPerThread; ++j) {
      const int channel = first_channel + column + j * kSide;
      if (channel >= dim) continue;
      const float value = round_output ? round_to_bfloat16(sum[i][j]) : sum[i][j];
      store_element(output, row_offset(output, token, head) + channel, value);
    }
  }
}

}  // namespace

void rotate_rows(const ConstRows& input, const Rotations& rotations, const MutableRows& output,
                 const RotationRounding& rounding, const Execution& where) {
  const DeviceScope scope(where);
  const std::int64_t token_blocks = (input.tokens + kTile - 1) / kTile;
  const dim3 grid(static_cast<unsigned>(token_blocks), (input.dim + kTile - 1) / kTile,
                  input.heads);
  rotate_kernel<<<grid, kSide * kSide, 0, stream_of(where)>>>(input, rotations, output,
                                                              rounding.input, rounding.output);
  OSCAR_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oscar::cuda
