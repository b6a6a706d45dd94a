#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace oscar {

/// Something failed that is not the user's doing: a library call, the disk, the device. Exit
/// code 1.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The user's input is wrong: a file, an option, a checkpoint. The message says what was found,
/// what was expected, where, and what to do. Exit code 2.
class InputError : public Error {
 public:
  using Error::Error;
};

/// The user interrupted the work; what was finished is kept on disk. Exit code 130.
class Interrupted : public Error {
 public:
  using Error::Error;
};

/// Throws InputError with a formatted message.
template <typename... Args>
[[noreturn]] void fail_input(fmt::format_string<Args...> format, Args&&... args) {
  throw InputError(fmt::format(format, std::forward<Args>(args)...));
}

/// Throws Error with a formatted message.
template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

/// Throws Error for a failed call: its text, what the library said, file and line.
[[noreturn]] void fail_call(const char* call, const std::string& reason, const char* file,
                            int line);

}  // namespace oscar
