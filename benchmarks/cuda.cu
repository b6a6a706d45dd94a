// Times the CUDA back end against the device's own bandwidth, all in one run, and prints a table.
// scripts/device-benchmark runs it together with torch's BF16 attention on the same shapes.
//
//   benchmark_cuda [--bf16 milliseconds of the shapes, from scripts/device-bf16-attention.py]
//   [name]

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "oscar/core/cuda_check.h"
#include "oscar/core/float16.h"
#include "oscar/kvcache/attention.h"
#include "oscar/kvcache/codec.h"
#include "oscar/kvcache/decode.h"
#include "oscar/kvcache/rotate.h"

namespace {

using namespace oscar;

struct DeviceFree {
  void operator()(void* memory) const { cudaFree(memory); }
};

template <typename T>
class Array {
 public:
  explicit Array(std::size_t count) : count_(count) {
    void* memory = nullptr;
    OSCAR_CUDA_CHECK(cudaMalloc(&memory, std::max<std::size_t>(1, count * sizeof(T))));
    memory_.reset(memory);
  }
  T* data() const { return static_cast<T*>(memory_.get()); }
  std::size_t bytes() const { return count_ * sizeof(T); }

 private:
  std::size_t count_;
  std::unique_ptr<void, DeviceFree> memory_;
};

__device__ std::uint32_t hash(std::uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return static_cast<std::uint32_t>(x >> 32);
}

/// About normal bf16 numbers: a sum of four uniform ones.
__global__ void fill_bfloat16(std::uint16_t* out, std::size_t count, std::uint64_t seed) {
  for (std::size_t i = blockIdx.x * 256ull + threadIdx.x; i < count; i += gridDim.x * 256ull) {
    const std::uint32_t a = hash(seed + 2 * i), b = hash(seed + 2 * i + 1);
    const float sum = static_cast<float>((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16));
    out[i] = float_to_bfloat16((sum / 65536.0f - 2.0f) * 1.73f);
  }
}

__global__ void read_kernel(const uint4* data, std::size_t count, unsigned* out) {
  uint4 sum{};
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
  for (; i + 7 * stride < count; i += 8 * stride) {
    uint4 v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = __ldcs(data + i + j * stride);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      sum.x ^= v[j].x;
      sum.y ^= v[j].y;
      sum.z ^= v[j].z;
      sum.w ^= v[j].w;
    }
  }
  for (; i < count; i += stride) sum.x ^= data[i].x;
  if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x12345678u) *out = 1;
}

Array<std::uint16_t> random_rows(std::size_t count, std::uint64_t seed) {
  Array<std::uint16_t> rows(count);
  fill_bfloat16<<<2048, 256>>>(rows.data(), count, seed);
  OSCAR_CUDA_CHECK(cudaGetLastError());
  return rows;
}

/// The median time of a call in milliseconds; each of `rounds` samples is the mean of `inner`
/// calls, call number i being given i, so that it may rotate its buffers.
double median_time(const std::function<void(int)>& call, int rounds = 15, int inner = 4) {
  cudaEvent_t begin, end;
  OSCAR_CUDA_CHECK(cudaEventCreate(&begin));
  OSCAR_CUDA_CHECK(cudaEventCreate(&end));
  for (int i = 0; i < 3; ++i) call(i);
  OSCAR_CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<float> times;
  for (int round = 0; round < rounds; ++round) {
    OSCAR_CUDA_CHECK(cudaEventRecord(begin));
    for (int i = 0; i < inner; ++i) call(round * inner + i);
    OSCAR_CUDA_CHECK(cudaEventRecord(end));
    OSCAR_CUDA_CHECK(cudaEventSynchronize(end));
    float milliseconds = 0;
    OSCAR_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    times.push_back(milliseconds / static_cast<float>(inner));
  }
  std::sort(times.begin(), times.end());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return times[times.size() / 2];
}

