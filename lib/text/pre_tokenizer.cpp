#include "text/pre_tokenizer.h"

#include <fmt/format.h>

namespace oscar {

void PreTokenizer::add_split(const std::string& pattern, SplitBehavior behavior, bool invert,
                             const std::string& source) {
  steps_.push_back({pattern, Regex(pattern, source), behavior, invert});
}

void PreTokenizer::apply(const Step& step, std::string_view text,
                         std::vector<std::string_view>& out) {
  // `pending` gathers what the merging behaviours have not closed yet.
  std::size_t pending = 0, at = 0;
  bool pending_matched = false;
  const auto emit = [&](std::size_t begin, std::size_t end) {
    if (begin < end) out.push_back(text.substr(begin, end - begin));
  };
  const auto part = [&](std::size_t begin, std::size_t end, bool matched) {
    if (begin == end) return;
    switch (step.behavior) {
      case SplitBehavior::removed:
        if (!matched) emit(begin, end);
        break;
      case SplitBehavior::isolated:
        emit(begin, end);
        break;
      case SplitBehavior::contiguous:
        if (matched != pending_matched) {
          emit(pending, begin);
          pending = begin;
        }
        pending_matched = matched;
        break;
      case SplitBehavior::merged_with_previous:
        // A match joins the unmatched part before it; two matches in a row stay apart.
        if (matched && !pending_matched) {
          emit(pending, end);
          pending = end;
        } else {
          emit(pending, begin);
          pending = begin;
          if (matched) {
            emit(begin, end);
            pending = end;
          }
        }
        pending_matched = matched;
        break;
      case SplitBehavior::merged_with_next:
        if (matched) {
          emit(pending, begin);
          pending = begin;
        } else {
          emit(pending, end);
          pending = end;
        }
        break;
    }
  };
  std::size_t from = 0, begin = 0, end = 0;
  while (from <= text.size() && step.regex.search(text, from, begin, end)) {
    if (begin == end) {  // an empty match cuts nothing; look behind the next character
      from = begin + 1;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0u) == 0x80) ++from;
      continue;
    }
    part(at, begin, step.invert);
    part(begin, end, !step.invert);
    at = from = end;
  }
  part(at, text.size(), step.invert);
  const bool gathers =
      step.behavior != SplitBehavior::removed && step.behavior != SplitBehavior::isolated;
  if (gathers) emit(pending, text.size());
}

void PreTokenizer::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  pieces.assign(1, text);
  std::vector<std::string_view> next;
  for (const Step& step : steps_) {
    next.clear();
    for (const std::string_view piece : pieces) apply(step, piece, next);
    pieces.swap(next);
  }
}

std::string PreTokenizer::description() const {
  std::string text;
  for (const Step& step : steps_) {
    text +=
        fmt::format("split {} {} {}\n", static_cast<int>(step.behavior), step.invert, step.pattern);
  }
  return text;
}

}  // namespace oscar
