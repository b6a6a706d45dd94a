#include <algorithm>
#include <array>
#include <vector>

#include "kvcache/backend.h"
#include "kvcache/cuda/encode_rows.h"
#include "kvcache/cuda/launch.cuh"
#include "kvcache/cuda/row_codec.cuh"

namespace oscar::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kJobs = 24;  // of one launch

/// An EncodeJob as the kernel reads it: bf16 rows, 16 bytes aligned. Tensors without a gap between
/// their tokens count as one head.
struct Job {
  const std::uint16_t* rows;
  std::uint8_t* codes;
  char* scales;
  float* thresholds;
  const std::int32_t *from, *to;                                   // tokens, or null
  std::int64_t row_strides[2], code_strides[2], scale_strides[2];  // of a token and a head
  std::uint32_t count, heads;
  RowCodecSettings settings;
};

struct Jobs {
  Job job[kJobs];
};

template <int kBytes>
struct Vector;
template <>
struct Vector<16> {
  using type = uint4;
};
template <>
struct Vector<8> {
  using type = uint2;
};
template <>
struct Vector<4> {
  using type = std::uint32_t;
};

/// Block (x: rows, y: job).
template <int kPairs, int kLanes, bool kGrouped>
__global__ void __launch_bounds__(kThreads) encode_rows_kernel(const __grid_constant__ Jobs jobs) {
  const Job& job = jobs.job[blockIdx.y];
  const std::uint32_t first = blockIdx.x * (kThreads / kLanes);
  if (first >= job.count) return;
  const std::uint32_t wanted = first + threadIdx.x / kLanes;
  const bool store = wanted < job.count;
  const std::uint32_t row = store ? wanted : job.count - 1;
  const std::uint32_t token = job.heads == 1 ? row : row / job.heads;
  const std::uint32_t head = job.heads == 1 ? 0 : row - token * job.heads;
  const std::int64_t source = job.from == nullptr ? token : job.from[token];
  const std::int64_t target = job.to == nullptr ? token : job.to[token];
  const int quarter = job.settings.dim / 4;
  const int channel = threadIdx.x % kLanes * 2 * kPairs;

  RegisterRow<kPairs, kLanes, kGrouped> values;
  values.active = channel < quarter;
  const std::uint16_t* in = job.rows + source * job.row_strides[0] + head * job.row_strides[1] +
                            (values.active ? channel : 0);
  using In = typename Vector<4 * kPairs>::type;
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    *reinterpret_cast<In*>(values.x[q]) = __ldg(reinterpret_cast<const In*>(in + q * quarter));
  }
  const std::int64_t scale_offset = target * job.scale_strides[0] + head * job.scale_strides[1];
  float* threshold = job.thresholds == nullptr ? nullptr : job.thresholds + row;
  std::uint32_t bytes[kPairs / 2];
  values.encode(job.settings, store, job.scales + scale_offset, threshold, bytes);
  if (!store || !values.active) return;
  using Out = typename Vector<2 * kPairs>::type;
  std::uint8_t* out =
      job.codes + target * job.code_strides[0] + head * job.code_strides[1] + channel;
  *reinterpret_cast<Out*>(out) = *reinterpret_cast<const Out*>(bytes);
}

using Kernel = void (*)(Jobs);

struct Instance {
  Kernel kernel = nullptr;
  int lanes = 0;
};

template <bool kGrouped>
Instance instance_for(int dim) {
  switch (dim) {
    case 64:
      return {encode_rows_kernel<4, 2, kGrouped>, 2};
    case 80:
      return {encode_rows_kernel<2, 8, kGrouped>, 8};
    case 96:
    case 128:
      return {encode_rows_kernel<4, 4, kGrouped>, 4};
    case 192:
    case 256:
      return {encode_rows_kernel<4, 8, kGrouped>, 8};
    case 512:
      return {encode_rows_kernel<4, 16, kGrouped>, 16};
    default:
      return {};
  }
}

bool divides(std::int64_t unit, std::initializer_list<std::int64_t> values) {
  return std::ranges::all_of(values, [&](std::int64_t value) { return value % unit == 0; });
}

