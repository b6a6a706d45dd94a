#include <algorithm>
#include <tuple>
#include <vector>

#include "kvcache/cuda/attention_kernels.h"
#include "kvcache/cuda/launch.cuh"
#include "kvcache/cuda/matrix.cuh"

/// Teacher-forced attention of bf16 rows with tensor cores: docs/kernels.md explains the design.
namespace oscar::cuda {
namespace {

constexpr unsigned kEveryLane = 0xffffffffu;
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = 16 * kWarps;  // of a block: tokens times grouped query heads
constexpr int kKeys = 64;           // of a tile
constexpr int kProblems = 8;        // of one launch
constexpr float kLogTwoE = 1.44269504f;
constexpr float kNothing = -1e30f;

struct Problem {
  const std::uint16_t *query, *key, *value;
  std::uint16_t* output;
  const std::uint8_t *key_codes, *value_codes;
  const void *key_scales, *value_scales;
  std::int64_t query_token, query_head, key_token, key_head, value_token, value_head, output_token,
      output_head;
  std::int64_t key_code_token, key_code_head, value_code_token, value_code_head;
  std::int64_t key_scale_token, key_scale_head, value_scale_token, value_scale_head;  // elements
  ScaleType key_type, value_type;
  int tokens, kv_heads, grouped, first_output, first_query, sink, recent, sliding;
  float scale;
  double* errors;  // [query heads][blocks of tokens], or null
};

struct Problems {
  Problem problem[kProblems];
};

/// A tile's place in shared memory: rows of kDim bf16, chunks of 16 bytes swizzled against bank
/// conflicts of ldmatrix.
template <int kDim>
__device__ inline int chunk_at(int row, int chunk) {
  return (row * (kDim / 8) + (chunk ^ (row & 7))) * 16;
}

__device__ inline void load_matrices(std::uint32_t (&out)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}
__device__ inline void load_transposed(std::uint32_t (&out)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}

__device__ inline float low_half(std::uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ inline float high_half(std::uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
__device__ inline std::uint32_t pack(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// Codes in bits 0 and 1 of four bytes as bf16, which holds 0 to 3 exactly: the scale and the zero
/// stay outside the products.
__device__ inline uint2 codes_as_bfloat16(std::uint32_t codes) {
  constexpr std::uint32_t kLow = 0x40008000u, kHigh = 0x40403f00u;  // bytes of 0, 1, 2 and 3
  const std::uint32_t paired = codes | codes >> 4;  // bytes 0 and 2 hold two codes each
  const std::uint32_t select = __byte_perm(paired, 0, 0x4420);
  const std::uint32_t lows = __byte_perm(kLow, 0, select);
  const std::uint32_t highs = __byte_perm(kHigh, 0, select);
  return {__byte_perm(lows, highs, 0x5140), __byte_perm(lows, highs, 0x7362)};
}

/// What a thread fetches of a coded tile: a quarter of one row.
template <int kDim>
struct CodedPiece {
  static constexpr int kWords = kDim / 64;  // of codes
  std::uint32_t words[kWords];
  arithmetic::ScaleZero pair;

  __device__ void fetch(const std::uint8_t* codes, const void* scales, std::int64_t scale,
                        ScaleType type) {
    const std::uint8_t* from = codes + (threadIdx.x % 4) * 4 * kWords;
    if constexpr (kWords == 2) {
      *reinterpret_cast<uint2*>(words) = __ldg(reinterpret_cast<const uint2*>(from));
    } else {
      words[0] = __ldg(reinterpret_cast<const std::uint32_t*>(from));
    }
    pair = arithmetic::load_scale_zero(
        static_cast<const char*>(scales) + scale * (type == ScaleType::fp32 ? 4 : 2), type, 0);
  }
  /// Channels m·D/4 + part·4·kWords ... of each quarter m.
  __device__ void store(std::uint8_t* tile) const {
    const int row = threadIdx.x / 4, part = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      uint2 values[kWords];
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        values[w] = codes_as_bfloat16((words[w] >> (2 * m)) & 0x03030303u);
      }
      const int channel = m * kDim / 4 + part * 4 * kWords;
      std::uint8_t* to = tile + chunk_at<kDim>(row, channel / 8) + channel % 8 * 2;
      if constexpr (kWords == 2) {
        *reinterpret_cast<uint4*>(to) = {values[0].x, values[0].y, values[1].x, values[1].y};
      } else {
        *reinterpret_cast<uint2*>(to) = values[0];
      }
    }
  }
};

/// One pass of a block: a tile of keys, read exactly or as INT2.
struct Pass {
  int begin;
  bool coded;
};

/// The passes of a block in order: the tiles that some row reads, once for each tier that occurs.
class Passes {
 public:
  __device__ Passes(const Problem& p, int first, int last) : p_(p), first_(first), last_(last) {
    const int oldest = p.sliding == 0 ? 0 : max(0, first - p.sliding + 1);
    pass_ = {oldest / kKeys * kKeys, false};
    settle();
  }
  __device__ bool done() const { return pass_.begin > last_; }
  __device__ const Pass& operator*() const { return pass_; }
  __device__ void next() {
    advance();
    settle();
  }

 private:
  __device__ void advance() {
    if (pass_.coded) pass_.begin += kKeys;
    pass_.coded = !pass_.coded;
  }
  __device__ void settle() {
    while (!done() && !needed()) advance();
  }
  __device__ bool needed() const {
    const int end = min(pass_.begin + kKeys, last_ + 1);
    return pass_.coded ? max(pass_.begin, p_.sink) < min(end, last_ - p_.recent + 1)
                       : pass_.begin < p_.sink || end > first_ - p_.recent + 1;
  }
  const Problem& p_;
  int first_, last_;
  Pass pass_;
};

/// Tiles of keys and values on their way into one of two buffers.
template <int kDim, bool kErrors>
struct Tiles {
  static constexpr int kTile = kKeys * kDim * 2;
  static constexpr int kPairs = (kErrors ? 3 : 2) * kTile;  // keys, values, exact keys, then pairs
  static constexpr int kBuffer = kPairs + 2 * kKeys * 8;

  const Problem& p;
  int kv_head, last;
  std::uint8_t* shared;
  CodedPiece<kDim> key, value;

  __device__ void copy_exact(std::uint8_t* to, const std::uint16_t* from, std::int64_t token_stride,
                             int begin) const {
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
#pragma unroll
    for (int i = 0; i < kKeys * kDim / 8 / kThreads; ++i) {
      const int unit = i * kThreads + threadIdx.x;
      const int row = unit / (kDim / 8), chunk = unit % (kDim / 8);
      copy_async<16>(address + chunk_at<kDim>(row, chunk),
                     from + min(begin + row, last) * token_stride + 8 * chunk);
    }
  }
  /// Starts what memory is slow at.
  __device__ void fetch(const Pass& pass, int buffer, bool counted) {
    std::uint8_t* to = shared + buffer * kBuffer;
    const std::uint16_t* keys = p.key + kv_head * p.key_head;
    if (pass.coded) {
      // Rows that no query reads as INT2 may hold anything: others stand in for them.
      const std::int64_t token = min(max(pass.begin + static_cast<int>(threadIdx.x) / 4, p.sink),
                                     min(last, last - p.recent));
      key.fetch(p.key_codes + token * p.key_code_token + kv_head * p.key_code_head, p.key_scales,
                token * p.key_scale_token + kv_head * p.key_scale_head, p.key_type);
      value.fetch(p.value_codes + token * p.value_code_token + kv_head * p.value_code_head,
                  p.value_scales, token * p.value_scale_token + kv_head * p.value_scale_head,
                  p.value_type);
      if (kErrors && counted) copy_exact(to + 2 * kTile, keys, p.key_token, pass.begin);
    } else {
      copy_exact(to, keys, p.key_token, pass.begin);
      copy_exact(to + kTile, p.value + kv_head * p.value_head, p.value_token, pass.begin);
    }
    commit_copies();
  }
  /// Ends it; the caller then synchronises the block.
  __device__ void finish(const Pass& pass, int buffer) {
    std::uint8_t* to = shared + buffer * kBuffer;
    wait_for_copies<0>();
    if (!pass.coded) return;
    key.store(to);
    value.store(to + kTile);
    const int row = threadIdx.x / 4, part = threadIdx.x % 4;
    auto* pairs = reinterpret_cast<arithmetic::ScaleZero*>(to + kPairs);
    if (part == 0) pairs[row] = key.pair;
    if (part == 1) pairs[kKeys + row] = value.pair;
  }
};

/// scores[16 x 8·kTiles] of a warp's rows against keys first_tile·8 ... of a tile.
template <int kDim, int kTiles>
__device__ void score(const std::uint32_t (&query)[kDim / 16][4], std::uint32_t tile,
                      int first_tile, float (&scores)[kTiles][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int c = 0; c < 4; ++c) scores[n][c] = 0;
  }
  // Matrices: keys 0-7 and channels 0-7, 8-15; keys 8-15 the same. Tiles lie at multiples of 256
  // bytes and eight rows have one swizzle each, so a step of channels flips bits of the address.
  const std::uint32_t base =
      tile + chunk_at<kDim>(lane / 16 * 8 + lane % 8, lane / 8 % 2) + first_tile * 8 * kDim * 2;
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    const std::uint32_t column = base ^ (k << 5);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      std::uint32_t keys[4];
      load_matrices(keys, column + n * 8 * kDim * 2);
      multiply_bfloat16(scores[n], query[k][0], query[k][1], query[k][2], query[k][3], keys[0],
                        keys[1]);
      multiply_bfloat16(scores[n + 1], query[k][0], query[k][1], query[k][2], query[k][3], keys[2],
                        keys[3]);
    }
  }
}

