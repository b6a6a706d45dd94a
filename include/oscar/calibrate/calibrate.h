#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "oscar/calibrate/choose.h"
#include "oscar/core/device.h"
#include "oscar/core/progress.h"
#include "oscar/model/decoder_stream.h"
#include "oscar/rotation/convergence.h"
#include "oscar/rotation/fit.h"
#include "oscar/text/prompts.h"

namespace oscar {

/// Everything that `oscar-calibrate MODEL` can be told.
struct CalibrateOptions {
  std::filesystem::path model;
  std::filesystem::path output;
  std::optional<std::filesystem::path> patch;  ///< a CheckpointPatch that the weights get first
  PromptOptions prompts;
  std::string chat_template = "auto";
  std::string precision = "auto";
  Device device;
  std::set<int> layers;  ///< which layers to record; empty: all
  FitOptions fit;
  std::optional<Selection> selection;  ///< choose instead of `fit`: --objective auto
  std::int64_t samples = 0;  ///< key and value rows kept in statistics.h5, for `uresidual`
  bool resume = false;
  bool force = false;
  double state_interval_seconds = 30;  ///< how often the hidden states are kept for --resume
  Progress::Style progress = Progress::Style::none;
};

/// What --dry-run prints.
struct CalibratePlan {
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  int layers = 0;
  std::int64_t held_out_tokens = 0;  ///< that --objective auto chooses on
  int trials = 0;                    ///< that it makes at most
  std::string precision;
  std::int64_t memory_bytes = 0;  ///< estimated peak of the process, libraries included
  std::int64_t disk_bytes = 0;    ///< what the output folder needs, the resume state included
  double seconds = 0;             ///< estimated from one measured matrix product on this device
};

struct CalibrateResult {
  std::filesystem::path output;
  std::filesystem::path key_file, value_file, statistics_file, manifest_file;
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  int layers = 0;
  double seconds = 0;  ///< the whole run
  HealthReport health;
  Convergence convergence;
  std::string key_offset_warning;  ///< empty: no danger
  std::optional<Choice> choice;    ///< what --objective auto tried
};

/// Checks the input and says what a run would need; writes nothing.
CalibratePlan plan_calibration(const CalibrateOptions& options);

/// Runs the model over the prompts, records the moments, fits and writes statistics.h5, the pair
/// and manifest.json into `output`. Finished layers and, now and then, the hidden states are kept
/// as whole files in `output`/unfinished; with `resume` a killed run goes on there and ends with
/// the same bytes. Throws InputError (nothing is left behind that the run itself made), Error, or
/// Interrupted (the state is kept).
CalibrateResult calibrate(const CalibrateOptions& options);

/// Refits from statistics.h5 without the model and writes the pair and manifest.json into `output`.
/// Where the weights were patched, the patch is expected beside the statistics and goes along.
CalibrateResult fit_statistics(const std::filesystem::path& statistics,
                               const std::filesystem::path& output, const FitOptions& fit,
                               const Device& device, bool force);

}  // namespace oscar
