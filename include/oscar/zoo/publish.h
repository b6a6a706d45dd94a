#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace oscar {

/// Everything that `oscar-export ROTATIONS ZOO` can be told.
struct PublishOptions {
  std::filesystem::path rotations;  ///< folder that holds one pair
  std::filesystem::path zoo;        ///< root of the zoo; made if it is not there
  std::string model_name;           ///< folder in the zoo; empty: the model's own name
  std::optional<std::filesystem::path>
      report;          ///< JSON of oscar-validate, summarised in manifest and card
  bool force = false;  ///< replace what the zoo holds for this model and calibration
};

struct Published {
  std::filesystem::path folder;  ///< <zoo>/<Model>/seq<tokens>_prompt<count>_group<group>
  std::vector<std::filesystem::path> files;
};

/// Verifies the pair and publishes it: the two files, manifest.json and the model card README.md
/// appear together in <zoo>/<Model>/seq<tokens>_prompt<count>_group<group>/ (contract, section 4),
/// or not at all. Throws InputError if a check of `verify` fails, the manifest is missing, or the
/// folder exists.
Published publish(const PublishOptions& options);

}  // namespace oscar
