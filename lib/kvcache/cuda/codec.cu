#include "kvcache/backend.h"
#include "kvcache/cuda/encode_rows.h"
#include "kvcache/cuda/launch.cuh"

namespace oscar::cuda {
namespace {

constexpr int kWarps = 4;
constexpr unsigned kAllLanes = 0xffffffffu;

/// The warp's sum in the order that arithmetic::kPartialSums prescribes: lane l adds channels l, l
/// + 32,
/// ..., then halves are folded.
__device__ float ordered_sum(float value) {
  for (int step = 16; step > 0; step /= 2) {
    value = arithmetic::add(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}

/// Contract, section 2, step 5, on the warp's clipped row.
__device__ void encode_lloyd_max(const CodecSettings& settings, const float* values, void* scales,
                                 std::uint16_t* codes) {
  const int lane = threadIdx.x % 32, dim = settings.dim;
  float sum = 0;
  for (int i = lane; i < dim; i += 32) sum = arithmetic::add(sum, values[i]);
  const float mean = arithmetic::divide(ordered_sum(sum), static_cast<float>(dim));
  float squares = 0;
  for (int i = lane; i < dim; i += 32) {
    const float difference = arithmetic::add(values[i], -mean);
    squares = arithmetic::add(squares, arithmetic::multiply(difference, difference));
  }
  const float variance = arithmetic::divide(ordered_sum(squares), static_cast<float>(dim));
  const arithmetic::LloydMax levels(mean, variance);
  if (lane == 0) {
    arithmetic::store_scale_zero(scales, settings.scale_type, 0, levels.scale_zero());
  }
  for (int i = lane; i < dim; i += 32) {
    codes[i] = static_cast<std::uint16_t>(levels.code_of(values[i]));
  }
}

/// Encodes one row a warp. Dynamic shared memory holds each warp's row: dim values, then dim
/// magnitudes.
__global__ void encode_kernel(CodecSettings settings, int clip_index, ConstRows rows,
                              CodedRows coded, float* thresholds, TokenMap map) {
  extern __shared__ float shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = settings.dim;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (index >= map.count * rows.heads) return;
  const std::int64_t row = index / rows.heads;
  const std::int64_t source = map.from == nullptr ? row : map.from[row];
  const std::int64_t token = map.to == nullptr ? row : map.to[row];
  const int head = static_cast<int>(index % rows.heads);
  float* values = shared + warp * dim;
  auto* magnitudes = reinterpret_cast<std::uint16_t*>(shared + kWarps * dim) + warp * dim;

  const std::int64_t offset = row_offset(rows, source, head);
  std::uint32_t highest = 0;
  for (int i = lane; i < dim; i += 32) {
    const std::uint16_t bits =
        rows.type == ElementType::bf16
            ? static_cast<const std::uint16_t*>(rows.data)[offset + i]
            : float_to_bfloat16(static_cast<const float*>(rows.data)[offset + i]);
    const std::uint16_t clean = arithmetic::sanitise(bits);
    values[i] = bfloat16_to_float(clean);
    magnitudes[i] = clean & 0x7fffu;
    highest = max(highest, static_cast<std::uint32_t>(clean & 0x7fffu));
  }
  __syncwarp();

  float threshold = __int_as_float(0x7f800000);
  if (clip_index >= 0) {
    const auto count_below = [&](std::uint32_t limit) {
      int count = 0;
      for (int i = lane; i < dim; i += 32) count += magnitudes[i] < limit;
      return __reduce_add_sync(kAllLanes, count);
    };
    if (settings.rule == ClipRule::exact) {
      threshold = bfloat16_to_float(arithmetic::exact_threshold(clip_index, count_below));
    } else {
      const auto high = static_cast<std::uint16_t>(__reduce_max_sync(kAllLanes, highest));
      threshold = arithmetic::bisect_threshold(
          dim, clip_index, bfloat16_to_float(high),
          [&](std::uint16_t limit) { return dim - count_below(limit + 1u); });
    }
  }
  if (thresholds != nullptr && lane == 0) thresholds[index] = threshold;

  const std::int64_t scale_offset =
      token * coded.scale_token_stride + head * coded.scale_head_stride;
  void* scales = static_cast<char*>(coded.scales_zeros) +
                 scale_offset * (settings.scale_type == ScaleType::fp32 ? 4 : 2);
  std::uint16_t* codes = magnitudes;  // no longer needed as magnitudes
  for (int group = 0; group < dim / settings.group; ++group) {
    const int begin = group * settings.group, end = begin + settings.group;
    float low = arithmetic::kLargest, high = -arithmetic::kLargest;
    for (int i = begin + lane; i < end; i += 32) {
      const float value = fminf(fmaxf(values[i], -threshold), threshold);
      values[i] = value;
      low = fminf(low, value);
      high = fmaxf(high, value);
    }
    for (int step = 16; step > 0; step /= 2) {
      low = fminf(low, __shfl_xor_sync(kAllLanes, low, step));
      high = fmaxf(high, __shfl_xor_sync(kAllLanes, high, step));
    }
    if (settings.levels == LevelRule::lloyd_max) {
      encode_lloyd_max(settings, values, scales, codes);
      break;  // one group
    }
    const arithmetic::ScaleZero pair = arithmetic::scale_zero(low, high);
    if (lane == 0) arithmetic::store_scale_zero(scales, settings.scale_type, group, pair);
    __syncwarp();
    for (int i = begin + lane; i < end; i += 32) {
      codes[i] = static_cast<std::uint16_t>(arithmetic::code_of(values[i], pair));
    }
  }
  __syncwarp();
  const int quarter = dim / 4;
  std::uint8_t* out = coded.codes + token * coded.code_token_stride + head * coded.code_head_stride;
  for (int i = lane; i < quarter; i += 32) {
    out[i] = static_cast<std::uint8_t>(codes[i] | codes[i + quarter] << 2 |
                                       codes[i + 2 * quarter] << 4 | codes[i + 3 * quarter] << 6);
  }
}

__global__ void decode_kernel(CodecSettings settings, ConstCodedRows coded, MutableRows rows) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (index >= rows.tokens * rows.heads) return;
  const std::int64_t token = index / rows.heads;
  const int head = static_cast<int>(index % rows.heads);
  const std::int64_t offset = row_offset(rows, token, head);
  for (int i = threadIdx.x % 32; i < settings.dim; i += 32) {
    store_element(rows, offset + i, decode_element(settings, coded, token, head, i));
  }
}

unsigned blocks_for(std::int64_t rows) {
  return static_cast<unsigned>((rows + kWarps - 1) / kWarps);
}

}  // namespace

void encode_any_rows(const EncodeJob& job, cudaStream_t stream) {
  const CodecSettings& settings = job.settings;
  const std::size_t shared = kWarps * settings.dim * (sizeof(float) + sizeof(std::uint16_t));
  encode_kernel<<<blocks_for(job.tokens() * job.rows.heads), kWarps * 32, shared, stream>>>(
      settings, settings.clip_index(), job.rows, job.coded, job.thresholds,
      {job.map.from, job.map.to, job.tokens()});
  OSCAR_CUDA_CHECK(cudaGetLastError());
}

void decode(const CodecSettings& settings, const ConstCodedRows& coded, const MutableRows& rows,
            const Execution& where) {
  const DeviceScope scope(where);
  decode_kernel<<<blocks_for(rows.tokens * rows.heads), kWarps * 32, 0, stream_of(where)>>>(
      settings, coded, rows);
  OSCAR_CUDA_CHECK(cudaGetLastError());
}

}  // namespace oscar::cuda