/// The same calls replayed from a graph, which leaves out the gaps between launches.
double graph_time(const std::function<void(int, cudaStream_t)>& call, int calls) {
  cudaStream_t stream;
  OSCAR_CUDA_CHECK(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  call(0, stream);
  OSCAR_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) call(i, stream);
  OSCAR_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  OSCAR_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin, end;
  OSCAR_CUDA_CHECK(cudaEventCreate(&begin));
  OSCAR_CUDA_CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int round = 0; round < 15; ++round) {
    OSCAR_CUDA_CHECK(cudaEventRecord(begin, stream));
    OSCAR_CUDA_CHECK(cudaGraphLaunch(executable, stream));
    OSCAR_CUDA_CHECK(cudaEventRecord(end, stream));
    OSCAR_CUDA_CHECK(cudaEventSynchronize(end));
    float milliseconds = 0;
    OSCAR_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    times.push_back(milliseconds / static_cast<float>(calls));
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return times[times.size() / 2];
}

struct Yardsticks {
  double copy = 0, read = 0;           // bytes a second
  std::map<std::string, double> bf16;  // milliseconds of torch's fastest
};

void print_row(const Yardsticks& yard, const char* name, double ms, double bytes, bool reads_only,
               const char* bf16 = nullptr) {
  const double rate = bytes / (ms * 1e-3);
  std::printf("%-52s %9.4f ms %9.1f MB %8.1f GB/s %6.1f %% of %s", name, ms, bytes * 1e-6,
              rate * 1e-9, 100 * rate / (reads_only ? yard.read : yard.copy),
              reads_only ? "read" : "copy");
  const auto found = bf16 == nullptr ? yard.bf16.end() : yard.bf16.find(bf16);
  if (found != yard.bf16.end()) {
    std::printf("  %5.2f x BF16 (%.4f ms)", found->second / ms, found->second);
  }
  std::printf("\n");
  std::fflush(stdout);
}

void measure_yardsticks(Yardsticks& yard) {
  const std::size_t bytes = std::size_t{4} << 30;
  Array<std::uint16_t> from = random_rows(bytes / 2, 1), to(bytes / 2);
  Array<unsigned> flag(1);
  const double copy = median_time([&](int) {
    OSCAR_CUDA_CHECK(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice));
  });
  yard.copy = 2.0 * static_cast<double>(bytes) / (copy * 1e-3);
  for (const int blocks : {132 * 2, 132 * 4, 132 * 8, 132 * 16}) {
    for (const int threads : {256, 512}) {
      const double ms = median_time(
          [&](int) {
            read_kernel<<<blocks, threads>>>(reinterpret_cast<const uint4*>(from.data()),
                                             bytes / 16, flag.data());
          },
          7);
      yard.read = std::max(yard.read, static_cast<double>(bytes) / (ms * 1e-3));
    }
  }
  std::printf("copy %.1f GB/s, read %.1f GB/s\n", yard.copy * 1e-9, yard.read * 1e-9);
}

void benchmark_encode(const Yardsticks& yard) {
  const std::int64_t tokens = 131072;
  const int heads = 8, dim = 128;
  const std::size_t count = std::size_t{1} * tokens * heads * dim;
  Array<std::uint16_t> keys = random_rows(count, 2), values = random_rows(count, 3);
  Array<std::uint8_t> key_codes(count / 4), value_codes(count / 4);
  Array<float> key_scales(count / dim * 2), value_scales(count / dim * 2);
  struct Setting {
    const char* name;
    double key, value;
    ClipRule rule;
  };
  const double bytes = 2.0 * static_cast<double>(count) * (2 + 0.25 + 8.0 / dim);
  for (const Setting& s :
       {Setting{"encode K and V, no clip", 0, 0, ClipRule::exact},
        Setting{"encode K and V, exact 0.96 / 0.92", 0.96, 0.92, ClipRule::exact},
        Setting{"encode K and V, bisect 0.96 / 0.92", 0.96, 0.92, ClipRule::bisect}}) {
    const CodecSettings key{dim, dim, s.key, s.rule}, value{dim, dim, s.value, s.rule};
    EncodeJob jobs[2];
    jobs[0].settings = key;
    jobs[0].rows = ConstRows::packed(keys.data(), ElementType::bf16, tokens, heads, dim);
    jobs[0].coded = CodedRows::packed(key_codes.data(), key_scales.data(), tokens, heads, key);
    jobs[1].settings = value;
    jobs[1].rows = ConstRows::packed(values.data(), ElementType::bf16, tokens, heads, dim);
    jobs[1].coded =
        CodedRows::packed(value_codes.data(), value_scales.data(), tokens, heads, value);
    const double ms = median_time([&](int) { encode(jobs, {{Device::Kind::cuda, 0}, nullptr}); });
    print_row(yard, s.name, ms, bytes, false);
  }
}

