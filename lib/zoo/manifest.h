#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "oscar/core/json.h"
#include "oscar/zoo/pair_folder.h"

namespace oscar {

/// manifest.json of a pair folder: schema "oscar-manifest", version 1.
OrderedJson manifest_json(const std::filesystem::path& folder, const RotationPair& pair,
                          const PairInfo& info, const std::vector<std::string>& files);

/// Reads manifest.json back. Throws InputError naming the field.
PairInfo read_manifest(const Json& manifest, const std::string& source);

/// Compares the size and SHA-256 of every file that the manifest lists. Returns what differs, one
/// line each.
std::vector<std::string> check_manifest_files(const Json& manifest,
                                              const std::filesystem::path& folder);

}  // namespace oscar
