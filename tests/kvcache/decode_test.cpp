#include <cmath>
#include <numeric>

#include "cache_model.h"
#include "device_memory.h"
#include "oscar/core/error.h"
#include "oscar/core/float16.h"
#include "oscar/kvcache/attention.h"
#include "run_codec.h"
#include "support.h"
#include "targets.h"

namespace oscar::test {
namespace {

struct DecodeCase {
  std::vector<std::int64_t> prompts;
  int kv_heads = 2, grouped = 4, dim = 128, value_dim = 128, groups = 1;
  ScaleType scale_type = ScaleType::fp32;
  int sink = 64, recent = 256;
  std::int64_t sliding = 0;
  float soft_cap = 0;
  bool sink_logits = false, fp32_output = false;
  int chunks = 1, steps = 2;
};

void PrintTo(const DecodeCase& c, std::ostream* out) {
  *out << "prompts";
  for (const std::int64_t prompt : c.prompts) *out << " " << prompt;
  *out << ", heads " << c.kv_heads << " x " << c.grouped << ", dims " << c.dim << "/" << c.value_dim
       << ", groups " << c.groups << ", " << name_of(c.scale_type) << ", sink " << c.sink
       << ", recent " << c.recent << ", sliding " << c.sliding << ", soft cap " << c.soft_cap
       << (c.sink_logits ? ", sink logits" : "") << (c.fp32_output ? ", fp32" : ", bf16") << ", "
       << c.chunks << " chunks, " << c.steps << " steps";
}

MixedCacheSettings settings_of(const DecodeCase& c) {
  MixedCacheSettings s;
  s.layers = 2;
  s.kv_heads = c.kv_heads;
  s.key = {c.dim, c.dim / c.groups, 0.96, ClipRule::exact, c.scale_type};
  s.value = {c.value_dim, c.value_dim / c.groups, 0.92, ClipRule::exact, c.scale_type};
  s.sink = c.sink;
  s.recent = c.recent;
  s.requests = static_cast<int>(c.prompts.size());
  s.tokens = *std::max_element(c.prompts.begin(), c.prompts.end()) + c.steps;
  return s;
}

/// A cache and the model of it, fed with the same rows.
class Run {
 public:
  Run(const Device& device, const DecodeCase& c, unsigned seed)
      : device_(device),
        case_(c),
        cache_(settings_of(c), {device, nullptr}),
        model_(settings_of(c)),
        random_(seed) {
    // Values that share an offset: what the zeros have to carry.
    offset_ = std::normal_distribution<float>(0, 1)(random_);
    std::vector<int> all(c.prompts.size());
    std::iota(all.begin(), all.end(), 0);
    requests_ = all;
    for (const std::int64_t prompt : c.prompts) model_.open(cache_.open(prompt), prompt);
    for (int chunk = 0; chunk < c.chunks; ++chunk) {
      std::vector<int> requests;
      std::vector<std::int64_t> tokens;
      for (const int r : all) {
        const std::int64_t begin = c.prompts[r] * chunk / c.chunks;
        const std::int64_t end = c.prompts[r] * (chunk + 1) / c.chunks;
        if (end == begin) continue;
        requests.push_back(r);
        tokens.push_back(end - begin);
      }
      cache_.begin_prefill(requests, tokens);
      write(requests, tokens, false);
    }
  }