void benchmark_rotate_encode(const Yardsticks& yard) {
  const std::int64_t tokens = 131072;
  const int heads = 8, dim = 128;
  const std::size_t count = std::size_t{1} * tokens * heads * dim;
  Array<std::uint16_t> keys = random_rows(count, 2), values = random_rows(count, 3);
  Array<std::uint8_t> key_codes(count / 4), value_codes(count / 4);
  Array<float> key_scales(count / dim * 2), value_scales(count / dim * 2);
  std::vector<float> matrix(std::size_t{8} * dim * dim);
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    matrix[i] = static_cast<float>(static_cast<int>(i * 2654435761u >> 16 & 0xff) - 128) / 800.0f;
  }
  Array<float> matrices(matrix.size());
  OSCAR_CUDA_CHECK(
      cudaMemcpy(matrices.data(), matrix.data(), matrices.bytes(), cudaMemcpyHostToDevice));
  const double bytes = 2.0 * static_cast<double>(count) * (2 + 0.25 + 8.0 / dim);
  for (const int matrix_count : {1, 8}) {
    for (const double ratio : {0.0, 0.96}) {
      const CodecSettings settings{dim, dim, ratio, ClipRule::bisect};
      EncodeJob jobs[2];
      jobs[0].rows = ConstRows::packed(keys.data(), ElementType::bf16, tokens, heads, dim);
      jobs[0].coded =
          CodedRows::packed(key_codes.data(), key_scales.data(), tokens, heads, settings);
      jobs[1].rows = ConstRows::packed(values.data(), ElementType::bf16, tokens, heads, dim);
      jobs[1].coded =
          CodedRows::packed(value_codes.data(), value_scales.data(), tokens, heads, settings);
      for (EncodeJob& job : jobs) {
        job.settings = settings;
        job.rotation = {matrices.data(), matrix_count, dim, false};
      }
      const double ms = median_time([&](int) { encode(jobs, {{Device::Kind::cuda, 0}, nullptr}); });
      const std::string name = std::string("rotate and encode K and V, R per ") +
                               (matrix_count == 1 ? "layer" : "head") +
                               (ratio == 0 ? ", no clip" : ", bisect 0.96");
      print_row(yard, name.c_str(), ms, bytes, false);
    }
  }
}

