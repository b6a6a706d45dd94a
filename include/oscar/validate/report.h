#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "oscar/core/json.h"
#include "oscar/zoo/pair_folder.h"

namespace oscar {

/// Local error of one query head: measured on the q, k, v of the reference stream, or of the
/// unquantised stream with the candidate's patched weights. Lower is better.
struct HeadError {
  double output_relative_error = 0;  ///< Σ|ô - o|² / Σ|o|² of the attention output before W_o
  double logit_rmse = 0;  ///< rms of (q k̂ᵀ - q kᵀ)/sqrt(D) over (query, INT2 key) pairs
};

struct LayerError {
  int layer = 0;
  HeadError all;                 ///< over all heads of the layer
  std::vector<HeadError> heads;  ///< by query head
};

/// What a candidate's own stream, carrying its own errors, predicts. KL divergence in nats.
struct PropagatedError {
  double perplexity = 0;  ///< exp of the mean next-token negative log-likelihood
  double kld_mean = 0;    ///< mean KL(reference ‖ candidate) over scored positions
  double kld_standard_error = 0;
  std::map<std::string, double> kld_percentiles;  ///< "50", "90", "95", "99", "99.9", "max"
  double top1_agreement = 0;  ///< share of positions with the reference's most likely token
  std::vector<double> kld;    ///< KL divergence of each scored position; not in the report
};

/// By how much less one candidate diverges than another, position by position on the same text.
struct PairedGain {
  double mean = 0;  ///< nats; positive: `better` diverges less
  double standard_error = 0;
  /// Whether the gain is more than twice its standard error: more than chance.
  bool is_clear() const { return mean > 2 * standard_error; }
};
PairedGain paired_gain(const PropagatedError& better, const PropagatedError& worse);

struct CandidateReport {
  std::string name;
  bool baseline = false;
  ServedSettings settings;
  PropagatedError propagated;
  std::vector<LayerError> layers;
  /// What the candidate's patched weights lose alone, without quantisation.
  std::optional<PropagatedError> patch;
  double bits_per_element =
      0;  ///< of the whole cache at this sequence length, bf16 windows included
};

/// The result of one validation: contract, section 6.
struct ValidationReport {
  std::string model;
  std::string model_fingerprint;
  std::string dataset_sha256;
  std::int64_t tokens = 0;
  std::int64_t sequence_length = 0;
  std::int64_t first_scored_position = -1;  ///< -1: the second half of every sequence
  std::int64_t scored_positions = 0;
  std::string precision;
  double perplexity_reference = 0;
  /// What rotating an unquantised cache in this precision costs: no candidate can do better. Absent
  /// with fp32, where it is nothing.
  std::optional<PropagatedError> noise_floor;
  std::vector<CandidateReport> candidates;
  std::optional<double> max_kld;                  ///< limits asked for
  std::optional<double> max_perplexity_increase;  ///< per cent
  bool passed = true;   ///< every candidate that is not a baseline keeps the limits
  std::string verdict;  ///< one line for people
};

/// The report as JSON (schema "oscar-validation", version 1).
OrderedJson to_json(const ValidationReport& report);
/// The report as tables for a terminal: candidates, then the worst layers of each.
std::string to_text(const ValidationReport& report);
/// The summary that goes into a manifest and a model card.
OrderedJson summary_json(const ValidationReport& report, const std::string& candidate);

}  // namespace oscar
