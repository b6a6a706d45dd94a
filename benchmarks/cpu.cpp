// Times the CPU back end on as many threads as OMP_NUM_THREADS says; the label names the vector
// instructions that ran. Bytes are those of the bf16 input for encode, of the cache for decode.

#include <benchmark/benchmark.h>
#include <hwy/targets.h>

#include <cmath>
#include <random>
#include <vector>

#include "oscar/core/float16.h"
#include "oscar/kvcache/mixed_cache.h"
#include "oscar/kvcache/rotate.h"

namespace {

using namespace oscar;

std::vector<std::uint16_t> random_rows(std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> rows(count);
  for (std::uint16_t& value : rows) value = float_to_bfloat16(normal(random));
  return rows;
}

void label(benchmark::State& state) {
  state.SetLabel(hwy::TargetName(hwy::SupportedTargets() & -hwy::SupportedTargets()));
}

void encode(benchmark::State& state, double ratio, ClipRule rule, bool rotate) {
  constexpr std::int64_t kTokens = 4096;
  constexpr int kHeads = 8, kDim = 128;
  const std::size_t count = std::size_t{kTokens} * kHeads * kDim;
  const std::vector<std::uint16_t> rows = random_rows(count);
  std::vector<std::uint16_t> rotated(rotate ? count : 0);
  std::vector<float> matrix(std::size_t{kDim} * kDim);
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    matrix[i] = std::sin(static_cast<float>(i)) / std::sqrt(static_cast<float>(kDim) / 2);
  }
  std::vector<std::uint8_t> codes(count / 4);
  std::vector<float> scales(count / kDim * 2);
  const CodecSettings settings{kDim, kDim, ratio, rule};
  const ConstRows input = ConstRows::packed(rows.data(), ElementType::bf16, kTokens, kHeads, kDim);
  const MutableRows middle =
      MutableRows::packed(rotated.data(), ElementType::bf16, kTokens, kHeads, kDim);
  for (auto _ : state) {
    if (rotate) rotate_rows(input, {matrix.data(), 1, kDim}, middle);
    Int2Codec(settings).encode(
        rotate ? ConstRows(middle) : input,
        CodedRows::packed(codes.data(), scales.data(), kTokens, kHeads, settings));
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(2 * count));
  label(state);
}
BENCHMARK_CAPTURE(encode, no_clip, 0.0, ClipRule::exact, false)->UseRealTime();
BENCHMARK_CAPTURE(encode, exact, 0.96, ClipRule::exact, false)->UseRealTime();
BENCHMARK_CAPTURE(encode, bisect, 0.96, ClipRule::bisect, false)->UseRealTime();
BENCHMARK_CAPTURE(encode, rotated_exact, 0.96, ClipRule::exact, true)->UseRealTime();

void decode(benchmark::State& state) {
  constexpr std::int64_t kTokens = 32768;
  constexpr int kHeads = 8, kGrouped = 4, kDim = 128;
  MixedCacheSettings settings;
  settings.kv_heads = kHeads;
  settings.tokens = kTokens;
  MixedCache cache(settings);
  const std::vector<std::uint16_t> rows = random_rows(std::size_t{kTokens} * kHeads * kDim);
  const int request = cache.open(kTokens);
  cache.begin_prefill(std::vector{request}, std::vector{kTokens});
  const ConstRows view = ConstRows::packed(rows.data(), ElementType::bf16, kTokens, kHeads, kDim);
  cache.write(0, view, view);
  std::vector<std::uint16_t> output(std::size_t{kHeads} * kGrouped * kDim);
  DecodeAttention problem;
  problem.query = ConstRows::packed(rows.data(), ElementType::bf16, 1, kHeads * kGrouped, kDim);
  problem.output =
      MutableRows::packed(output.data(), ElementType::bf16, 1, kHeads * kGrouped, kDim);
  problem.scale = 0.088f;
  for (auto _ : state) cache.attend(0, problem);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(cache.bytes_in_use()));
  label(state);
}
BENCHMARK(decode)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
