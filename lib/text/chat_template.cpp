#include "oscar/text/chat_template.h"

#include <optional>

#include "oscar/checkpoint/gguf.h"
#include "oscar/core/atomic_file.h"
#include "oscar/core/json.h"
#include "oscar/text/tokenizer.h"
#include "text/jinja.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {

constexpr const char* kChatMl =
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + "
    "'<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

struct Source {
  std::string text, place, bos, eos;
};

std::string special_token(const Json& config, const char* key) {
  if (!config.contains(key)) return "";
  const Json& value = config.at(key);
  if (value.is_string()) return value.get<std::string>();
  return value.is_object() ? value.value("content", "") : "";
}

/// The template of tokenizer_config.json: a string, or a list of named ones of which "default"
/// counts.
std::optional<std::string> template_in(const Json& config, const std::string& place) {
  if (!config.contains("chat_template") || config.at("chat_template").is_null())
    return std::nullopt;
  const Json& value = config.at("chat_template");
  if (value.is_string()) return value.get<std::string>();
  for (const Json& entry : value) {
    if (entry.is_object() && entry.value("name", "") == "default")
      return require<std::string>(entry, "template", place);
  }
  fail_input("{}: chat_template has no template named \"default\"", place);
}

std::optional<Source> find_template(const fs::path& model) {
  if (model.extension() == ".gguf") {
    const GgufFile file(model);
    const auto text = file.find_as<std::string_view>("tokenizer.chat_template");
    if (!text) return std::nullopt;
    const auto token = [&](const char* key) -> std::string {
      const auto id = file.find_as<std::int64_t>(key);
      const auto tokens = file.find_as<std::vector<std::string_view>>("tokenizer.ggml.tokens");
      const bool known = id && tokens && *id >= 0 && static_cast<std::size_t>(*id) < tokens->size();
      return known ? std::string((*tokens)[static_cast<std::size_t>(*id)]) : "";
    };
    return Source{std::string(*text), model.string() + ": tokenizer.chat_template",
                  token("tokenizer.ggml.bos_token_id"), token("tokenizer.ggml.eos_token_id")};
  }
  const fs::path config_path = model / "tokenizer_config.json",
                 jinja_path = model / "chat_template.jinja";
  const Json config = fs::exists(config_path) ? read_json(config_path) : Json::object();
  const std::string bos = special_token(config, "bos_token"),
                    eos = special_token(config, "eos_token");
  if (fs::exists(jinja_path)) return Source{read_file(jinja_path), jinja_path.string(), bos, eos};
  const auto text = template_in(config, config_path.string());
  if (!text) return std::nullopt;
  return Source{*text, config_path.string() + ": chat_template", bos, eos};
}

}  // namespace

struct ChatTemplate::Impl {
  std::string name;
  fs::path model;
  std::optional<Source> source;  ///< absent: "none", or the model has no template
  std::optional<JinjaTemplate> jinja;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

ChatTemplate ChatTemplate::load(const std::string& name, const fs::path& model) {
  auto impl = std::make_unique<Impl>();
  impl->name = name;
  impl->model = model;
  if (name == "auto") {
    impl->source = find_template(model);
  } else if (name == "chatml") {
    impl->source = Source{kChatMl, "chatml", "", ""};
  } else if (name != "none") {
    fail_input("chat template \"{}\" is not known; use auto, none or chatml", name);
  }
  if (impl->source) impl->jinja.emplace(impl->source->text, impl->source->place);
  return ChatTemplate(std::move(impl));
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                 bool add_generation_prompt) const {
  if (impl_->name == "none") {
    std::string text;
    for (const ChatMessage& message : messages)
      text += (text.empty() ? "" : "\n") + message.content;
    return text;
  }
  if (!impl_->jinja) {
    fail_input("{}: the model has no chat template; pass --chat-template chatml or none",
               impl_->model.string());
  }
  OrderedJson list = OrderedJson::array();
  for (const ChatMessage& message : messages)
    list.push_back({{"role", message.role}, {"content", message.content}});
  return impl_->jinja->render({{"messages", list},
                               {"add_generation_prompt", add_generation_prompt},
                               {"bos_token", impl_->source->bos},
                               {"eos_token", impl_->source->eos}});
}

const std::string& ChatTemplate::name() const {
  return impl_->name;
}

}  // namespace oscar
