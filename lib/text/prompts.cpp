#include "oscar/text/prompts.h"

#include <algorithm>
#include <utility>

#include "oscar/core/atomic_file.h"
#include "oscar/core/hash.h"
#include "oscar/core/json.h"
#include "text/builtin_prompts.h"
#include "text/unicode.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {

/// A place to read documents from: a file or a built-in set.
struct TextSource {
  std::string name;
  std::string content;
  bool json_lines = false;
};

/// One document of a .jsonl source, and where it stands.
struct Document {
  const TextSource* source;
  std::size_t line;
  std::string_view json;
};

std::vector<TextSource> open_sources(const PromptOptions& options) {
  std::vector<TextSource> sources;
  for (const BuiltinPrompts& set : builtin_prompts()) {
    if (options.files.empty())
      sources.push_back({std::string("built-in ") + set.name, std::string(set.content), true});
  }
  for (const fs::path& path : options.files) {
    const bool json_lines = path.extension() == ".jsonl";
    if (!json_lines && path.extension() != ".txt") {
      fail_input("{}: prompt files end in .txt (one document) or .jsonl (one document a line)",
                 path.string());
    }
    sources.push_back({path.string(), read_file(path), json_lines});
  }
  for (const TextSource& source : sources) {
    if (const auto bad = find_invalid_utf8(source.content)) {
      const auto line =
          1 + std::count(source.content.begin(),
                         source.content.begin() + static_cast<std::ptrdiff_t>(*bad), '\n');
      fail_input("{}, line {}: is not valid UTF-8 at byte {}; save it as UTF-8", source.name, line,
                 *bad);
    }
    if (source.content.find_first_not_of(" \t\r\n") == std::string::npos)
      fail_input("{}: the file is empty", source.name);
  }
  return sources;
}

/// The documents of every .jsonl source, one of each in turn, so that a prefix is a balanced
/// mixture.
std::vector<Document> interleave(const std::vector<TextSource>& sources) {
  std::vector<std::vector<Document>> by_source;
  std::size_t longest = 0;
  for (const TextSource& source : sources) {
    if (!source.json_lines) continue;
    std::vector<Document> documents;
    std::size_t line = 0;
    for (std::string_view rest = source.content; !rest.empty();) {
      ++line;
      const auto end = std::min(rest.find('\n'), rest.size());
      const std::string_view text = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (text.find_first_not_of(" \t\r") != std::string_view::npos)
        documents.push_back({&source, line, text});
    }
    longest = std::max(longest, documents.size());
    by_source.push_back(std::move(documents));
  }
  std::vector<Document> result;
  for (std::size_t i = 0; i < longest; ++i) {
    for (const auto& documents : by_source) {
      if (i < documents.size()) result.push_back(documents[i]);
    }
  }
  return result;
}

/// Fisher and Yates's shuffle over splitmix64: the same order on every platform.
void shuffle(std::vector<Document>& documents, std::uint64_t seed) {
  const auto random = [&seed] {
    std::uint64_t z = (seed += 0x9e3779b97f4a7c15ull);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
  };
  for (std::size_t i = documents.size(); i > 1; --i)
    std::swap(documents[i - 1], documents[random() % i]);
}

std::string text_of(const Document& document, const ChatTemplate& chat_template) {
  const std::string where = fmt::format("{}, line {}", document.source->name, document.line);
  const Json json = parse_json(document.json, where);
  if (const auto text = find<std::string>(json, "text", where)) return *text;
  std::vector<ChatMessage> messages;
  if (json.is_object() && json.contains("messages")) {
    const Json list = require<Json>(json, "messages", where);
    if (!list.is_array() || list.empty())
      fail_input("{}: \"messages\" is not a list of messages", where);
    for (const Json& message : list) {
      messages.push_back({require<std::string>(message, "role", where),
                          require<std::string>(message, "content", where)});
    }
  } else if (json.is_object() && json.contains("prompt") && json.contains("completion")) {
    messages = {{"user", require<std::string>(json, "prompt", where)},
                {"assistant", require<std::string>(json, "completion", where)}};
  } else {
    fail_input(
        "{}: the document has neither \"text\" nor \"messages\" nor \"prompt\" and \"completion\"",
        where);
  }
  try {
    return chat_template.render(messages);
  } catch (const InputError& error) {
    fail_input("{}: {}", where, error.what());
  }
}

