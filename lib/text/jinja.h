#pragma once

#include <memory>
#include <string>

#include "oscar/core/json.h"

namespace oscar {

/// The part of Jinja that chat templates use: text, output, if, for, set, namespaces, comments,
/// white-space control (with trim_blocks and lstrip_blocks, as transformers sets them), and
/// expressions with filters, tests and string methods. What is not known is an InputError naming
/// the construct and its line.
class JinjaTemplate {
 public:
  /// Parses `text`; `source` names it in messages.
  JinjaTemplate(const std::string& text, const std::string& source);
  ~JinjaTemplate();
  JinjaTemplate(JinjaTemplate&&) noexcept;
  JinjaTemplate& operator=(JinjaTemplate&&) noexcept;

  /// Renders with these variables (a JSON object). raise_exception() in the template is an
  /// InputError.
  std::string render(const OrderedJson& variables) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar
