#include <algorithm>

#include "kvcache/cuda/decode_problem.h"
#include "kvcache/cuda/launch.cuh"
#include "kvcache/cuda/matrix.cuh"

/// Decode attention with tensor cores: docs/kernels.md explains the design.
namespace oscar::cuda {
namespace {

constexpr unsigned kEveryLane = 0xffffffffu;
constexpr int kWarps = 8;    // of a block: one KV head each
constexpr int kChunk = 32;   // tokens of the INT2 tier at a time
constexpr int kQueries = 8;  // query heads of a warp
constexpr float kLogTwoE = 1.44269504f;
constexpr float kNothing = -1e30f;  // a maximum over no keys
/// How far weights may exceed 1 (in powers of two) before the running maximum is brought up to
/// date: fp16 holds them and every update costs a pass over the accumulators.
constexpr float kSlack = 4;

struct Tier {
  const std::uint16_t *key, *value;
  std::int64_t key_token, key_head, value_token, value_head;
  int places;
};

struct Codes {
  const std::uint8_t *codes, *scales;
  std::int64_t code_head, scale_head;     // bytes
  std::uint32_t code_token, scale_token;  // bytes
  ScaleType type;
};

struct Arguments {
  const std::uint16_t* query;
  std::int64_t query_token, query_head;
  Tier sink, recent;
  Codes key, value;
  const std::int32_t* table;
  std::int64_t pages_per_slot;
  const RequestTiers* requests;
  DecodeSplits splits;
  int kv_heads, grouped, query_groups, sliding;
  float scale, soft_cap;
};

/// A warp's place in the work.
struct Place {
  int kv_head, request, first_query, queries, part;
  std::int64_t row;  // of the first query head among the parts' results

  __device__ explicit Place(const Arguments& a) {
    kv_head = blockIdx.z * kWarps + threadIdx.x / 32;
    request = blockIdx.y / a.query_groups;
    const int group = blockIdx.y % a.query_groups;
    first_query = kv_head * a.grouped + group * kQueries;
    queries = min(kQueries, a.grouped - group * kQueries);
    part = blockIdx.x;
    row = static_cast<std::int64_t>(request) * a.kv_heads * a.grouped + first_query;
  }
};

/// Running maximum, sum and offset of the lane's two columns of queries. Logits come less the
/// maximum so far, which is 0 before the first key.
struct Softmax {
  float maximum[2] = {0, 0};
  float sum[2] = {0, 0};
  float offset[2] = {0, 0};
  bool started = false;

  /// Brings the maxima and `logits` up to date with `highest`, of the lane's rows, where that is
  /// worth it.
  template <int kLogits, int kTiles>
  __device__ void update(const float (&highest)[2], float (&logits)[kLogits],
                         float (&output)[kTiles][4]) {
    const bool grows = highest[0] > kSlack || highest[1] > kSlack;
    if (started && !__any_sync(kEveryLane, grows)) return;
    float factor[2], step[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float top = highest[n];
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        top = fmaxf(top, __shfl_xor_sync(kEveryLane, top, lanes));
      }
      const bool none = top == -INFINITY;
      step[n] = none ? 0.0f : started ? fmaxf(top, 0.0f) : top;
      factor[n] = power_of_two(-step[n]);
      maximum[n] += step[n];
      sum[n] *= started ? factor[n] : 0.0f;
      offset[n] *= started ? factor[n] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kLogits; ++i) logits[i] -= step[i % 2];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) output[i][c] *= started ? factor[c % 2] : 0.0f;
    }
    started = started || __any_sync(kEveryLane, highest[0] > -INFINITY);
  }

  /// Over the lanes that hold the other rows.
  __device__ void reduce() {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        sum[n] += __shfl_xor_sync(kEveryLane, sum[n], step);
        offset[n] += __shfl_xor_sync(kEveryLane, offset[n], step);
      }
    }
  }

  __device__ void store(const Arguments& a, const Place& place) const {
    const int lane = threadIdx.x % 32;
    if (lane >= 4) return;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int query = lane * 2 + n;
      if (query >= place.queries) continue;
      const std::int64_t at = (place.row + query) * a.splits.parts() + place.part;
      a.splits.maximum[at] = started ? maximum[n] : kNothing;
      a.splits.sum[at] = sum[n];
    }
  }
};

/// logits in powers of two
__device__ inline float cap_logit(float x, float soft_cap) {
  const float cap = soft_cap * kLogTwoE;
  const float e = power_of_two(x * (2 * kLogTwoE / cap));
  return cap * (1 - 2 * reciprocal(e + 1));
}

/// The scales and zeros of the lane's four rows of a chunk: key_of_row, and 8, 16 and 24 more.
__device__ inline void load_pairs(const std::uint8_t* shared, ScaleType type, int key,
                                  float2 (&pairs)[4]) {
  if (type == ScaleType::fp32) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = *reinterpret_cast<const float2*>(shared + 8 * (key + 8 * i));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const arithmetic::ScaleZero pair =
        arithmetic::load_scale_zero(shared + 4 * (key + 8 * i), type, 0);
    pairs[i] = {pair.scale, pair.zero};
  }
}

/// Which key of a tile lies at row r: so permuted that neither the rows of K (lanes 0 to 15 read
/// rows 0 to 3) nor those of V (rows 0, 2, 4, 6 together) meet in a bank.
__device__ inline int key_of_row(int row) {
  return row < 4 ? row : row ^ 1;
}

template <int kWords>
struct Bytes {
  static constexpr int kRow = 16 * kWords;  // bytes of a coded row: D = 64·kWords
};

/// The queries as the B operand: channel quarter m is scaled by 4^(3-m), because its codes count
/// 4^m, and the whole row by a power of two so that the largest stays below 2^15.
template <int kWords>
struct CodedQueries {
  std::uint32_t pairs[kWords][4][2];
  float factor[2];  // of the lane's two columns: what the products are multiplied by
  float sum[2];     // Σ q, in the same unit as a product of q and a code

  __device__ CodedQueries(const Arguments& a, const Place& place, float scale) {
    const int lane = threadIdx.x % 32, row = lane / 4, t = lane % 4;
    constexpr int kQuarter = 16 * kWords;
    const bool used = row < place.queries;
    const std::uint16_t* query = a.query + place.request * a.query_token +
                                 (place.first_query + (used ? row : 0)) * a.query_head;
    float total = 0, largest = 0;
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const int channel = m * kQuarter + t * 4 * kWords + 4 * j;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const std::uint32_t word =
              used ? *reinterpret_cast<const std::uint32_t*>(query + channel + 2 * i) : 0;
          pairs[j][m][i] = word;
          const float low = __uint_as_float(word << 16);
          const float high = __uint_as_float(word & 0xffff0000u);
          total += low + high;
          largest = fmaxf(largest, fmaxf(fabsf(low), fabsf(high)));
        }
      }
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
      total += __shfl_xor_sync(kEveryLane, total, step);
      largest = fmaxf(largest, __shfl_xor_sync(kEveryLane, largest, step));
    }
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;
    const int shift = min(max(8 - exponent, -100), 100);
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const float unit = power(shift + 2 * (3 - m));
        const std::uint32_t first = pairs[j][m][0], second = pairs[j][m][1];
        // Bytes 0 and 2 of a word of codes meet in one operand, bytes 1 and 3 in the other.
        pairs[j][m][0] =
            pack(__uint_as_float(first << 16) * unit, __uint_as_float(second << 16) * unit);
        pairs[j][m][1] = pack(__uint_as_float(first & 0xffff0000u) * unit,
                              __uint_as_float(second & 0xffff0000u) * unit);
      }
    }
    const float mine = scale * power(18 - shift);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      factor[n] = __shfl_sync(kEveryLane, mine, (2 * t + n) * 4);
      sum[n] = __shfl_sync(kEveryLane, total * scale, (2 * t + n) * 4);
    }
  }

  __device__ static std::uint32_t pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
};

