#include "oscar/text/tokenizer.h"

#include <chrono>

#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "oscar/core/json.h"
#include "support.h"
#include "text/pre_tokenizer.h"
#include "text/unicode.h"

namespace oscar {
namespace {

Tokenizer fixture_tokenizer() {
  return Tokenizer::load(test::fixture("text/tokenizer.json"));
}

TEST(Tokenizer, EncodesAndDecodesAsHuggingFace) {
  const Tokenizer tokenizer = fixture_tokenizer();
  for (const Json& c : read_json(test::fixture("text/expected.json"))) {
    const auto text = c.at("text").get<std::string>();
    const auto ids = tokenizer.encode(text);
    EXPECT_EQ(ids, c.at("ids").get<std::vector<TokenId>>()) << text;
    EXPECT_EQ(tokenizer.decode(ids), c.at("decoded").get<std::string>()) << text;
  }
}

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer tokenizer = fixture_tokenizer();
  const auto end = tokenizer.find_token("<|end|>");
  ASSERT_TRUE(end);
  EXPECT_EQ(tokenizer.decode({*end}), "<|end|>");
  EXPECT_EQ(tokenizer.decode({*end}, true), "");
  EXPECT_EQ(tokenizer.find_token("no such token"), std::nullopt);
  EXPECT_THROW_WITH(tokenizer.decode({1 << 20}), InputError, "not in the vocabulary");
}

TEST(Tokenizer, PointsAtInvalidUtf8) {
  EXPECT_THROW_WITH(fixture_tokenizer().encode("abc\xff"), InputError, "byte 3");
  EXPECT_THROW_WITH(fixture_tokenizer().encode("\xe4\xbd"), InputError, "byte 0");
}

/// Runs that would overflow a stack or take quadratic time in a careless implementation.
TEST(Tokenizer, TakesLongRunsInItsStride) {
  const Tokenizer tokenizer = fixture_tokenizer();
  const auto start = std::chrono::steady_clock::now();
  for (const char* unit : {"a", " ", "\n", "ab", "1", "!"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(Tokenizer, FingerprintFollowsWhatMatters) {
  const test::TemporaryFolder folder;
  Json json = read_json(test::fixture("text/tokenizer.json"));
  const auto fingerprint = [&](const Json& value) {
    write_file(folder / "tokenizer.json", value.dump());
    return Tokenizer::load(folder.path()).fingerprint();
  };
  const std::string original = fingerprint(json);
  EXPECT_EQ(fingerprint(json), original);
  json["normalizer"] = nullptr;
  EXPECT_NE(fingerprint(json), original);
}

struct BadTokenizer {
  const char* pointer;  ///< JSON pointer of what is replaced
  Json value;
  const char* message;
  friend std::ostream& operator<<(std::ostream& out, const BadTokenizer& b) {
    return out << b.pointer;
  }
};
class RefusesTokenizer : public testing::TestWithParam<BadTokenizer> {};

TEST_P(RefusesTokenizer, NamingThePart) {
  const test::TemporaryFolder folder;
  Json json = read_json(test::fixture("text/tokenizer.json"));
  json[Json::json_pointer(GetParam().pointer)] = GetParam().value;
  write_file(folder / "tokenizer.json", json.dump());
  EXPECT_THROW_WITH(Tokenizer::load(folder.path()), InputError, GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Tokenizer, RefusesTokenizer,
    testing::Values(
        BadTokenizer{"/model/type", "Unigram", "\"Unigram\" is not supported"},
        BadTokenizer{"/model/merges/0", "a", "is not two tokens"},
        BadTokenizer{"/model/merges/0", {"a", "☃"}, "vocabulary does not have"},
        BadTokenizer{"/model/vocab/a", -1, "the id of token \"a\""},
        BadTokenizer{"/model/vocab/a", 900000000, "far beyond the vocabulary"},
        BadTokenizer{"/model/byte_fallback", true, "byte_fallback"},
        BadTokenizer{"/normalizer/type", "Precompiled", "\"Precompiled\" is not supported"},
        BadTokenizer{"/pre_tokenizer", nullptr, "no ByteLevel step"},
        BadTokenizer{"/pre_tokenizer/pretokenizers/0",
                     {{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}},
                     "does not compile"},
        BadTokenizer{"/pre_tokenizer/pretokenizers/0", {{"type", "Metaspace"}}, "Metaspace"}));

TEST(PreTokenizer, BehavesAsEachBehaviorSays) {
  const auto split = [](SplitBehavior behavior, bool invert = false) {
    PreTokenizer pre_tokenizer;
    pre_tokenizer.add_split("-", behavior, invert, "test");
    std::vector<std::string_view> pieces;
    pre_tokenizer.split("the-final--countdown", pieces);
    return std::vector<std::string>(pieces.begin(), pieces.end());
  };
  using Pieces = std::vector<std::string>;  // the examples of the tokenizers documentation
  EXPECT_EQ(split(SplitBehavior::removed), (Pieces{"the", "final", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::isolated), (Pieces{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::merged_with_previous),
            (Pieces{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::merged_with_next), (Pieces{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(split(SplitBehavior::contiguous), (Pieces{"the", "-", "final", "--", "countdown"}));
}

TEST(Unicode, ReplacesInvalidParts) {
  EXPECT_EQ(replace_invalid_utf8("a\xe4\xbd"), "a\xef\xbf\xbd");
  EXPECT_EQ(replace_invalid_utf8("\xff\xfe"), "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(replace_invalid_utf8("é"), "é");
}

}  // namespace
}  // namespace oscar
