#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "oscar/core/json.h"
#include "oscar/rotation/target.h"
#include "oscar/validate/score.h"

namespace oscar {

/// `--objective auto`: what there is to choose from, and on how much text.
struct Selection {
  Target target = find_target("any");   ///< only what this engine loads is tried
  std::int64_t held_out_tokens = 4096;  ///< text that is scored, behind the calibration text
  int training_steps = 0;               ///< above 0: trained rotations are tried too
  std::vector<int> groups;              ///< group sizes to try beside the default; they cost bits
};

/// One pair that was scored on the held-out text.
struct Trial {
  std::string name;  ///< the preset, and what was changed: "stretch, K clip 0.92"
  FitOptions fit;    ///< of the pair, or of the mixture's best part
  Candidate candidate;
  PropagatedError lost;
  std::vector<LayerError> layers;              ///< local errors; empty where not measured
  std::map<int, std::string> source_of_layer;  ///< of a mixture
};

struct Choice {
  std::vector<Trial> trials;   ///< all that was tried, in order
  std::size_t chosen = 0;      ///< its number among them
  std::string dataset_sha256;  ///< of the held-out text
  std::int64_t tokens = 0;
  std::int64_t scored_positions = 0;
  double perplexity_reference = 0;
  std::optional<double> noise_floor;  ///< nats; absent with fp32

  const Trial& best() const { return trials[chosen]; }
};

/// Fits every preset that the target loads and scores them side by side on the held-out text; takes
/// the one with the smallest mean KL divergence. Then tries the neighbouring clip ratios, a mixture
/// that takes each layer from the preset with the smallest error there, and what helped of these
/// together; such a change is taken only where its gain, position by position, is more than chance
/// (PairedGain::is_clear). The released recipe is always among the trials, so the choice is never
/// worse on that text. `patch` is what the weights behind the statistics had, or null.
Choice choose(const Checkpoint& checkpoint, const std::shared_ptr<const CheckpointPatch>& patch,
              const Statistics& statistics, const TokenBatch& held_out, const Selection& selection,
              const ScoreOptions& options);

/// How many trials choose() makes at most.
int most_trials(const Selection& selection);

/// The trials and the choice: for a manifest, and as a table for people.
OrderedJson to_json(const Choice& choice);
std::string to_text(const Choice& choice);

}  // namespace oscar
