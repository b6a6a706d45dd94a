#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "oscar/core/error.h"

namespace oscar {

using Json = nlohmann::json;
/// Keeps the order in which keys were written: for files that people read.
using OrderedJson = nlohmann::ordered_json;

/// Parses JSON text. `source` names it in the message of the InputError thrown when it is invalid.
Json parse_json(std::string_view text, const std::string& source);
/// Reads and parses a JSON file.
Json read_json(const std::filesystem::path& path);
/// Writes a JSON file atomically, indented, with a newline at its end.
void write_json(const std::filesystem::path& path, const OrderedJson& value);

/// The member `key` of `object` as a T. Throws InputError naming `source` if it is absent or of
/// another type.
template <typename T>
T require(const Json& object, const char* key, const std::string& source) {
  if (!object.is_object() || !object.contains(key)) {
    fail_input("{}: the field \"{}\" is missing", source, key);
  }
  try {
    return object.at(key).get<T>();
  } catch (const nlohmann::json::exception&) {
    fail_input("{}: the field \"{}\" has the value {}, which is of the wrong type", source, key,
               object.at(key).dump().substr(0, 100));
  }
}

/// The member `key`, or nothing if it is absent or null. Throws InputError if it is of another
/// type.
template <typename T>
std::optional<T> find(const Json& object, const char* key, const std::string& source) {
  if (!object.is_object() || !object.contains(key) || object.at(key).is_null()) return std::nullopt;
  return require<T>(object, key, source);
}

}  // namespace oscar
