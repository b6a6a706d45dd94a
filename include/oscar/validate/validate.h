#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "oscar/core/device.h"
#include "oscar/core/progress.h"
#include "oscar/text/prompts.h"
#include "oscar/validate/report.h"

namespace oscar {

/// Settings that replace the ones in a candidate's manifest (or the defaults) where they are given.
struct SettingOverrides {
  std::optional<int> sink, recent, group;
  std::optional<double> k_clip, v_clip;
  std::optional<std::string> clip_rule, scale_type;

  ServedSettings apply(ServedSettings settings) const;
};

/// Everything that `oscar-validate` can be told.
struct ValidateOptions {
  std::filesystem::path model;
  std::vector<std::filesystem::path> rotations;  ///< folders that hold one pair each; may be empty
  PromptOptions prompts;
  std::string chat_template = "auto";
  std::string precision = "auto";
  Device device;
  std::vector<std::string> baselines = {"identity", "hadamard"};
  std::int64_t first_scored_position = -1;  ///< -1: the second half of every sequence
  SettingOverrides settings;
  std::optional<double> max_kld;
  std::optional<double> max_perplexity_increase;  ///< per cent over the reference
  bool force = false;  ///< score a pair made for another model all the same
  Progress::Style progress = Progress::Style::none;
};

/// Streams the reference, every candidate and every baseline through the model in step: one pass
/// over the weights. Throws InputError for a pair that does not fit the model (layers, heads,
/// dimensions, fingerprint), is not orthogonal, or for sequences too short to score.
ValidationReport validate(const ValidateOptions& options);

}  // namespace oscar
