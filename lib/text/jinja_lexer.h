#pragma once

#include <string>
#include <vector>

namespace oscar::jinja {

/// A stretch of a template: text as it is, or the inside of {{ }} or {% %}.
struct Segment {
  enum class Kind { text, output, statement };
  Kind kind;
  std::string content;
  int line;
};

/// Cuts a template into segments: comments are dropped, white space is trimmed as `-` marks ask,
/// and as trim_blocks (the newline after a block) and lstrip_blocks (the indentation before one)
/// do.
std::vector<Segment> cut(const std::string& text, const std::string& source);

/// A token of an expression.
struct Token {
  enum class Kind { name, string, integer, number, symbol, end };
  Kind kind;
  std::string text;
  int line;
};

std::vector<Token> tokenize(const Segment& segment, const std::string& source);

}  // namespace oscar::jinja