/// Block (x: tokens, the last first; y: KV head; z: problem). Row r of a block is token first + r /
/// grouped, query head r % grouped of the KV head's.
template <int kDim, bool kErrors>
__global__ void __launch_bounds__(kThreads, 1)
    teacher_forced_kernel(const __grid_constant__ Problems problems) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  const Problem& p = problems.problem[blockIdx.z];
  const int per_block = kRows / p.grouped;
  const int blocks = (p.tokens - p.first_output + per_block - 1) / per_block;
  if (static_cast<int>(blockIdx.x) >= blocks) return;
  const int block = blocks - 1 - blockIdx.x;
  const int first = p.first_output + block * per_block;
  const int last = min(first + per_block, p.tokens) - 1;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int kv_head = blockIdx.y;

  // The lane's two rows; rows beyond the block repeat the last.
  int position[2];
  std::int64_t row_at[2];
  bool used[2];
  std::uint32_t query[kDim / 16][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + half * 8 + g;
    used[half] = row < (last - first + 1) * p.grouped;
    const int clamped = min(row, (last - first + 1) * p.grouped - 1);
    position[half] = first + clamped / p.grouped;
    const int head = kv_head * p.grouped + clamped % p.grouped;
    row_at[half] = position[half] * p.output_token + head * p.output_head;
    const std::uint16_t* from = p.query + position[half] * p.query_token + head * p.query_head;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      query[k][half] = *reinterpret_cast<const std::uint32_t*>(from + 16 * k + 2 * t);
      query[k][2 + half] = *reinterpret_cast<const std::uint32_t*>(from + 16 * k + 8 + 2 * t);
    }
  }

  Tiles<kDim, kErrors> tiles{p, kv_head, last, shared, {}, {}};
  const bool counted = kErrors && last >= p.first_query;
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  const float scale = p.scale * kLogTwoE;
  float query_sum[2] = {0, 0};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      query_sum[half] += (low_half(query[k][half]) + high_half(query[k][half])) +
                         (low_half(query[k][2 + half]) + high_half(query[k][2 + half]));
    }
    query_sum[half] += __shfl_xor_sync(kEveryLane, query_sum[half], 1);
    query_sum[half] += __shfl_xor_sync(kEveryLane, query_sum[half], 2);
  }
  float output[kDim / 8][4] = {};
  // Of the INT2 tier's products with codes: Σ p·s·z, to be taken off the output.
  float offset[2] = {0, 0};
  float maximum[2] = {kNothing, kNothing}, sum[2] = {0, 0};
  double error[2] = {0, 0};
  Passes passes(p, first, last);
  Pass pass = *passes;
  tiles.fetch(pass, 0, counted);
  tiles.finish(pass, 0);
  int buffer = 0;
  while (true) {
    __syncthreads();
    passes.next();
    const Pass following = *passes;
    const bool more = !passes.done();
    if (more) tiles.fetch(following, buffer ^ 1, counted);

    using Buffer = Tiles<kDim, kErrors>;
    const std::uint32_t base = address + buffer * Buffer::kBuffer;
    const auto* pairs =
        reinterpret_cast<const float4*>(shared + buffer * Buffer::kBuffer + Buffer::kPairs);
    float scores[kKeys / 8][4];
    score<kDim>(query, base, 0, scores);
    if (pass.coded) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        const float4 two = pairs[n * 4 + t];  // s, z of two keys
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          scores[n][2 * half] = two.x * fmaf(-two.y, query_sum[half], scores[n][2 * half]);
          scores[n][2 * half + 1] = two.z * fmaf(-two.w, query_sum[half], scores[n][2 * half + 1]);
        }
      }
      if (kErrors && counted) {
        float squares[2] = {0, 0};
#pragma unroll
        for (int n = 0; n < kKeys / 8; n += 4) {
          float exact[4][4];
          score<kDim>(query, base + 2 * Buffer::kTile, n, exact);
#pragma unroll
          for (int i = 0; i < 16; ++i) {
            const int half = i / 2 % 2, at = position[half];
            const int key = pass.begin + (n + i / 4) * 8 + 2 * t + i % 2;
            const bool taken = key >= p.sink && key <= at && key <= at - p.recent &&
                               (p.sliding == 0 || key > at - p.sliding);
            const float difference = scores[n + i / 4][i % 4] - exact[i / 4][i % 4];
            if (taken) squares[half] = fmaf(difference, difference, squares[half]);
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (used[half] && position[half] >= p.first_query) {
            error[half] += static_cast<double>(squares[half]);
          }
        }
      }
    }
    // Which keys of the tile each row takes in this pass; nothing to ask where all rows take all.
    const int tile_end = pass.begin + kKeys;
    const bool whole = (p.sliding == 0 || pass.begin > last - p.sliding) &&
                       (pass.coded ? pass.begin >= p.sink && tile_end <= first - p.recent + 1
                                   : tile_end - 1 <= first &&
                                         (tile_end <= p.sink || pass.begin > last - p.recent));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = -INFINITY;
      if (!whole) {
        const int at = position[half];
        const int oldest = p.sliding == 0 ? 0 : at - p.sliding + 1;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int key = pass.begin + n * 8 + 2 * t + c;
            const bool exact = key < p.sink || key > at - p.recent;
            if (key > at || key < oldest || exact == pass.coded)
              scores[n][2 * half + c] = -INFINITY;
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        highest = fmaxf(highest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
      }
      highest = fmaxf(highest, __shfl_xor_sync(kEveryLane, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(kEveryLane, highest, 2));
      // A negative scale would make the lowest score the highest logit.
      const float next = fmaxf(maximum[half], highest * scale);
      const float factor = power_of_two(maximum[half] - next);
      maximum[half] = next;
      sum[half] *= factor;
      offset[half] *= factor;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& weight = scores[n][2 * half + c];
          weight = power_of_two(fmaf(weight, scale, -next));
          sum[half] += weight;
        }
      }
      if (__any_sync(kEveryLane, factor != 1)) {
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) {
          output[n][2 * half] *= factor;
          output[n][2 * half + 1] *= factor;
        }
      }
    }
    std::uint32_t weights[kKeys / 8][2];  // of two keys, for the lane's two rows
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      const float4 two = pass.coded ? pairs[kKeys / 2 + n * 4 + t] : float4{1, 0, 1, 0};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        weights[n][half] = pack(scores[n][2 * half] * two.x, scores[n][2 * half + 1] * two.z);
        // The rounded weight in both sums, or they would not cancel.
        offset[half] = fmaf(low_half(weights[n][half]), two.y, offset[half]);
        offset[half] = fmaf(high_half(weights[n][half]), two.w, offset[half]);
      }
    }
    // Matrices: keys 0-7, 8-15 of channels 0-7; the same of channels 8-15.
    const std::uint32_t value_base =
        base + Buffer::kTile + chunk_at<kDim>(lane / 8 % 2 * 8 + lane % 8, lane / 16);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      const std::uint32_t(&upper)[2] = weights[2 * k], (&lower)[2] = weights[2 * k + 1];
