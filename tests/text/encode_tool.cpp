// Encodes documents for parity.py: encode_tool TOKENIZER < documents > ids
// Documents are separated by NUL bytes; each becomes a line of token ids. With --time FILE, prints
// the speed of encoding a file in MB/s instead; with --template, renders JSON lines of messages,
// each ended by a NUL.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>

#include "oscar/core/atomic_file.h"
#include "oscar/core/json.h"
#include "oscar/text/chat_template.h"
#include "oscar/text/tokenizer.h"

namespace {

int encode(const oscar::Tokenizer& tokenizer) {
  for (std::string document; std::getline(std::cin, document, '\0');) {
    const auto ids = tokenizer.encode(document);
    fmt::print("{}\t{}\n", fmt::join(ids, " "), oscar::Json(tokenizer.decode(ids)).dump());
  }
  return 0;
}

int time_encoding(const oscar::Tokenizer& tokenizer, const char* path) {
  const std::string text = oscar::read_file(path);
  const auto start = std::chrono::steady_clock::now();
  const std::size_t tokens = tokenizer.encode(text).size();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{} tokens, {:.1f} MB/s\n", tokens, static_cast<double>(text.size()) / 1e6 / seconds);
  return 0;
}

int render(const char* model) {
  const auto chat_template = oscar::ChatTemplate::load("auto", model);
  for (std::string line; std::getline(std::cin, line);) {
    const oscar::Json json = oscar::Json::parse(line);
    std::vector<oscar::ChatMessage> messages;
    for (const auto& m : json.at("messages")) messages.push_back({m.at("role"), m.at("content")});
    std::cout << chat_template.render(messages, json.at("generate")) << '\0';
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 3 && std::string(argv[1]) == "--template") return render(argv[2]);
    const auto tokenizer = oscar::Tokenizer::load(argv[1]);
    return argc == 4 ? time_encoding(tokenizer, argv[3]) : encode(tokenizer);
  } catch (const std::exception& error) {
    fmt::print(stderr, "encode_tool: {}\n", error.what());
    return 1;
  }
}
