#include "oscar/core/json.h"

#include "oscar/core/atomic_file.h"

namespace oscar {

Json parse_json(std::string_view text, const std::string& source) {
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    const std::string what = error.what();
    const auto colon = what.find(": ");
    fail_input("{}: is not valid JSON ({})", source,
               colon == std::string::npos ? what : what.substr(colon + 2));
  }
}

Json read_json(const std::filesystem::path& path) {
  return parse_json(read_file(path), path.string());
}

void write_json(const std::filesystem::path& path, const OrderedJson& value) {
  write_file(path, value.dump(2) + "\n");
}

}  // namespace oscar
