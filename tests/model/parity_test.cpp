// Final logits against transformers', on the tiny checkpoints that make_checkpoints.py wrote.
#include <ATen/ATen.h>

#include <cstring>

#include "oscar/core/atomic_file.h"
#include "oscar/model/decoder_stream.h"
#include "support.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

template <typename T>
std::vector<T> read_array(const fs::path& path) {
  const std::string bytes = read_file(path);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

struct Case {
  std::string checkpoint;
  std::string device;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) {
    return out << c.checkpoint << " on " << c.device;
  }
};

class Parity : public testing::TestWithParam<Case> {};

TEST_P(Parity, WithTransformers) {
  const fs::path folder =
      test::folder("OSCAR_CHECKPOINTS", OSCAR_CHECKPOINTS) / GetParam().checkpoint;
  OSCAR_NEEDS(folder);
  if (GetParam().device == "cuda") OSCAR_NEEDS_CUDA();
  constexpr std::int64_t kSequences = 2, kLength = 48, kVocabulary = 64;
  const auto ids = read_array<TokenId>(folder / "tokens.i32");
  TokenBatch batch;
  batch.sequence_length = kLength;
  for (std::int64_t s = 0; s < kSequences; ++s) {
    batch.sequences.emplace_back(ids.begin() + s * kLength, ids.begin() + (s + 1) * kLength);
  }
  auto expected_values = read_array<float>(folder / "logits.f32");
  const at::Tensor expected =
      at::from_blob(expected_values.data(), {kSequences, kLength, kVocabulary}, at::kFloat);

  const auto checkpoint = Checkpoint::open(folder);
  DecoderStream stream(*checkpoint, batch, {.device = parse_device(GetParam().device)});
  while (stream.next_layer() < stream.layer_count()) stream.run_layer();
  const double largest = expected.abs().max().item().toDouble();
  for (std::int64_t s = 0; s < kSequences; ++s) {
    const at::Tensor found = stream.logits(0, s, 0, kLength).to(at::kCPU);
    EXPECT_LE((found - expected[s]).abs().max().item().toDouble(), 1e-4 * largest)
        << "sequence " << s;
  }
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const char* device : {"cpu", "cuda"}) {
    for (const char* name :
         {"llama_default", "llama_llama3", "llama_linear", "llama_yarn", "llama_yarn_mscale",
          "llama_bias", "mistral", "qwen2", "qwen3", "qwen3_yarn"}) {
      result.push_back({name, device});
    }
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Model, Parity, testing::ValuesIn(cases()));

}  // namespace
}  // namespace oscar