/// Chunks of one KV head's INT2 tier on their way through a warp's own shared memory.
template <int kKeyWords, int kValueWords, int kStages>
struct Pipeline {
  static constexpr int kKeyBytes = kChunk * Bytes<kKeyWords>::kRow;
  static constexpr int kValueBytes = kChunk * Bytes<kValueWords>::kRow;
  static constexpr int kScaleBytes = 8 * kChunk;
  static constexpr int kStage = kKeyBytes + kValueBytes + 2 * kScaleBytes;

  const std::uint8_t* key;  // of this head
  const std::uint8_t* value;
  const std::uint8_t* key_scales;
  const std::uint8_t* value_scales;
  std::uint32_t shared;
  std::int32_t pages;  // of the next chunk: lane l holds page l % 4

  __device__ Pipeline(const Arguments& a, int head, std::uint32_t memory)
      : key(a.key.codes + head * a.key.code_head),
        value(a.value.codes + head * a.value.code_head),
        key_scales(a.key.scales + head * a.key.scale_head),
        value_scales(a.value.scales + head * a.value.scale_head),
        shared(memory) {}

  /// Reads the table's entries of a chunk; entries from `end` on repeat the last.
  __device__ void load_pages(const std::int32_t* table, int chunk, int end) {
    const int page = chunk * (kChunk / kPageTokens) + threadIdx.x % (kChunk / kPageTokens);
    pages = __ldg(table + min(page, end - 1));
  }

  /// The place of a chunk's token; places and strides have 31 bits, so one instruction multiplies.
  __device__ static std::uint32_t place_of(std::int32_t pages, int token) {
    return __shfl_sync(kEveryLane, pages, token / kPageTokens) * kPageTokens + token % kPageTokens;
  }
  __device__ static std::uint64_t bytes_before(std::uint32_t place, std::uint32_t stride) {
    return static_cast<std::uint64_t>(place) * stride;
  }

  template <int kWords>
  __device__ static void copy_codes(std::uint32_t to, const std::uint8_t* from,
                                    std::uint32_t stride, std::int32_t pages) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int unit = i * 32 + threadIdx.x % 32;
      const int token = unit / kWords, part = unit % kWords;
      copy_async<16>(to + 16 * unit,
                     from + bytes_before(place_of(pages, token), stride) + 16 * part);
    }
  }

  __device__ void start(const Arguments& a, int stage) {
    const std::uint32_t to = shared + stage * kStage;
    copy_codes<kKeyWords>(to, key, a.key.code_token, pages);
    copy_codes<kValueWords>(to + kKeyBytes, value, a.value.code_token, pages);
    const int token = threadIdx.x % 32;
    const std::uint32_t place = place_of(pages, token);
    const std::uint32_t scales = to + kKeyBytes + kValueBytes;
    copy_scales(scales, key_scales + bytes_before(place, a.key.scale_token), a.key.type, token);
    copy_scales(scales + kScaleBytes, value_scales + bytes_before(place, a.value.scale_token),
                a.value.type, token);
  }

  __device__ static void copy_scales(std::uint32_t to, const std::uint8_t* from, ScaleType type,
                                     int token) {
    if (type == ScaleType::fp32) {
      copy_async<8>(to + 8 * token, from);
    } else {
      copy_async<4>(to + 4 * token, from);
    }
  }
};

/// Codes of a quarter of a word's (or two halfwords') bytes, as fp16 subnormals: c·4^m·2^-24.
template <int kQuarter>
__device__ inline std::uint32_t crumbs(std::uint32_t word) {
  return word & (0x00030003u << (2 * kQuarter));
}

/// acc += codes of two rows · queries, for one word of each
template <int kQuarter = 0>
__device__ inline void multiply_word(float (&acc)[4], std::uint32_t a, std::uint32_t a_high,
                                     std::uint32_t b, std::uint32_t b_high,
                                     const std::uint32_t (&query)[4][2]) {
  multiply_half(acc, crumbs<kQuarter>(a), crumbs<kQuarter>(b), crumbs<kQuarter>(a_high),
                crumbs<kQuarter>(b_high), query[kQuarter][0], query[kQuarter][1]);
  if constexpr (kQuarter < 3) multiply_word<kQuarter + 1>(acc, a, a_high, b, b_high, query);
}