/// Collects sequences until there are enough tokens.
class Packer {
 public:
  Packer(const PromptOptions& options) : options_(options) {
    batch_.sequence_length = options.sequence_length;
  }

  bool full() const { return options_.tokens > 0 && count_ >= options_.tokens; }

  /// Adds up to a sequence's worth of tokens; the last sequence is cut where the total is reached.
  void add(const TokenId* begin, std::size_t size) {
    auto length = std::min<std::int64_t>(static_cast<std::int64_t>(size), options_.sequence_length);
    if (options_.tokens > 0) length = std::min(length, options_.tokens - count_);
    if (length <= 0) return;
    batch_.sequences.emplace_back(begin, begin + length);
    count_ += length;
  }

  TokenBatch finish() {
    if (count_ == 0) fail_input("the prompts hold no tokens");
    if (options_.fill && count_ < options_.tokens) {
      fail_input(
          "the prompts hold {} tokens, but --tokens {} were asked for; give more text, or --tokens "
          "0 for all there is "
          "(documents of .jsonl files are cut at --sequence-length {})",
          count_, options_.tokens, options_.sequence_length);
    }
    return std::move(batch_);
  }

 private:
  const PromptOptions& options_;
  TokenBatch batch_;
  std::int64_t count_ = 0;
};

}  // namespace

std::int64_t TokenBatch::tokens() const {
  std::int64_t count = 0;
  for (const auto& sequence : sequences) count += static_cast<std::int64_t>(sequence.size());
  return count;
}

std::string TokenBatch::sha256() const {
  Sha256 hash;
  for (const auto& sequence : sequences) {
    const std::uint64_t length = sequence.size();
    hash.update(std::as_bytes(std::span(&length, 1))).update(std::as_bytes(std::span(sequence)));
  }
  return hash.hex();
}

std::pair<TokenBatch, TokenBatch> split(const TokenBatch& batch, std::int64_t tokens) {
  if (tokens < 1 || tokens >= batch.tokens()) {
    fail_input("{} tokens cannot be cut from {}", tokens, batch.tokens());
  }
  TokenBatch first, second;
  first.sequence_length = second.sequence_length = batch.sequence_length;
  std::int64_t left = tokens;
  for (const auto& sequence : batch.sequences) {
    const std::int64_t taken = std::min(left, static_cast<std::int64_t>(sequence.size()));
    if (taken > 0) first.sequences.emplace_back(sequence.begin(), sequence.begin() + taken);
    if (sequence.begin() + taken != sequence.end()) {
      second.sequences.emplace_back(sequence.begin() + taken, sequence.end());
    }
    left -= taken;
  }
  return {std::move(first), std::move(second)};
}

TokenBatch load_prompts(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                        const PromptOptions& options) {
  if (options.sequence_length < 2)
    fail_input("--sequence-length {} is too short; at least 2", options.sequence_length);
  const std::vector<TextSource> sources = open_sources(options);
  Packer packer(options);
  for (const TextSource& source : sources) {
    if (source.json_lines || packer.full()) continue;
    const auto tokens = tokenizer.encode(source.content);
    for (std::size_t at = 0; at < tokens.size() && !packer.full();
         at += static_cast<std::size_t>(options.sequence_length)) {
      packer.add(tokens.data() + at, tokens.size() - at);
    }
  }
  std::vector<Document> documents = interleave(sources);
  if (options.seed != 0) shuffle(documents, options.seed);
  for (const Document& document : documents) {
    if (packer.full()) break;
    const auto tokens = tokenizer.encode(text_of(document, chat_template));
    packer.add(tokens.data(), tokens.size());
  }
  return packer.finish();
}

}  // namespace oscar
