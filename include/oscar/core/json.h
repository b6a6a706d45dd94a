#pragma once

#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

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

/// Whether a JSON value can be read as a T without loss: 0.5 and true are not integers.
template <typename T>
bool is_faithful(const Json& value) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    if (value.is_number_float()) return value.get<double>() == std::floor(value.get<double>());
    return value.is_number_integer();
  } else {
    return true;
  }
}

/// The member `key` of `object` as a T. Throws InputError naming `source` if it is absent or of
/// another type.
template <typename T>
T require(const Json& object, const char* key, const std::string& source) {
  if (!object.is_object() || !object.contains(key)) {
    fail_input("{}: the field \"{}\" is missing", source, key);
  }
  try {
    if (is_faithful<T>(object.at(key))) return object.at(key).get<T>();
  } catch (const nlohmann::json::exception&) {  // said below
  }
  fail_input("{}: the field \"{}\" has the value {}, which is of the wrong type", source, key,
             object.at(key).dump().substr(0, 100));
}

/// The member `key`, or nothing if it is absent or null. Throws InputError if it is of another
/// type.
template <typename T>
std::optional<T> find(const Json& object, const char* key, const std::string& source) {
  if (!object.is_object() || !object.contains(key) || object.at(key).is_null()) return std::nullopt;
  return require<T>(object, key, source);
}

}  // namespace oscar