/// output[m] += values of 16 channels · weights of 16 keys, for the four quarters m of two bytes
template <int kQuarter = 0>
__device__ inline void multiply_values(float (*output)[4], std::uint32_t first,
                                       std::uint32_t second, const std::uint32_t (&weights)[2]) {
  multiply_half(output[kQuarter], crumbs<kQuarter>(first), crumbs<kQuarter>(first >> 8),
                crumbs<kQuarter>(second), crumbs<kQuarter>(second >> 8), weights[0], weights[1]);
  if constexpr (kQuarter < 3) {
    multiply_values<kQuarter + 1>(output, first, second, weights);
  }
}

template <int kWords>
__device__ inline void load_words(const std::uint8_t* from, std::uint32_t (&words)[kWords]) {
  if constexpr (kWords == 4) {
    *reinterpret_cast<uint4*>(words) = *reinterpret_cast<const uint4*>(from);
  } else if constexpr (kWords == 2) {
    *reinterpret_cast<uint2*>(words) = *reinterpret_cast<const uint2*>(from);
  } else {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      words[i] = *reinterpret_cast<const std::uint32_t*>(from + 4 * i);
    }
  }
}

/// kCount halfwords, two to a register.
template <int kCount>
__device__ inline void load_halfwords(const std::uint8_t* from,
                                      std::uint32_t (&words)[(kCount + 1) / 2]) {
  if constexpr (kCount == 4) {
    *reinterpret_cast<uint2*>(words) = *reinterpret_cast<const uint2*>(from);
  } else if constexpr (kCount == 2) {
    words[0] = *reinterpret_cast<const std::uint32_t*>(from);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const std::uint32_t half = *reinterpret_cast<const std::uint16_t*>(from + 2 * i);
      words[i / 2] = i % 2 == 0 ? half : words[i / 2] | half << 16;
    }
  }
}

