#pragma once

#include <span>
#include <string_view>

namespace oscar {

/// A file of calib_data, compiled into the program.
struct BuiltinPrompts {
  const char* name;          ///< "chat"
  std::string_view content;  ///< JSON Lines
};

/// The built-in calibration set, in the order in which its documents are interleaved.
std::span<const BuiltinPrompts> builtin_prompts();

}  // namespace oscar
