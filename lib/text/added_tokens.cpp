#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"

namespace oscar {

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.content.size() > b.content.size();
  });
  for (const AddedToken& token : tokens_) {
    if (first_bytes_.find(token.content[0]) == std::string::npos) first_bytes_ += token.content[0];
  }
}

const AddedToken* AddedTokenFinder::match_at(std::string_view text, std::size_t at) const {
  for (const AddedToken& token : tokens_) {
    if (text.compare(at, token.content.size(), token.content) == 0) return &token;
  }
  return nullptr;
}

void AddedTokenFinder::scan(std::string_view text,
                            const std::function<void(std::string_view)>& text_part,
                            const std::function<void(TokenId)>& token) const {
  std::size_t done = 0;  // everything before is handed over
  for (std::size_t at = text.find_first_of(first_bytes_); at != std::string_view::npos;
       at = text.find_first_of(first_bytes_, at)) {
    const AddedToken* found = match_at(text, at);
    if (found == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + found->content.size();
    at = end;
    if (found->single_word) {
      std::size_t behind = end;
      const bool touched = (begin > 0 && is_word(previous_code_point(text, begin))) ||
                           (end < text.size() && is_word(next_code_point(text, behind)));
      if (touched) continue;
    }
    if (found->left_strip) {
      while (begin > done && is_white_space(previous_code_point(text, begin))) {
        do --begin;
        while (begin > done && (static_cast<unsigned char>(text[begin]) & 0xc0u) == 0x80);
      }
    }
    if (found->right_strip) {
      for (std::size_t next = end; next < text.size();) {
        if (!is_white_space(next_code_point(text, next))) break;
        end = next;
      }
      at = std::max(at, end);
    }
    begin = std::max(begin, done);
    if (begin > done) text_part(text.substr(done, begin - done));
    token(found->id);
    done = end;
  }
  if (done < text.size()) text_part(text.substr(done));
}

}  // namespace oscar
