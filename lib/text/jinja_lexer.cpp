#include "text/jinja_lexer.h"

#include <cctype>
#include <string_view>

#include "oscar/core/error.h"

namespace oscar::jinja {

namespace {

int count_lines(std::string_view text) {
  int lines = 0;
  for (const char c : text) lines += c == '\n' ? 1 : 0;
  return lines;
}

bool is_space(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0;
}

void trim_end(std::string& text) {
  while (!text.empty() && is_space(text.back())) text.pop_back();
}

/// Removes the blanks between the last newline and the end, if nothing else is there.
void strip_indentation(std::string& text, bool at_start) {
  std::size_t end = text.size();
  while (end > 0 && (text[end - 1] == ' ' || text[end - 1] == '\t')) --end;
  if (end == 0 ? at_start : text[end - 1] == '\n') text.resize(end);
}

/// Where the tag that begins at `from` ends; quotes may hold anything.
std::size_t find_end(const std::string& text, std::size_t from, const char* closing) {
  char quote = 0;
  for (std::size_t i = from; i + 1 < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == '\\') {
        ++i;
      } else if (c == quote) {
        quote = 0;
      }
    } else if (closing[0] != '#' && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == closing[0] && text[i + 1] == closing[1]) {
      return i;
    }
  }
  return std::string::npos;
}

}  // namespace

std::vector<Segment> cut(const std::string& text, const std::string& source) {
  std::vector<Segment> segments;
  std::size_t at = 0;
  int line = 1;
  bool trim_next = false, skip_newline = false;
  while (at < text.size()) {
    std::size_t open = text.find('{', at);
    while (open != std::string::npos &&
           (open + 1 >= text.size() ||
            std::string_view("{%#").find(text[open + 1]) == std::string_view::npos)) {
      open = text.find('{', open + 1);
    }
    const bool last = open == std::string::npos;
    std::string plain = text.substr(at, last ? std::string::npos : open - at);
    const int plain_line = line;
    line += count_lines(plain);
    if (skip_newline && !plain.empty() && plain[0] == '\n') plain.erase(0, 1);
    if (trim_next) {
      std::size_t first = 0;
      while (first < plain.size() && is_space(plain[first])) ++first;
      plain.erase(0, first);
    }
    trim_next = skip_newline = false;
    if (last) {
      if (!plain.empty()) segments.push_back({Segment::Kind::text, std::move(plain), plain_line});
      break;
    }
    const char kind = text[open + 1];
    std::size_t begin = open + 2;
    const char closing[3] = {kind == '{' ? '}' : kind, '}', 0};
    std::size_t end = find_end(text, begin, closing);
    if (end == std::string::npos)
      fail_input("{}, line {}: a {{{} is not closed", source, line, kind);
    at = end + 2;
    const bool trim_before = text[begin] == '-', keep_before = text[begin] == '+';
    if (trim_before) {
      trim_end(plain);
    } else if (kind != '{' && !keep_before) {
      strip_indentation(plain, segments.empty());
    }
    if (trim_before || keep_before) ++begin;
    if (end > begin && (text[end - 1] == '-' || text[end - 1] == '+')) {
      trim_next = text[end - 1] == '-';
      skip_newline = false;
      --end;
    } else {
      skip_newline = kind != '{';
    }
    if (!plain.empty()) segments.push_back({Segment::Kind::text, std::move(plain), plain_line});
    std::string inside = text.substr(begin, end - begin);
    const int inside_line = line;
    line += count_lines(std::string_view(text).substr(open, at - open));
    if (kind != '#') {
      segments.push_back({kind == '{' ? Segment::Kind::output : Segment::Kind::statement,
                          std::move(inside), inside_line});
    }
  }
  return segments;
}

std::vector<Token> tokenize(const Segment& segment, const std::string& source) {
  const std::string& text = segment.content;
  std::vector<Token> tokens;
  int line = segment.line;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (is_space(c)) {
      line += c == '\n' ? 1 : 0;
      ++i;
    } else if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_') {
      const std::size_t begin = i;
      while (i < text.size() &&
             (std::isalnum(static_cast<unsigned char>(text[i])) != 0 || text[i] == '_'))
        ++i;
      tokens.push_back({Token::Kind::name, text.substr(begin, i - begin), line});
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      const std::size_t begin = i;
      bool point = false;
      while (i < text.size() && (std::isdigit(static_cast<unsigned char>(text[i])) != 0 ||
                                 (text[i] == '.' && !point))) {
        point = point || text[i] == '.';
        ++i;
      }
      tokens.push_back({point ? Token::Kind::number : Token::Kind::integer,
                        text.substr(begin, i - begin), line});
    } else if (c == '\'' || c == '"') {
      std::string value;
      for (++i; i < text.size() && text[i] != c; ++i) {
        if (text[i] != '\\' || i + 1 >= text.size()) {
          line += text[i] == '\n' ? 1 : 0;
          value += text[i];
          continue;
        }
        switch (const char escaped = text[++i]) {
          case 'n':
            value += '\n';
            break;
          case 't':
            value += '\t';
            break;
          case 'r':
            value += '\r';
            break;
          case '\\':
          case '\'':
          case '"':
            value += escaped;
            break;
          default:
            value += {'\\', escaped};
        }
      }
      if (i >= text.size()) fail_input("{}, line {}: a string is not closed", source, line);
      ++i;
      tokens.push_back({Token::Kind::string, std::move(value), line});
    } else {
      static constexpr std::string_view kDouble[] = {"==", "!=", "<=", ">=", "//", "**"};
      std::string symbol(1, c);
      for (const std::string_view pair : kDouble) {
        if (text.compare(i, 2, pair) == 0) symbol = pair;
      }
      if (std::string_view("+-*/%~|.,:()[]{}<>=!").find(c) == std::string_view::npos) {
        fail_input("{}, line {}: the character '{}' is not understood", source, line, c);
      }
      i += symbol.size();
      tokens.push_back({Token::Kind::symbol, symbol, line});
    }
  }
  tokens.push_back({Token::Kind::end, "", line});
  return tokens;
}

}  // namespace oscar::jinja
