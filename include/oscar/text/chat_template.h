#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace oscar {

struct ChatMessage {
  std::string role;  ///< "system", "user", "assistant", "tool"
  std::string content;
};

/// Turns a conversation into the text that the model was trained on.
class ChatTemplate {
 public:
  /// `name`: "auto" (the template that comes with the model: chat_template of
  /// tokenizer_config.json, chat_template.jinja, or the GGUF file's tokenizer.chat_template; an
  /// InputError if there is none), "none" (contents joined by newlines, no markers), or a built-in
  /// name such as "chatml". Throws InputError naming the construct if the template uses Jinja that
  /// is not supported.
  static ChatTemplate load(const std::string& name, const std::filesystem::path& model);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// Exactly what transformers' apply_chat_template(tokenize=False) gives.
  std::string render(const std::vector<ChatMessage>& messages,
                     bool add_generation_prompt = false) const;
  const std::string& name() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar
