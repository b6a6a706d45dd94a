#include "oscar/text/prompts.h"

#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "support.h"

namespace oscar {
namespace {

class Prompts : public testing::Test {
 protected:
  std::filesystem::path file(const std::string& name, const std::string& content) {
    write_file(folder_ / name, content);
    return folder_ / name;
  }
  TokenBatch load(const PromptOptions& options) const {
    return load_prompts(tokenizer_, ChatTemplate::load("chatml", ""), options);
  }
  std::string text(const std::vector<TokenId>& tokens) const { return tokenizer_.decode(tokens); }

  test::TemporaryFolder folder_;
  Tokenizer tokenizer_ = Tokenizer::load(test::fixture("text/tokenizer.json"));
};

TEST_F(Prompts, CutsATextIntoConsecutiveSequences) {
  const std::string content =
      "The cache keeps what attention has read, and two bits then suffice. 1789";
  const auto all = tokenizer_.encode(content);
  const TokenBatch batch =
      load({.files = {file("a.txt", content)}, .tokens = 20, .sequence_length = 8});
  ASSERT_EQ(batch.sequences.size(), 3u);
  EXPECT_EQ(batch.sequences[1], std::vector<TokenId>(all.begin() + 8, all.begin() + 16));
  EXPECT_EQ(batch.sequences[2].size(), 4u);
  EXPECT_EQ(batch.tokens(), 20);
}

TEST_F(Prompts, SplitsABatchWhereReadingLessWouldHaveEnded) {
  const auto path =
      file("a.txt", "The cache keeps what attention has read, and two bits then suffice. 1789");
  const TokenBatch all = load({.files = {path}, .tokens = 21, .sequence_length = 8});
  const TokenBatch less = load({.files = {path}, .tokens = 13, .sequence_length = 8});
  const auto [first, rest] = split(all, 13);
  EXPECT_EQ(first.sequences, less.sequences);
  EXPECT_EQ(first.sha256(), less.sha256());
  EXPECT_EQ(rest.tokens(), 8);
  EXPECT_EQ(rest.sequences.front(),
            (std::vector<TokenId>(all.sequences[1].begin() + 5, all.sequences[1].end())));
  EXPECT_EQ(rest.sequence_length, 8);
  EXPECT_THROW_WITH(split(all, 21), InputError, "21");
}

TEST_F(Prompts, GivesEachDocumentASequence) {
  const auto path = file("a.jsonl",
                         "{\"text\": \"The cache keeps what attention has read\"}\n\n"
                         "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n"
                         "{\"prompt\": \"p\", \"completion\": \"c\"}");
  const TokenBatch batch = load({.files = {path}, .tokens = 0, .sequence_length = 64});
  ASSERT_EQ(batch.sequences.size(), 3u);
  EXPECT_EQ(text(batch.sequences[1]), "<|im_start|>user\nhi<|im_end|>\n");
  EXPECT_EQ(text(batch.sequences[2]),
            "<|im_start|>user\np<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n");
  EXPECT_EQ(load({.files = {path}, .tokens = 0, .sequence_length = 4}).sequences[0].size(), 4u);
}

TEST_F(Prompts, InterleavesFilesAndShufflesBySeed) {
  const auto documents = [](const std::string& letter) {
    std::string lines;
    for (int i = 0; i < 4; ++i) lines += "{\"text\": \"" + letter + std::to_string(i) + "\"}\n";
    return lines;
  };
  PromptOptions options{.files = {file("a.jsonl", documents("a")), file("b.jsonl", documents("b"))},
                        .tokens = 0};
  const auto texts = [&] {
    std::string joined;
    for (const auto& sequence : load(options).sequences) joined += text(sequence) + " ";
    return joined;
  };
  EXPECT_EQ(texts(), "a0 b0 a1 b1 a2 b2 a3 b3 ");
  options.seed = 1;
  const std::string first = texts();
  EXPECT_NE(first, "a0 b0 a1 b1 a2 b2 a3 b3 ");
  EXPECT_EQ(texts(), first);
  options.seed = 2;
  EXPECT_NE(texts(), first);
}

TEST_F(Prompts, HashFollowsTheTokens) {
  const auto path =
      file("a.txt", "The cache keeps what attention has read, and two bits then suffice.");
  const auto hash = [&](std::int64_t tokens, std::int64_t length) {
    return load({.files = {path}, .tokens = tokens, .sequence_length = length}).sha256();
  };
  EXPECT_EQ(hash(16, 8), hash(16, 8));
  EXPECT_NE(hash(16, 8), hash(15, 8));
  EXPECT_NE(hash(16, 8), hash(16, 4));
}

TEST_F(Prompts, TheBuiltInSetIsThere) {
  const TokenBatch batch = load({.tokens = 0, .sequence_length = 1 << 20});
  EXPECT_GE(batch.sequences.size(), 30u);
  EXPECT_GE(batch.tokens(), 60000);
}

TEST_F(Prompts, SaysWhatIsWrongAndWhere) {
  const auto refuses = [&](const std::string& name, const std::string& content,
                           const char* message) {
    const PromptOptions options{.files = {file(name, content)}, .tokens = 4, .sequence_length = 8};
    EXPECT_THROW_WITH(load(options), InputError, message);
  };
  refuses("a.txt", "", "the file is empty");
  refuses("a.jsonl", " \n\n", "the file is empty");
  refuses("a.txt", "fine\nfine\nnot \xff fine", "line 3: is not valid UTF-8 at byte 14");
  refuses("a.jsonl", "{\"text\": \"a\"}\n{\"text\": ", "a.jsonl, line 2: is not valid JSON");
  refuses("a.jsonl", "{\"txt\": \"a\"}", "neither \"text\" nor");
  refuses("a.jsonl", "{\"text\": 3}", "wrong type");
  refuses("a.jsonl", "{\"messages\": [{\"role\": \"user\"}]}", "\"content\" is missing");
  refuses("a.jsonl", "{\"messages\": []}", "not a list of messages");
  refuses("a.csv", "a", ".txt (one document) or .jsonl");
  refuses("a.txt", "a", "hold 1 tokens, but --tokens 4");
  EXPECT_THROW_WITH(load({.files = {folder_ / "absent.txt"}}), InputError, "does not exist");
}

}  // namespace
}  // namespace oscar
