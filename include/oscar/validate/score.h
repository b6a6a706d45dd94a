#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "oscar/checkpoint/checkpoint.h"
#include "oscar/core/progress.h"
#include "oscar/model/decoder_stream.h"
#include "oscar/text/prompts.h"
#include "oscar/validate/report.h"

namespace oscar {

/// A pair to be scored, with the settings it is served with.
struct Candidate {
  std::string name;
  bool baseline = false;
  RotationPair pair;
  ServedSettings settings;
  std::shared_ptr<const CheckpointPatch> patch;  ///< weights that it is served with; null: as are
};

struct ScoreOptions {
  Device device;
  Precision precision = Precision::fp32;
  std::int64_t first_scored_position = -1;  ///< -1: the second half of every sequence
  bool local_errors = true;  ///< each layer's own error, on the reference's queries, keys, values
  bool noise_floor = true;   ///< with bf16, also what rotating an unquantised cache costs
  Progress::Style progress = Progress::Style::none;
  std::string task = "validating";  ///< what the progress bar says
};

/// What the candidates lose, in their order.
struct Scores {
  std::int64_t positions = 0;
  double perplexity_reference = 0;
  std::optional<PropagatedError> noise_floor;
  std::vector<CandidateReport> candidates;
};

/// Streams the reference, every candidate and every patch without quantisation through the model in
/// step: one pass over the weights. Every pair must fit the model (check_fits). Throws InputError
/// for sequences too short to score or to quantise, and Interrupted.
Scores score(const Checkpoint& checkpoint, const TokenBatch& batch,
             std::span<const Candidate> candidates, const ScoreOptions& options);

/// Throws InputError naming `source` if the pair is not for this model: layers, heads, dimensions,
/// and that each matrix and its read side undo each other.
void check_fits(const RotationPair& pair, const ModelConfig& config, const std::string& source);

}  // namespace oscar