/// One part of one KV head's INT2 tier.
template <int kKeyWords, int kValueWords, int kStages>
__device__ void coded_part(const Arguments& a, const Place& place, std::uint8_t* memory) {
  using Pipe = Pipeline<kKeyWords, kValueWords, kStages>;
  const RequestTiers request = a.requests[place.request];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int oldest = a.sliding == 0 ? 0 : max(0, request.length - a.sliding - request.sink);
  const int part_begin = place.part * a.splits.coded_tokens;
  const int begin = max(part_begin, oldest);
  const int end = min(part_begin + a.splits.coded_tokens, request.coded);
  Softmax softmax;
  float output[4 * kValueWords][4] = {};
  if (begin < end) {
    const std::int32_t* table = a.table + request.slot * a.pages_per_slot;
    const int first = begin / kChunk, last = (end - 1) / kChunk;
    const int table_end = (end + kPageTokens - 1) / kPageTokens;
    Pipe pipe(a, place.kv_head, static_cast<std::uint32_t>(__cvta_generic_to_shared(memory)));
    pipe.load_pages(table, first, table_end);
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      if (first + i <= last) {
        pipe.start(a, i);
        pipe.load_pages(table, first + i + 1, table_end);
      }
      commit_copies();
    }
    const float scale = a.scale * kLogTwoE;
    const CodedQueries<kKeyWords> queries(a, place, scale);
    const int row = key_of_row(g);
    int stage = 0, filling = kStages - 1;
    for (int chunk = first; chunk <= last; ++chunk) {
      wait_for_copies<kStages - 2>();
      __syncwarp();
      if (chunk + kStages - 1 <= last) {
        pipe.start(a, filling);
        pipe.load_pages(table, chunk + kStages, table_end);
      }
      commit_copies();
      filling = filling == kStages - 1 ? 0 : filling + 1;
      const std::uint8_t* data = memory + stage * Pipe::kStage;
      stage = stage == kStages - 1 ? 0 : stage + 1;
      const std::uint8_t* scales = data + Pipe::kKeyBytes + Pipe::kValueBytes;

      float logits[8];  // tile, half, query
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const int key = tile * 16 + row;
        constexpr int kRow = Bytes<kKeyWords>::kRow;
        std::uint32_t upper[kKeyWords], lower[kKeyWords];
        load_words<kKeyWords>(data + key * kRow + t * 4 * kKeyWords, upper);
        load_words<kKeyWords>(data + (key + 8) * kRow + t * 4 * kKeyWords, lower);
        float acc[4] = {0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < kKeyWords; ++j) {
          multiply_word(acc, upper[j], upper[j] >> 8, lower[j], lower[j] >> 8, queries.pairs[j]);
        }
#pragma unroll
        for (int c = 0; c < 4; ++c) logits[4 * tile + c] = acc[c];
      }
      // The value's scale joins the weight: weights count 2^(logit + log2 s), and the running
      // maximum is of that, so fp16 holds them whatever the scales are.
      float2 key_pairs[4], value_pairs[4];
      load_pairs(scales, a.key.type, row, key_pairs);
      load_pairs(scales + Pipe::kScaleBytes, a.value.type, row, value_pairs);
      float inverse[4], highest[2] = {-INFINITY, -INFINITY};
      bool large_zero = false;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float size = fmaxf(value_pairs[i].x, 1e-30f);
        const float power_of_size = logarithm_of_two(size);
        inverse[i] = reciprocal(size);
        large_zero = large_zero || fabsf(value_pairs[i].y) > 1024;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          // s·(q·c - z·Σq)
          float& logit = logits[2 * i + n];
          const float product = fmaf(logit, queries.factor[n], -key_pairs[i].y * queries.sum[n]);
          const float base = power_of_size - softmax.maximum[n];
          logit = fmaf(key_pairs[i].x, product, base);
        }
      }
      if (a.soft_cap > 0) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float base =
              logarithm_of_two(fmaxf(value_pairs[i / 2].x, 1e-30f)) - softmax.maximum[i % 2];
          logits[i] = cap_logit(logits[i] - base, a.soft_cap) + base;
        }
      }
      const int start = chunk * kChunk;
      if (start < begin || start + kChunk > end) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = start + 8 * i + row;
          if (key < begin || key >= end) logits[2 * i] = logits[2 * i + 1] = -INFINITY;
        }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) highest[i % 2] = fmaxf(highest[i % 2], logits[i]);
      softmax.update(highest, logits, output);
      std::uint32_t rounded[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float* weight = logits + 2 * i;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          weight[n] = power_of_two(weight[n]);
          softmax.sum[n] = fmaf(weight[n], inverse[i], softmax.sum[n]);
        }
        const __half2 pair = __floats2half2_rn(weight[0], weight[1]);
        rounded[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
        // Once rounded, everywhere the same number, or Σpc and Σpz would not cancel.
        const float2 used = __half22float2(pair);
        softmax.offset[0] = fmaf(used.x, value_pairs[i].y, softmax.offset[0]);
        softmax.offset[1] = fmaf(used.y, value_pairs[i].y, softmax.offset[1]);
      }
      if (__any_sync(kEveryLane, large_zero)) {
        // A row of nearly equal values: its codes are nothing beside its zero, so the weight that
        // fp16 has few bits left for counts as it was.
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const __half2 pair = *reinterpret_cast<const __half2*>(&rounded[i / 2]);
          const float used = i % 2 == 0 ? __low2float(pair) : __high2float(pair);
          const float lost = logits[i] < 0x1p-14f ? logits[i] - used : 0.0f;
          softmax.offset[i % 2] = fmaf(lost, value_pairs[i / 2].y, softmax.offset[i % 2]);
        }
      }
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const std::uint32_t weights[2] = {transpose(rounded[2 * tile]),
                                          transpose(rounded[2 * tile + 1])};
        constexpr int kRow = Bytes<kValueWords>::kRow;
        constexpr int kHalves = (kValueWords + 1) / 2;
        const std::uint8_t* values =
            data + Pipe::kKeyBytes + tile * 16 * kRow + g * 2 * kValueWords;
        std::uint32_t v[4][kHalves];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          load_halfwords<kValueWords>(values + (key_of_row(2 * t + i % 2) + i / 2 * 8) * kRow,
                                      v[i]);
        }
