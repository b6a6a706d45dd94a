#include "oscar/checkpoint/gguf.h"

#include <random>

#include "oscar/checkpoint/checkpoint.h"
#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "oscar/core/float16.h"
#include "support.h"

namespace oscar {
namespace {

std::vector<float> values(const TensorView& tensor) {
  std::vector<float> result(static_cast<std::size_t>(tensor.elements()));
  read_rows(tensor, 0, tensor.rows(), result.data());
  return result;
}

class Decodes : public testing::TestWithParam<const char*> {};

TEST_P(Decodes, AsTheGgufPackage) {
  const GgufFile file(test::fixture("checkpoint/quantised.gguf"));
  const TensorView& tensor = file.tensors().at(GetParam());
  EXPECT_STREQ(name_of(tensor.type), GetParam());
  const auto found = values(tensor),
             expected = values(file.tensors().at(std::string("expected.") + GetParam()));
  ASSERT_EQ(found.size(), 1024u);
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], expected[i]) << i;

  std::vector<std::uint16_t> rounded(512);
  read_rows_bfloat16(tensor, 1, 1, rounded.data());
  for (std::size_t i = 0; i < 512; ++i)
    ASSERT_EQ(rounded[i], float_to_bfloat16(expected[512 + i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Gguf, Decodes,
                         testing::Values("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0",
                                         "Q5_1", "Q4_K", "Q5_K", "Q6_K"));

TEST(Gguf, ReadsMetadata) {
  const GgufFile file(test::fixture("checkpoint/quantised.gguf"));
  EXPECT_EQ(file.get<std::int64_t>("test.number"), 7);
  EXPECT_EQ(file.get<std::vector<std::string_view>>("test.words"),
            (std::vector<std::string_view>{"one", "two"}));
  EXPECT_EQ(file.find_as<double>("absent"), std::nullopt);
  EXPECT_THROW_WITH(file.get<double>("test.number"), InputError, "wrong type");
  EXPECT_THROW_WITH(file.get<double>("absent"), InputError, "missing");
}

TEST(Gguf, BringsRowsToHuggingFaceOrder) {
  const auto gguf = Checkpoint::open(test::fixture("checkpoint/tiny-llama.gguf"));
  const auto folder = Checkpoint::open(test::fixture("checkpoint/tiny-llama"));
  for (const char* part : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    const std::string name = std::string("model.layers.1.self_attn.") + part + ".weight";
    EXPECT_EQ(values(gguf->tensor(name)), values(folder->tensor(name))) << name;
  }
  EXPECT_EQ(values(gguf->tensor("lm_head.weight")),
            values(folder->tensor("model.embed_tokens.weight")));
  EXPECT_EQ(gguf->config().head_dim, 8);
  EXPECT_TRUE(gguf->config().tied_embeddings);
}

TEST(Gguf, ReadsPartOfATensor) {
  const auto gguf = Checkpoint::open(test::fixture("checkpoint/tiny-llama.gguf"));
  const TensorView& tensor = gguf->tensor("model.layers.0.self_attn.q_proj.weight");
  const auto all = values(tensor);
  std::vector<float> part(2 * 32);
  read_rows(tensor, 5, 2, part.data());
  EXPECT_EQ(part, std::vector<float>(all.begin() + 5 * 32, all.begin() + 7 * 32));
}

TEST(Gguf, RefusesOtherFiles) {
  const test::TemporaryFolder folder;
  write_file(folder / "a.gguf", "GGML but not");
  EXPECT_THROW_WITH(GgufFile(folder / "a.gguf"), InputError, "not a GGUF file");
  const std::string whole = read_file(test::fixture("checkpoint/tiny-llama.gguf"));
  write_file(folder / "short.gguf", whole.substr(0, whole.size() - 64));
  EXPECT_THROW_WITH(GgufFile(folder / "short.gguf"), InputError, "incomplete download");
  write_file(folder / "header.gguf", whole.substr(0, 200));
  EXPECT_THROW_WITH(GgufFile(folder / "header.gguf"), InputError, "more than its");
  std::string version = whole;
  version[4] = 9;
  write_file(folder / "version.gguf", version);
  EXPECT_THROW_WITH(GgufFile(folder / "version.gguf"), InputError, "version 9");
}

/// Whatever is done to the header, opening ends in a checkpoint or an InputError.
TEST(Gguf, SurvivesDamage) {
  const test::TemporaryFolder folder;
  const std::string whole = read_file(test::fixture("checkpoint/tiny-llama.gguf"));
  std::mt19937 random(11);
  for (int i = 0; i < 1500; ++i) {
    std::string damaged = whole;
    for (unsigned n = random() % 4 + 1; n-- > 0;)
      damaged[random() % 2000] = static_cast<char>(random());
    if (i % 5 == 0) damaged.resize(random() % damaged.size() + 1);
    test::write_quickly(folder / "damaged.gguf", damaged);
    try {
      Checkpoint::open(folder / "damaged.gguf");
    } catch (const InputError&) {  // the only way in which a bad file may end
    }
  }
}

}  // namespace
}  // namespace oscar