  /// One decode step; the output's relative error.
  double step() {
    cache_.begin_decode(requests_);
    write(requests_, std::vector<std::int64_t>(requests_.size(), 1), true);
    const int heads = case_.kv_heads * case_.grouped;
    const auto count = static_cast<std::int64_t>(requests_.size());
    const std::vector<float> query = rows(count * heads * case_.dim, 0);
    std::vector<float> extra;
    if (case_.sink_logits) extra = random_rows(heads, random_);
    DeviceArray<std::uint16_t> query_memory(device_, to_bfloat16(query));
    DeviceArray<float> extra_memory(device_, extra);
    const std::size_t outputs = count * heads * case_.value_dim;
    DeviceArray<float> fp32(device_, outputs);
    DeviceArray<std::uint16_t> bf16(device_, outputs);
    DecodeAttention problem;
    problem.query =
        ConstRows::packed(query_memory.data(), ElementType::bf16, count, heads, case_.dim);
    problem.output =
        case_.fp32_output
            ? MutableRows::packed(fp32.data(), ElementType::fp32, count, heads, case_.value_dim)
            : MutableRows::packed(bf16.data(), ElementType::bf16, count, heads, case_.value_dim);
    problem.scale = 1.5f / std::sqrt(static_cast<float>(case_.dim));
    problem.soft_cap = case_.soft_cap;
    problem.sliding = case_.sliding;
    problem.sink_logits = case_.sink_logits ? extra_memory.data() : nullptr;
    cache_.attend(1, problem);
    const std::vector<float> output =
        case_.fp32_output ? fp32.values() : from_bfloat16(bf16.values());
    std::vector<double> expected;
    for (const int r : requests_) {
      const std::vector<float> mine(query.begin() + std::ptrdiff_t{r} * heads * case_.dim,
                                    query.begin() + std::ptrdiff_t{r + 1} * heads * case_.dim);
      const std::vector<double> part = model_.attend(r, mine, heads, problem, extra);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    return relative_error(output, expected);
  }

  MixedCache& cache() { return cache_; }
  const CacheModel& model() const { return model_; }

 private:
  std::vector<float> rows(std::size_t count, float offset) {
    std::vector<float> values = random_rows(count, random_);
    for (float& value : values) value = round_to_bfloat16(value + offset);
    return values;
  }

  void write(const std::vector<int>& requests, const std::vector<std::int64_t>& tokens,
             bool decode) {
    const std::int64_t total = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
    const std::vector<float> keys = rows(total * case_.kv_heads * case_.dim, 0);
    const std::vector<float> values = rows(total * case_.kv_heads * case_.value_dim, offset_);
    DeviceArray<std::uint16_t> key_memory(device_, to_bfloat16(keys));
    DeviceArray<std::uint16_t> value_memory(device_, to_bfloat16(values));
    for (int layer = 0; layer < 2; ++layer) {
      cache_.write(
          layer,
          ConstRows::packed(key_memory.data(), ElementType::bf16, total, case_.kv_heads, case_.dim),
          ConstRows::packed(value_memory.data(), ElementType::bf16, total, case_.kv_heads,
                            case_.value_dim));
    }
    auto key = keys.begin();
    auto value = values.begin();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      std::vector<CacheModel::Token> added;
      for (std::int64_t t = 0; t < tokens[i]; ++t) {
        const auto key_end = key + case_.kv_heads * case_.dim;
        const auto value_end = value + case_.kv_heads * case_.value_dim;
        added.push_back({{key, key_end}, {value, value_end}});
        key = key_end;
        value = value_end;
      }
      model_.append(requests[i], added, decode);
    }
    if (device_.is_cuda()) key_memory.values();  // waits: the memory goes
  }