#pragma unroll
        for (int j = 0; j < kValueWords; ++j) {
          const unsigned choose = j % 2 == 0 ? 0x5410 : 0x7632;
          multiply_values(output + 4 * j, __byte_perm(v[0][j / 2], v[1][j / 2], choose),
                          __byte_perm(v[2][j / 2], v[3][j / 2], choose), weights);
        }
      }
    }
    wait_for_copies<0>();
  }
  softmax.reduce();
  softmax.store(a, place);
  constexpr int kDim = 64 * kValueWords;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int query = 2 * t + n;
    if (query >= place.queries) continue;
    float* out = a.splits.output + ((place.row + query) * a.splits.parts() + place.part) * kDim;
#pragma unroll
    for (int j = 0; j < kValueWords; ++j) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const float unit = power(24 - 2 * m);
        const float* sums = output[4 * j + m];
        *reinterpret_cast<float2*>(out + m * kDim / 4 + g * 2 * kValueWords + 2 * j) = {
            fmaf(sums[n], unit, -softmax.offset[n]), fmaf(sums[2 + n], unit, -softmax.offset[n])};
      }
    }
  }
}

/// Token i of the exact tiers that the query sees.
struct ExactTokens {
  int sink_begin, sink_count, recent_begin, count;
  const Tier &sink, &recent;
  int slot;

  __device__ ExactTokens(const Arguments& a, const RequestTiers& request)
      : sink(a.sink), recent(a.recent), slot(request.slot) {
    const int oldest = a.sliding == 0 ? 0 : max(0, request.length - a.sliding);
    sink_begin = min(oldest, request.sink);
    sink_count = request.sink - sink_begin;
    recent_begin = max(request.coded, oldest - request.sink);
    count = sink_count + request.length - request.sink - recent_begin;
  }
  template <bool kKey>
  __device__ const std::uint16_t* row(int token, int head) const {
    const bool in_sink = token < sink_count;
    const Tier& tier = in_sink ? sink : recent;
    const int place =
        in_sink ? sink_begin + token : (recent_begin + token - sink_count) % recent.places;
    const std::int64_t at = static_cast<std::int64_t>(slot) * tier.places + place;
    return kKey ? tier.key + at * tier.key_token + head * tier.key_head
                : tier.value + at * tier.value_token + head * tier.value_head;
  }
};

/// One part of one KV head's sink and recent tiers, straight from memory: they are a few hundred
/// tokens.
template <int kKeyWords, int kValueWords>
__device__ void exact_part(const Arguments& a, const Place& place) {
  const RequestTiers request = a.requests[place.request];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const ExactTokens tokens(a, request);
  const int begin = (place.part - a.splits.coded) * a.splits.exact_tokens;
  const int end = min(begin + a.splits.exact_tokens, tokens.count);
  constexpr int kBlocks = 2 * kKeyWords;  // of 32 channels
  uint4 query[kBlocks];
  {
    const bool used = g < place.queries;
    const std::uint16_t* from = a.query + place.request * a.query_token +
                                (place.first_query + (used ? g : 0)) * a.query_head + 8 * t;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      query[b] = used ? *reinterpret_cast<const uint4*>(from + 32 * b) : uint4{0, 0, 0, 0};
    }
  }
  Softmax softmax;
  float output[4 * kValueWords][4] = {};
  for (int start = begin; start < end; start += 16) {
    const std::uint16_t* upper = tokens.row<true>(min(start + g, end - 1), place.kv_head) + 8 * t;
    const std::uint16_t* lower =
        tokens.row<true>(min(start + g + 8, end - 1), place.kv_head) + 8 * t;
    float logit[4] = {0, 0, 0, 0};
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const uint4 u = *reinterpret_cast<const uint4*>(upper + 32 * b);
      const uint4 l = *reinterpret_cast<const uint4*>(lower + 32 * b);
      multiply_bfloat16(logit, u.x, l.x, u.y, l.y, query[b].x, query[b].y);
      multiply_bfloat16(logit, u.z, l.z, u.w, l.w, query[b].z, query[b].w);
    }
    float highest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      logit[c] *= a.scale * kLogTwoE;
      if (a.soft_cap > 0) logit[c] = cap_logit(logit[c], a.soft_cap);
      logit[c] -= softmax.maximum[c % 2];
      if (start + g + c / 2 * 8 >= end) logit[c] = -INFINITY;
      highest[c % 2] = fmaxf(highest[c % 2], logit[c]);
    }
    softmax.update(highest, logit, output);
    std::uint32_t weights[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t low = float_to_bfloat16(power_of_two(logit[2 * half]));
      const std::uint32_t high = float_to_bfloat16(power_of_two(logit[2 * half + 1]));
      softmax.sum[0] += __uint_as_float(low << 16);
      softmax.sum[1] += __uint_as_float(high << 16);
      weights[half] = transpose(low | high << 16);
    }
    const std::uint16_t* value[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = start + 2 * t + i % 2 + i / 2 * 8;
      value[i] = tokens.row<false>(min(token, end - 1), place.kv_head) + 8 * g;
    }