#pragma unroll
      for (int n = 0; n < kDim / 8; n += 2) {
        std::uint32_t v[4];
        load_transposed(v, (value_base ^ (n << 4)) + k * 16 * kDim * 2);
        multiply_bfloat16(output[n], upper[0], upper[1], lower[0], lower[1], v[0], v[1]);
        multiply_bfloat16(output[n + 1], upper[0], upper[1], lower[0], lower[1], v[2], v[3]);
      }
    }
    if (!more) break;
    tiles.finish(following, buffer ^ 1);
    pass = following;
    buffer ^= 1;
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(kEveryLane, sum[half], 1);
    sum[half] += __shfl_xor_sync(kEveryLane, sum[half], 2);
    offset[half] += __shfl_xor_sync(kEveryLane, offset[half], 1);
    offset[half] += __shfl_xor_sync(kEveryLane, offset[half], 2);
    if (!used[half]) continue;
    const float inverse = 1 / sum[half];
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      *reinterpret_cast<std::uint32_t*>(p.output + row_at[half] + 8 * n + 2 * t) =
          pack((output[n][2 * half] - offset[half]) * inverse,
               (output[n][2 * half + 1] - offset[half]) * inverse);
    }
  }
  if (!kErrors) return;
  __syncthreads();
  auto* row_errors = reinterpret_cast<double*>(shared);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    error[half] += __shfl_xor_sync(kEveryLane, error[half], 1);
    error[half] += __shfl_xor_sync(kEveryLane, error[half], 2);
    if (t == 0) row_errors[warp * 16 + half * 8 + g] = error[half];
  }
  __syncthreads();
  for (int head = threadIdx.x; head < p.grouped; head += kThreads) {
    double total = 0;
    for (int row = head; row < (last - first + 1) * p.grouped; row += p.grouped) {
      total += row_errors[row];
    }
    p.errors[static_cast<std::int64_t>(kv_head * p.grouped + head) * blocks + block] =
        total * p.scale * p.scale;
  }
}

