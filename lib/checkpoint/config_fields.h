#pragma once

#include <optional>
#include <set>
#include <string>

#include "oscar/core/json.h"

namespace oscar {

/// A JSON object that keeps account of which of its fields were read, so that the rest can be
/// looked at: a field that changes the mathematics and is not understood must be an error.
class ConfigFields {
 public:
  ConfigFields(const Json& object, std::string source)
      : object_(object), source_(std::move(source)) {}

  template <typename T>
  T require(const char* key) {
    read_.insert(key);
    return oscar::require<T>(object_, key, source_);
  }
  template <typename T>
  std::optional<T> find(const char* key) {
    read_.insert(key);
    return oscar::find<T>(object_, key, source_);
  }
  /// Marks fields that change nothing here.
  void ignore(std::initializer_list<const char*> keys) { read_.insert(keys.begin(), keys.end()); }
  /// Throws InputError if a field was neither read nor ignored and holds more than null, false, 0,
  /// "" or an empty list.
  void refuse_unread() const;

  const std::string& source() const { return source_; }

 private:
  const Json& object_;
  std::string source_;
  std::set<std::string> read_;
};

}  // namespace oscar