#pragma unroll
    for (int b = 0; b < kValueWords; ++b) {
      uint4 v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = *reinterpret_cast<const uint4*>(value[i] + 64 * b);
      const std::uint32_t* words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = reinterpret_cast<const std::uint32_t*>(&v[i]);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        multiply_bfloat16(output[4 * b + r], __byte_perm(words[0][r], words[1][r], 0x5410),
                          __byte_perm(words[0][r], words[1][r], 0x7632),
                          __byte_perm(words[2][r], words[3][r], 0x5410),
                          __byte_perm(words[2][r], words[3][r], 0x7632), weights[0], weights[1]);
      }
    }
  }
  softmax.reduce();
  softmax.store(a, place);
  constexpr int kDim = 64 * kValueWords;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int query_head = 2 * t + n;
    if (query_head >= place.queries) continue;
    float* out =
        a.splits.output + ((place.row + query_head) * a.splits.parts() + place.part) * kDim;
#pragma unroll
    for (int b = 0; b < kValueWords; ++b) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        *reinterpret_cast<float2*>(out + 64 * b + 8 * g + 2 * r) = {output[4 * b + r][n],
                                                                    output[4 * b + r][2 + n]};
      }
    }
  }
}

/// Block (x: part of each tier, y: request and group of eight query heads, z: eight KV heads).
template <int kKeyWords, int kValueWords, int kStages>
__global__ void __launch_bounds__(kWarps * 32, kKeyWords < 4 ? 2 : 1)
    split_decode_kernel(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(16) std::uint8_t shared[];
  Place place(a);
  if (place.kv_head >= a.kv_heads) return;
  int exact = place.part;
  if (place.part < a.splits.coded) {
    constexpr int kOwn = kStages * Pipeline<kKeyWords, kValueWords, kStages>::kStage;
    coded_part<kKeyWords, kValueWords, kStages>(a, place, shared + threadIdx.x / 32 * kOwn);
    if (a.splits.separate) return;
  } else if (a.splits.separate) {
    exact -= a.splits.coded;
  }
  if (exact >= a.splits.exact) return;
  place.part = a.splits.coded + exact;
  exact_part<kKeyWords, kValueWords>(a, place);
}

struct Instance {
  void (*kernel)(Arguments) = nullptr;
  int shared = 0;  // bytes of a warp
};

template <int kKeyWords, int kValueWords, int kStages>
Instance instance() {
  return {split_decode_kernel<kKeyWords, kValueWords, kStages>,
          kStages * Pipeline<kKeyWords, kValueWords, kStages>::kStage};
}

Instance instance_for(int dim, int value_dim) {
  if (dim == 64 && value_dim == 64) return instance<1, 1, 4>();
  if (dim == 128 && value_dim == 128) return instance<2, 2, 4>();
  if (dim == 192 && value_dim == 128) return instance<3, 2, 4>();
  if (dim == 256 && value_dim == 256) return instance<4, 4, 4>();
  return {};
}

