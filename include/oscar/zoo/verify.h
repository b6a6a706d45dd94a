#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "oscar/core/json.h"

namespace oscar {

/// One thing that was checked.
struct Check {
  std::string name;  ///< "orthogonality"
  bool passed = true;
  std::string detail;  ///< what was found
};

/// What `oscar-export verify` found about a pair.
struct Verification {
  std::vector<Check> checks;
  bool passed() const;
};

/// Checks a folder that holds a pair, or one rotation file: hashes against the manifest, schema,
/// coverage of the layers (no holes, or the regular holes of a hybrid model), shapes, orthogonality
/// (1e-6 in fp32, 5e-3 after rounding to bf16), health of the eigenvalues, and whether the pair is
/// of one run. What a loader would accept and only serving would reveal is the point; a file that
/// cannot be read is a failed check too. Throws InputError only if the path does not exist.
Verification verify(const std::filesystem::path& path);

std::string to_text(const Verification& verification);
OrderedJson to_json(const Verification& verification);

}  // namespace oscar