/// The instance that can run the job, if one can.
Instance instance_for(const EncodeJob& job) {
  const CodecSettings& settings = job.settings;
  const int quarter = settings.dim / 4;
  if (job.rows.type != ElementType::bf16 || settings.levels != LevelRule::uniform ||
      settings.group % quarter != 0 || settings.group == 3 * quarter ||
      job.tokens() * job.rows.heads > 0x7fffffff) {
    return {};
  }
  const Instance instance = settings.group == settings.dim ? instance_for<false>(settings.dim)
                                                           : instance_for<true>(settings.dim);
  const int load = settings.dim == 80 ? 8 : 16;
  const auto address = [](const void* pointer) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(pointer));
  };
  const bool aligned =
      divides(load,
              {address(job.rows.data), 2 * job.rows.token_stride, 2 * job.rows.head_stride}) &&
      divides(load / 2,
              {address(job.coded.codes), job.coded.code_token_stride, job.coded.code_head_stride});
  return aligned ? instance : Instance{};
}

Job kernel_job(const EncodeJob& job) {
  const auto element = static_cast<std::int64_t>(bytes_of(job.settings.scale_type));
  const ConstRows& rows = job.rows;
  const CodedRows& coded = job.coded;
  Job result{static_cast<const std::uint16_t*>(rows.data),
             coded.codes,
             static_cast<char*>(coded.scales_zeros),
             job.thresholds,
             job.map.from,
             job.map.to,
             {rows.token_stride, rows.head_stride},
             {coded.code_token_stride, coded.code_head_stride},
             {coded.scale_token_stride * element, coded.scale_head_stride * element},
             static_cast<std::uint32_t>(job.tokens() * rows.heads),
             static_cast<std::uint32_t>(rows.heads),
             {job.settings.dim, job.settings.clip_index(), job.settings.rule,
              job.settings.scale_type, job.settings.group / (job.settings.dim / 4)}};
  const auto gapless = [&](const std::int64_t* strides) {
    return strides[0] == rows.heads * strides[1];
  };
  if (job.map.count < 0 && gapless(result.row_strides) && gapless(result.code_strides) &&
      gapless(result.scale_strides)) {
    result.heads = 1;
    for (std::int64_t* strides : {result.row_strides, result.code_strides, result.scale_strides}) {
      strides[0] = strides[1];
    }
  }
  return result;
}

/// Two launches, with the rotated rows in between in memory.
void rotate_then_encode(const EncodeJob& job, const Execution& where) {
  const ConstRows& rows = job.rows;
  const bool own = job.rotated.data == nullptr;
  const std::size_t count =
      own ? static_cast<std::size_t>(rows.tokens) * rows.heads * rows.dim : std::size_t{1};
  StreamBuffer buffer(count * sizeof(std::uint16_t), stream_of(where));
  const MutableRows rotated = own ? MutableRows::packed(buffer.as<void>(), ElementType::bf16,
                                                        rows.tokens, rows.heads, rows.dim)
                                  : job.rotated;
  cuda::rotate_rows(rows, job.rotation, rotated, {}, where);
  EncodeJob next = job;
  next.rows = rotated;
  next.rotation = {};
  next.rotated = {};
  cuda::encode(std::span<const EncodeJob>(&next, 1), where);
}

}  // namespace

void encode(std::span<const EncodeJob> jobs, const Execution& where) {
  const DeviceScope scope(where);
  const cudaStream_t stream = stream_of(where);
  std::vector<std::pair<Instance, Job>> ready;
  std::vector<const EncodeJob*> rotating;
  for (const EncodeJob& job : jobs) {
    if (job.tokens() == 0) continue;
    if (job.rotation.data != nullptr) {
      if (supports_rotate_encode(job)) {
        rotating.push_back(&job);
      } else {
        rotate_then_encode(job, where);
      }
      continue;
    }
    const Instance instance = instance_for(job);
    if (instance.kernel == nullptr) {
      encode_any_rows(job, stream);
    } else {
      ready.emplace_back(instance, kernel_job(job));
    }
  }
  rotate_encode(rotating, stream);
  while (!ready.empty()) {
    const Instance instance = ready.front().first;
    Jobs launch{};
    int count = 0;
    std::uint32_t rows = 0;
    std::erase_if(ready, [&](const auto& item) {
      if (item.first.kernel != instance.kernel || count == kJobs) return false;
      launch.job[count++] = item.second;
      rows = std::max(rows, item.second.count);
      return true;
    });
    const std::uint32_t per_block = kThreads / instance.lanes;
    instance.kernel<<<dim3((rows + per_block - 1) / per_block, count), kThreads, 0, stream>>>(
        launch);
    OSCAR_CUDA_CHECK(cudaGetLastError());
  }
}

}  // namespace oscar::cuda