/// One layer's cache of `batch` requests, pages in random order.
struct DecodeBench {
  DecodeBench(int request_count, std::int64_t context, ScaleType scale_type)
      : batch(request_count),
        coded_tokens((context - 64 - 256) / 8 * 8),
        pages(batch * coded_tokens / 8),
        key_codes(std::size_t{1} * pages * 8 * kHeads * 32),
        value_codes(std::size_t{1} * pages * 8 * kHeads * 32),
        key_scales(std::size_t{1} * pages * 8 * kHeads * 2),
        value_scales(std::size_t{1} * pages * 8 * kHeads * 2),
        sink(random_rows(std::size_t{2} * batch * 64 * kHeads * 128, 5)),
        recent(random_rows(std::size_t{2} * batch * 264 * kHeads * 128, 6)),
        table(static_cast<std::size_t>(pages)),
        tiers(static_cast<std::size_t>(batch)) {
    codec.scale_type = scale_type;
    // Encode random rows, a slab at a time.
    const std::int64_t slab = 65536, total = pages * 8;
    Array<std::uint16_t> rows = random_rows(std::size_t{1} * slab * kHeads * 128, 7);
    for (std::int64_t begin = 0; begin < total; begin += slab) {
      const std::int64_t count = std::min(slab, total - begin);
      for (const bool key : {true, false}) {
        Int2Codec(codec).encode(
            ConstRows::packed(rows.data(), ElementType::bf16, count, kHeads, 128),
            CodedRows::packed(
                (key ? key_codes : value_codes).data() + begin * kHeads * 32,
                reinterpret_cast<char*>((key ? key_scales : value_scales).data()) +
                    begin * kHeads * 2 * static_cast<std::int64_t>(bytes_of(scale_type)),
                count, kHeads, codec),
            {{Device::Kind::cuda, 0}, nullptr});
      }
    }
    std::vector<std::int32_t> order(pages);
    for (std::int64_t i = 0; i < pages; ++i) order[i] = static_cast<std::int32_t>(i);
    std::srand(1);
    for (std::int64_t i = pages - 1; i > 0; --i) std::swap(order[i], order[std::rand() % (i + 1)]);
    OSCAR_CUDA_CHECK(cudaMemcpy(table.data(), order.data(), table.bytes(), cudaMemcpyHostToDevice));
    std::vector<RequestTiers> requests;
    for (int r = 0; r < batch; ++r) {
      const auto coded = static_cast<std::int32_t>(coded_tokens);
      requests.push_back({r, 64 + coded + 256, 64, coded});
    }
    OSCAR_CUDA_CHECK(
        cudaMemcpy(tiers.data(), requests.data(), tiers.bytes(), cudaMemcpyHostToDevice));
    OSCAR_CUDA_CHECK(cudaDeviceSynchronize());
    const std::int64_t sinks = std::int64_t{batch} * 64, recents = std::int64_t{batch} * 264;
    const auto tier = [&](const Array<std::uint16_t>& memory, std::int64_t tokens, bool key) {
      return ConstRows::packed(memory.data() + (key ? 0 : tokens * kHeads * 128), ElementType::bf16,
                               tokens, kHeads, 128);
    };
    view.key_sink = tier(sink, sinks, true);
    view.value_sink = tier(sink, sinks, false);
    view.key_recent = tier(recent, recents, true);
    view.value_recent = tier(recent, recents, false);
    view.key_coded =
        CodedRows::packed(key_codes.data(), key_scales.data(), pages * 8, kHeads, codec);
    view.value_coded =
        CodedRows::packed(value_codes.data(), value_scales.data(), pages * 8, kHeads, codec);
    view.key_codec = view.value_codec = codec;
    view.block_table = table.data();
    view.pages_per_slot = coded_tokens / 8;
    view.requests = tiers.data();
    view.count = batch;
    view.longest = 64 + coded_tokens + 256;
  }

  double bytes() const {
    const double row = 2.0 * kHeads * static_cast<double>(codec.bytes_per_row());
    return batch * (static_cast<double>(coded_tokens) * row + 320.0 * 2 * kHeads * 256 +
                    static_cast<double>(coded_tokens) / 8 * 4);
  }

  static constexpr int kHeads = 8;
  int batch;
  std::int64_t coded_tokens, pages;
  CodecSettings codec;
  Array<std::uint8_t> key_codes, value_codes;
  Array<float> key_scales, value_scales;
  Array<std::uint16_t> sink, recent;
  Array<std::int32_t> table;
  Array<RequestTiers> tiers;
  MixedCacheView view;
};

void benchmark_decode(const Yardsticks& yard) {
  const std::int64_t context = 102400;
  for (const ScaleType type : {ScaleType::fp32, ScaleType::bf16}) {
    for (const int batch : {32, 8, 1}) {
      if (type == ScaleType::bf16 && batch != 32) continue;
      // Small cases rotate among caches that together exceed the L2 several times.
      const int copies = batch == 1 ? 8 : 1;
      std::vector<std::unique_ptr<DecodeBench>> caches;
      for (int i = 0; i < copies; ++i) {
        caches.push_back(std::make_unique<DecodeBench>(batch, context, type));
      }
      Array<std::uint16_t> query = random_rows(std::size_t{1} * batch * 32 * 128, 8);
      Array<std::uint16_t> output(std::size_t{1} * batch * 32 * 128);
      Array<char> workspace(
          std::min<std::size_t>(decode_workspace_bytes(batch, 32, 128), std::size_t{1} << 30));
      DecodeAttention problem;
      problem.query = ConstRows::packed(query.data(), ElementType::bf16, batch, 32, 128);
      problem.output = MutableRows::packed(output.data(), ElementType::bf16, batch, 32, 128);
      problem.scale = 0.0883883f;
      problem.workspace = workspace.data();
      problem.workspace_bytes = workspace.bytes();
      const double ms = graph_time(
          [&](int i, cudaStream_t stream) {
            attend(caches[i % copies]->view, problem, {{Device::Kind::cuda, 0}, stream});
          },
          batch == 1 ? 32 : 4);
      const std::string name = "decode 32/8 heads x 128, context 102,400, batch " +
                               std::to_string(batch) +
                               (type == ScaleType::bf16 ? ", bf16 scales" : "");
      print_row(yard, name.c_str(), ms, caches[0]->bytes(), true,
                ("decode" + std::to_string(batch)).c_str());
    }
  }
}

