#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "oscar/core/json.h"
#include "oscar/rotation/rotation_set.h"

namespace oscar {

/// Settings of the served cache that go with a pair but are in no rotation file (contract, section
/// 4).
struct ServedSettings {
  int sink = 64;     ///< first tokens kept in bf16
  int recent = 256;  ///< last tokens kept in bf16
  int group = 128;   ///< channels that share a scale; a head dimension below it is one group
  double k_clip = 0.96;
  double v_clip = 0.92;
  std::string clip_rule = "exact";  ///< "exact" or "bisect"
  std::string scale_type = "fp32";  ///< "fp32", "bf16" or "fp16"
};

/// What the manifest says about a pair, besides the hashes of its files.
struct PairInfo {
  std::string model;  ///< as the user named it
  std::string model_fingerprint;
  std::string tokenizer_fingerprint;
  std::string dataset_sha256;
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  std::int64_t sequence_length = 0;
  std::string precision;
  std::string objective;  ///< as --objective takes it: "qqt+sst"; file names don't tell sst's kinds
  std::string composition;  ///< "r_h_pbr"
  ServedSettings settings;
  std::optional<OrderedJson> convergence;  ///< how much the fit depends on the half of the text
  std::optional<OrderedJson> selection;    ///< what --objective auto tried and chose
  std::optional<OrderedJson> validation;   ///< summary of a validation report, when there is one
};

/// What a CheckpointPatch is called in the folder of the pair that needs it.
inline constexpr const char* kPatchFileName = "checkpoint_patch.safetensors";

/// A folder that holds one pair, its manifest.json, and perhaps statistics.h5.
struct PairFolder {
  RotationPair pair;
  std::filesystem::path key_file;
  std::filesystem::path value_file;
  std::optional<PairInfo> info;  ///< from manifest.json, where there is one
  /// The CheckpointPatch that the weights need for this pair, where the folder holds one.
  std::optional<std::filesystem::path> patch_file;
};

/// Writes the two files and manifest.json (schema "oscar-manifest": sha256 and size of every file,
/// provenance, settings, tool version) into an existing folder; other files of the folder named in
/// `also_listed` (statistics.h5, a checkpoint patch) are hashed into the manifest too.
/// manifest.json is written last. Bytes do not depend on the time.
void write_pair(const std::filesystem::path& folder, const RotationPair& pair, const PairInfo& info,
                const std::vector<std::string>& also_listed = {});

/// Loads the folder's only k_rotation*.pt and v_rotation*.pt. Throws InputError if there is not
/// exactly one of each, if a hash differs from the manifest's, or if the two files do not fit
/// together (layers, run).
PairFolder load_pair(const std::filesystem::path& folder);

}  // namespace oscar
