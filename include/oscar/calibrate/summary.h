#pragma once

#include <filesystem>
#include <string>

#include "oscar/calibrate/calibrate.h"
#include "oscar/core/json.h"

namespace oscar {

/// What a run made and where, for people and for programs.
std::string to_text(const CalibrateResult& result);
OrderedJson to_json(const CalibrateResult& result);

/// What a run would need.
std::string to_text(const CalibratePlan& plan, const Device& device);
OrderedJson to_json(const CalibratePlan& plan);

/// What a file holds: a statistics file, a rotation file, or a folder with a pair. Throws
/// InputError if it is none of these.
OrderedJson inspect(const std::filesystem::path& path);
/// The same as indented lines for people.
std::string inspect_text(const OrderedJson& found);

}  // namespace oscar