void benchmark_teacher_forced(const Yardsticks& yard) {
  const int heads = 32, kv_heads = 8, dim = 128;
  for (const std::int64_t tokens : {32768, 4096}) {
    const int sequences = tokens == 4096 ? 8 : 1;
    const std::size_t total = std::size_t{1} * sequences * tokens;
    Array<std::uint16_t> query = random_rows(total * heads * dim, 9);
    Array<std::uint16_t> key = random_rows(total * kv_heads * dim, 10);
    Array<std::uint16_t> value = random_rows(total * kv_heads * dim, 11);
    Array<std::uint16_t> output(total * heads * dim);
    Array<std::uint8_t> key_codes(total * kv_heads * 32), value_codes(total * kv_heads * 32);
    Array<float> key_scales(total * kv_heads * 2), value_scales(total * kv_heads * 2);
    Array<double> errors(std::size_t{1} * heads * sequences);
    const Execution where{{Device::Kind::cuda, 0}, nullptr};
    const CodecSettings codec;
    std::vector<TeacherForcedAttention> problems;
    for (int s = 0; s < sequences; ++s) {
      const std::int64_t first = s * tokens;
      const auto rows = [&](const Array<std::uint16_t>& memory, int count) {
        return ConstRows::packed(memory.data() + first * count * dim, ElementType::bf16, tokens,
                                 count, dim);
      };
      TeacherForcedAttention p;
      p.query_exact = p.query_coded = rows(query, heads);
      p.key_exact = rows(key, kv_heads);
      p.value_exact = rows(value, kv_heads);
      const auto coded = [&](Array<std::uint8_t>& codes, Array<float>& scales) {
        return CodedRows::packed(codes.data() + first * kv_heads * 32,
                                 scales.data() + first * kv_heads * 2, tokens, kv_heads, codec);
      };
      Int2Codec(codec).encode(p.key_exact, coded(key_codes, key_scales), where);
      Int2Codec(codec).encode(p.value_exact, coded(value_codes, value_scales), where);
      p.key_coded = coded(key_codes, key_scales);
      p.value_coded = coded(value_codes, value_scales);
      p.key_codec = p.value_codec = codec;
      p.output_exact = p.output_coded = MutableRows::packed(output.data() + first * heads * dim,
                                                            ElementType::bf16, tokens, heads, dim);
      p.scale = 0.0883883f;
      problems.push_back(p);
    }
    for (const bool sums : {false, true}) {
      for (int s = 0; s < sequences; ++s) {
        problems[s].logit_error_sums = sums ? errors.data() + s * heads : nullptr;
      }
      const double ms = median_time([&](int) { attend(problems, where); }, 3, 1);
      const std::string name = "teacher-forced " + std::to_string(sequences) + " x " +
                               std::to_string(tokens) + (sums ? ", error sums" : "");
      const double bytes = static_cast<double>(total) * dim * 2 * (2 * heads + 2.3 * kv_heads);
      print_row(yard, name.c_str(), ms, bytes, true, tokens == 4096 ? "causal4096" : "causal32768");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Yardsticks yard;
  std::string only;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--bf16") == 0 && i + 1 < argc) {
      // "name milliseconds" a line, as scripts/device-bf16-attention.py prints them.
      if (std::FILE* file = std::fopen(argv[++i], "r")) {
        char name[64];
        double milliseconds = 0;
        while (std::fscanf(file, "%63s %lf", name, &milliseconds) == 2) {
          yard.bf16[name] = milliseconds;
        }
        std::fclose(file);
      }
    } else {
      only = argv[i];
    }
  }
  measure_yardsticks(yard);
  if (only.empty() || only == "encode") benchmark_encode(yard);
  if (only.empty() || only == "rotate") benchmark_rotate_encode(yard);
  if (only.empty() || only == "decode") benchmark_decode(yard);
  if (only.empty() || only == "teacher") benchmark_teacher_forced(yard);
  return 0;
}