bool aligned(const void* pointer, std::initializer_list<std::int64_t> strides, int bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0 &&
         std::ranges::all_of(strides, [&](std::int64_t stride) { return stride % bytes == 0; });
}

bool aligned(const ConstRows& rows) {
  return rows.type == ElementType::bf16 &&
         aligned(rows.data, {2 * rows.token_stride, 2 * rows.head_stride}, 16);
}

Problem kernel_problem(const TeacherForcedAttention& a) {
  const auto bf16 = [](const ConstRows& rows) {
    return static_cast<const std::uint16_t*>(rows.data);
  };
  const auto limited = [](std::int64_t number) {
    return static_cast<int>(std::min<std::int64_t>(number, 0x3fffffff));
  };
  Problem p{};
  p.query = bf16(a.query_exact);
  p.key = bf16(a.key_exact);
  p.value = bf16(a.value_exact);
  p.output = static_cast<std::uint16_t*>(a.output_exact.data);
  p.key_codes = a.key_coded.codes;
  p.value_codes = a.value_coded.codes;
  p.key_scales = a.key_coded.scales_zeros;
  p.value_scales = a.value_coded.scales_zeros;
  p.query_token = a.query_exact.token_stride;
  p.query_head = a.query_exact.head_stride;
  p.key_token = a.key_exact.token_stride;
  p.key_head = a.key_exact.head_stride;
  p.value_token = a.value_exact.token_stride;
  p.value_head = a.value_exact.head_stride;
  p.output_token = a.output_exact.token_stride;
  p.output_head = a.output_exact.head_stride;
  p.key_code_token = a.key_coded.code_token_stride;
  p.key_code_head = a.key_coded.code_head_stride;
  p.value_code_token = a.value_coded.code_token_stride;
  p.value_code_head = a.value_coded.code_head_stride;
  p.key_scale_token = a.key_coded.scale_token_stride;
  p.key_scale_head = a.key_coded.scale_head_stride;
  p.value_scale_token = a.value_coded.scale_token_stride;
  p.value_scale_head = a.value_coded.scale_head_stride;
  p.key_type = a.key_codec.scale_type;
  p.value_type = a.value_codec.scale_type;
  p.tokens = limited(a.query_exact.tokens);
  p.kv_heads = a.key_exact.heads;
  p.grouped = a.query_exact.heads / a.key_exact.heads;
  p.first_output = limited(a.first_output);
  p.first_query = limited(a.first_query);
  p.sink = limited(a.window.sink);
  p.recent = limited(a.window.recent);
  p.sliding = limited(a.window.sliding);
  p.scale = a.scale;
  return p;
}