Codes codes_of(const ConstCodedRows& rows, ScaleType type) {
  const auto size = static_cast<std::int64_t>(bytes_of(type));
  return {rows.codes,
          static_cast<const std::uint8_t*>(rows.scales_zeros),
          rows.code_head_stride,
          rows.scale_head_stride * size,
          static_cast<std::uint32_t>(rows.code_token_stride),
          static_cast<std::uint32_t>(rows.scale_token_stride * size),
          type};
}

Tier tier_of(const ConstRows& key, const ConstRows& value, int places) {
  return {static_cast<const std::uint16_t*>(key.data),
          static_cast<const std::uint16_t*>(value.data),
          key.token_stride,
          key.head_stride,
          value.token_stride,
          value.head_stride,
          places};
}

bool aligned(const void* pointer, std::initializer_list<std::int64_t> strides, int bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0 &&
         std::ranges::all_of(strides, [&](std::int64_t stride) { return stride % bytes == 0; });
}

bool aligned(const ConstRows& rows) {
  return rows.type == ElementType::bf16 &&
         aligned(rows.data, {2 * rows.token_stride, 2 * rows.head_stride}, 16);
}

bool aligned(const ConstCodedRows& rows, ScaleType type) {
  constexpr std::int64_t kMost = 0x0fffffff;
  const auto fits = [](std::int64_t number) { return number >= 0 && number <= kMost; };
  if (!fits(rows.code_token_stride) || !fits(rows.scale_token_stride) || rows.tokens > 0x7fffffff) {
    return false;
  }
  const Codes codes = codes_of(rows, type);
  return aligned(codes.codes, {codes.code_token, codes.code_head}, 16) &&
         aligned(codes.scales, {codes.scale_token, codes.scale_head},
                 codes.type == ScaleType::fp32 ? 8 : 4);
}

}  // namespace

bool supports_split_decode(const MixedCacheView& cache, const DecodeAttention& problem) {
  const CodecSettings& key = cache.key_codec;
  const CodecSettings& value = cache.value_codec;
  return instance_for(key.dim, value.dim).kernel != nullptr && key.group == key.dim &&
         value.group == value.dim && aligned(problem.query) && aligned(cache.key_sink) &&
         aligned(cache.value_sink) && aligned(cache.key_recent) && aligned(cache.value_recent) &&
         aligned(cache.key_coded, key.scale_type) && aligned(cache.value_coded, value.scale_type);
}

void split_decode(const MixedCacheView& cache, const DecodeAttention& problem,
                  const DecodeSplits& splits, cudaStream_t stream) {
  Arguments a{};
  a.query = static_cast<const std::uint16_t*>(problem.query.data);
  a.query_token = problem.query.token_stride;
  a.query_head = problem.query.head_stride;
  a.sink = tier_of(cache.key_sink, cache.value_sink, cache.sink_places);
  a.recent = tier_of(cache.key_recent, cache.value_recent, cache.ring_places);
  a.key = codes_of(cache.key_coded, cache.key_codec.scale_type);
  a.value = codes_of(cache.value_coded, cache.value_codec.scale_type);
  a.table = cache.block_table;
  a.pages_per_slot = cache.pages_per_slot;
  a.requests = cache.requests;
  a.splits = splits;
  a.kv_heads = cache.key_coded.heads;
  a.grouped = problem.query.heads / a.kv_heads;
  a.query_groups = (a.grouped + kQueries - 1) / kQueries;
  a.sliding = static_cast<int>(std::min<std::int64_t>(problem.sliding, 0x7fffffff));
  a.scale = problem.scale;
  a.soft_cap = problem.soft_cap;
  const Instance instance = instance_for(cache.key_codec.dim, cache.value_codec.dim);
  const int warps = std::min(a.kv_heads, kWarps);
  const int shared = warps * instance.shared;
  OSCAR_CUDA_CHECK(
      cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  const int parts = splits.separate ? splits.parts() : std::max(splits.coded, splits.exact);
  const dim3 grid(parts, cache.count * a.query_groups, (a.kv_heads + kWarps - 1) / kWarps);
  instance.kernel<<<grid, warps * 32, shared, stream>>>(a);
  OSCAR_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oscar::cuda