  Device device_;
  DecodeCase case_;
  MixedCache cache_;
  CacheModel model_;
  std::mt19937 random_;
  std::vector<int> requests_;
  float offset_ = 0;
};

void expect_model(const Device& device, const DecodeCase& c, unsigned seed) {
  Run run(device, c, seed);
  for (int step = 0; step < c.steps; ++step) {
    const double error = run.step();
    // On the CPU codes meet queries and weights of 16 bits; on CUDA, fp16.
    ASSERT_LE(error,
              device.is_cuda() ? (c.fp32_output ? 2e-3 : 4e-3) : (c.fp32_output ? 1e-4 : 3e-3))
        << testing::PrintToString(c) << ", step " << step << ", seed " << seed;
    for (std::size_t r = 0; r < c.prompts.size(); ++r) {
      const CacheModel::Request& expected = run.model().request(static_cast<int>(r));
      const RequestTiers& tiers = run.cache().tiers(static_cast<int>(r));
      ASSERT_EQ(tiers.sink, static_cast<int>(expected.sink.size()));
      ASSERT_EQ(tiers.coded, static_cast<int>(expected.coded.size()));
      ASSERT_EQ(tiers.length - tiers.sink - tiers.coded, static_cast<int>(expected.recent.size()));
    }
  }
}

std::vector<DecodeCase> decode_cases() {
  std::vector<DecodeCase> cases;
  cases.push_back({.prompts = {1}, .steps = 3});
  cases.push_back({.prompts = {63, 64, 65, 1}, .fp32_output = true, .steps = 9});
  cases.push_back(
      {.prompts = {311, 312, 319, 320, 321, 328, 500}, .fp32_output = true, .steps = 10});
  cases.push_back({.prompts = {700, 30}, .fp32_output = true, .chunks = 5, .steps = 20});
  for (const auto& [dim, value_dim] : {std::pair{64, 64},
                                       {80, 80},
                                       {96, 96},
                                       {128, 128},
                                       {192, 128},
                                       {256, 256},
                                       {512, 512},
                                       {64, 128}}) {
    cases.push_back({.prompts = {411, 90},
                     .dim = dim,
                     .value_dim = value_dim,
                     .sink = 8,
                     .recent = 16,
                     .fp32_output = true});
  }
  for (const int grouped : {1, 2, 3, 7, 8, 9, 16}) {
    cases.push_back({.prompts = {333},
                     .grouped = grouped,
                     .dim = 64,
                     .value_dim = 64,
                     .sink = 8,
                     .recent = 32,
                     .fp32_output = true});
  }
  for (const ScaleType type : {ScaleType::bf16, ScaleType::fp16}) {
    cases.push_back({.prompts = {333, 40}, .scale_type = type, .sink = 8, .recent = 32});
    cases.push_back(
        {.prompts = {333, 40}, .groups = 4, .scale_type = type, .sink = 8, .recent = 32});
  }
  for (const std::int64_t sliding : {1, 20, 100, 130, 4000}) {
    cases.push_back(
        {.prompts = {333, 60}, .sink = 24, .recent = 64, .sliding = sliding, .fp32_output = true});
  }
  cases.push_back({.prompts = {333, 60},
                   .kv_heads = 9,
                   .sink = 0,
                   .recent = 0,
                   .soft_cap = 2,
                   .sink_logits = true,
                   .fp32_output = true});
  return cases;
}

class Decode : public testing::TestWithParam<DecodeCase> {};

TEST_P(Decode, CpuEqualsModel) {
  for (const std::int64_t target : cpu_targets()) {
    const WithTarget limit(target);
    SCOPED_TRACE(hwy::TargetName(target));
    expect_model(kCpu, GetParam(), 41);
  }
}

TEST_P(Decode, CudaEqualsModel) {
  OSCAR_NEEDS_CUDA();
  expect_model(kCuda, GetParam(), 43);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Decode, testing::ValuesIn(decode_cases()));

/// Ragged batches of all head dimensions and ratios, lengths 1 to 5,000.
TEST(DecodeRandomShapes, CudaEqualsModel) {
  OSCAR_NEEDS_CUDA();
  std::mt19937 random(47);
  const int dims[] = {64, 80, 96, 128, 192, 256, 512};
  const auto below = [&](int end) { return static_cast<int>(random() % end); };
  for (int trial = 0; trial < 500; ++trial) {
    DecodeCase c;
    const int requests = 1 + below(4);
    for (int r = 0; r < requests; ++r) {
      c.prompts.push_back(
          static_cast<std::int64_t>(std::exp(std::log(5000.0) * (random() % 1000) / 999.0)));
    }
    c.kv_heads = 1 + below(3);
    c.grouped = 1 + below(16);
    c.dim = dims[below(7)];
    c.value_dim = below(2) == 0 ? c.dim : dims[below(7)];
    if (c.dim == 192 && below(2) == 0) c.value_dim = 128;
    c.scale_type = static_cast<ScaleType>(below(3));
    c.sink = 8 * below(9);
    c.recent = 8 * below(33);
    c.sliding = below(3) == 0 ? 1 + below(3000) : 0;
    c.soft_cap = below(3) == 0 ? 3.0f : 0.0f;
    c.sink_logits = below(3) == 0;
    c.fp32_output = below(2) == 0;
    c.chunks = 1 + below(3);
    c.steps = 1;
    expect_model(kCuda, c, 1000 + trial);
    if (HasFatalFailure()) return;
  }
}

/// A view by hand, demotion after every token: decode must equal the teacher-forced form.
void expect_teacher_forced(const Device& device) {
  const int tokens = 700, kv_heads = 2, heads = 8, dim = 128;
  const MixedWindow window;
  std::mt19937 random(53);
  const auto bits = [&](int count) {
    return to_bfloat16(random_rows(std::size_t{1} * tokens * count * dim, random));
  };
  const std::vector<std::uint16_t> q = bits(heads), k = bits(kv_heads), v = bits(kv_heads);
  const CodecSettings codec{dim, dim, 0.96, ClipRule::bisect};
  const Encoded keys = run_encode(device, codec, k, kv_heads);
  const Encoded values = run_encode(device, codec, v, kv_heads);
  DeviceArray<std::uint16_t> query(device, q), key(device, k), value(device, v);
  DeviceArray<std::uint8_t> key_codes(device, keys.codes), key_scales(device, keys.scales_zeros);
  DeviceArray<std::uint8_t> value_codes(device, values.codes),
      value_scales(device, values.scales_zeros);
  const auto rows = [&](DeviceArray<std::uint16_t>& memory, int count) {
    return ConstRows::packed(memory.data(), ElementType::bf16, tokens, count, dim);
  };
  DeviceArray<float> forced(device, std::size_t{1} * tokens * heads * dim);
  TeacherForcedAttention problem;
  problem.query_exact = problem.query_coded = rows(query, heads);
  problem.key_exact = rows(key, kv_heads);
  problem.value_exact = rows(value, kv_heads);
  problem.key_coded =
      CodedRows::packed(key_codes.data(), key_scales.data(), tokens, kv_heads, codec);
  problem.value_coded =
      CodedRows::packed(value_codes.data(), value_scales.data(), tokens, kv_heads, codec);
  problem.key_codec = problem.value_codec = codec;
  problem.output_exact = problem.output_coded =
      MutableRows::packed(forced.data(), ElementType::fp32, tokens, heads, dim);
  problem.scale = 0.088f;
  problem.window = window;
  attend(problem, {device, nullptr});
  const std::vector<float> expected = forced.values();

  // Each position is a request whose slot shares the rows: places are tokens, pages shifted by the
  // sink.
  std::vector<RequestTiers> tiers;
  for (int t = 0; t < tokens; ++t) {
    const int sink = std::min<int>(t + 1, static_cast<int>(window.sink));
    const int coded = std::max<int>(0, t + 1 - static_cast<int>(window.recent) - sink);
    tiers.push_back({0, t + 1, sink, coded});
  }
  std::vector<std::int32_t> table(tokens / kPageTokens);
  for (std::size_t i = 0; i < table.size(); ++i) {
    table[i] = static_cast<std::int32_t>(i + window.sink / kPageTokens);
  }
  DeviceArray<RequestTiers> requests(device, tiers);
  DeviceArray<std::int32_t> block_table(device, table);
  MixedCacheView view;
  view.key_sink = rows(key, kv_heads);
  view.value_sink = rows(value, kv_heads);
  view.key_recent = rows(key, kv_heads);
  view.value_recent = rows(value, kv_heads);
  view.key_recent.data = key.data() + window.sink * kv_heads * dim;
  view.value_recent.data = value.data() + window.sink * kv_heads * dim;
  view.key_coded = problem.key_coded;
  view.value_coded = problem.value_coded;
  view.key_codec = view.value_codec = codec;
  view.sink_places = static_cast<int>(window.sink);
  view.ring_places = tokens;
  view.block_table = block_table.data();
  view.pages_per_slot = static_cast<std::int64_t>(table.size());
  view.requests = requests.data();
  view.count = tokens;
  view.longest = tokens;
  DeviceArray<float> decoded(device, expected.size());
  DecodeAttention step;
  step.query = rows(query, heads);
  step.output = MutableRows::packed(decoded.data(), ElementType::fp32, tokens, heads, dim);
  step.scale = problem.scale;
  attend(view, step, {device, nullptr});
  EXPECT_LE(relative_error(decoded.values(), {expected.begin(), expected.end()}),
            device.is_cuda() ? 4e-3 : 1e-4);
}

TEST(DecodeTokenByToken, CpuEqualsTeacherForced) {
  expect_teacher_forced(kCpu);
}

TEST(DecodeTokenByToken, CudaEqualsTeacherForced) {
  OSCAR_NEEDS_CUDA();
  expect_teacher_forced(kCuda);
}

}  // namespace
}  // namespace oscar::test