template <int kDim, bool kErrors>
void launch(const Problems& problems, const dim3& grid, cudaStream_t stream) {
  constexpr int kShared = 2 * Tiles<kDim, kErrors>::kBuffer;
  OSCAR_CUDA_CHECK(cudaFuncSetAttribute(teacher_forced_kernel<kDim, kErrors>,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  teacher_forced_kernel<kDim, kErrors><<<grid, kThreads, kShared, stream>>>(problems);
  OSCAR_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

bool supports_tensor_cores(const TeacherForcedAttention& a) {
  const int dim = a.key_codec.dim;
  return (dim == 64 || dim == 128) && a.value_codec.dim == dim && a.key_codec.group == dim &&
         a.value_codec.group == dim && a.scale > 0 &&
         a.query_exact.heads / a.key_exact.heads <= kRows && aligned(a.query_exact) &&
         a.query_exact.data == a.query_coded.data && a.query_coded.type == ElementType::bf16 &&
         a.query_exact.token_stride == a.query_coded.token_stride &&
         a.query_exact.head_stride == a.query_coded.head_stride && aligned(a.key_exact) &&
         aligned(a.value_exact) && aligned(a.output_exact) &&
         a.output_exact.data == a.output_coded.data && a.query_exact.tokens < 0x3fffffff &&
         aligned(a.key_coded.codes, {a.key_coded.code_token_stride, a.key_coded.code_head_stride},
                 8) &&
         aligned(a.value_coded.codes,
                 {a.value_coded.code_token_stride, a.value_coded.code_head_stride}, 8);
}

std::int64_t tensor_core_blocks(const TeacherForcedAttention& a) {
  const int per_block = kRows / (a.query_exact.heads / a.key_exact.heads);
  return (a.query_exact.tokens - a.first_output + per_block - 1) / per_block;
}

void attend_with_tensor_cores(std::span<const TensorCoreAttention> list, cudaStream_t stream) {
  for (std::size_t begin = 0; begin < list.size();) {
    // Problems of one kind share a launch.
    const auto kind = [](const TensorCoreAttention& item) {
      return std::tuple<int, int, bool>(item.problem->key_codec.dim, item.problem->key_exact.heads,
                                        item.block_errors != nullptr);
    };
    Problems problems{};
    int count = 0;
    std::int64_t blocks = 0;
    std::size_t end = begin;
    for (; end < list.size() && count < kProblems && kind(list[end]) == kind(list[begin]); ++end) {
      problems.problem[count] = kernel_problem(*list[end].problem);
      problems.problem[count++].errors = list[end].block_errors;
      blocks = std::max(blocks, tensor_core_blocks(*list[end].problem));
    }
    const dim3 grid(static_cast<unsigned>(blocks), list[begin].problem->key_exact.heads, count);
    const bool errors = list[begin].block_errors != nullptr;
    if (list[begin].problem->key_codec.dim == 64) {
      errors ? launch<64, true>(problems, grid, stream) : launch<64, false>(problems, grid, stream);
    } else {
      errors ? launch<128, true>(problems, grid, stream)
             : launch<128, false>(problems, grid, stream);
    }
    begin = end;
  }
}

}  // namespace oscar::cuda
