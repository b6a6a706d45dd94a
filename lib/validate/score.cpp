#include "oscar/validate/score.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <memory>

#include "oscar/core/error.h"
#include "oscar/core/log.h"
#include "oscar/core/system.h"
#include "validate/candidate.h"
#include "validate/divergence.h"
#include "validate/local_error.h"

namespace oscar {

namespace {

/// Logits are compared in blocks of this many positions, so that a vocabulary of 150,000 stays
/// small.
constexpr std::int64_t kScoredBlock = 128;

/// One candidate on its way through the model: its own stream, and its local error on the
/// reference's.
struct Scored {
  const Candidate* candidate;
  std::unique_ptr<QuantisedAttention> propagated, local;
  std::unique_ptr<LocalError> local_error;
  int stream = 0;
  Divergence divergence;
};

/// The stream of a patch's weights without quantisation.
struct PatchedStream {
  int stream = 0;
  Divergence divergence;
};

void check_lengths(const TokenBatch& batch, std::span<const Candidate> candidates,
                   std::int64_t first_scored) {
  std::size_t longest = 0;
  for (const auto& sequence : batch.sequences) longest = std::max(longest, sequence.size());
  const auto length = static_cast<std::int64_t>(longest);
  const std::int64_t first = first_scored_position(first_scored, length);
  if (first + 1 >= length) {
    fail_input(
        "nothing can be scored: the longest sequence has {} tokens, and scoring begins at position "
        "{}; "
        "use a larger --sequence-length or a smaller --first-scored-position",
        length, first);
  }
  for (const Candidate& candidate : candidates) {
    const std::int64_t exact = candidate.settings.sink + candidate.settings.recent;
    if (length <= exact) {
      fail_input(
          "nothing would be quantised: the longest sequence has {} tokens, and the first {} and "
          "the last "
          "{} stay in bf16; use a --sequence-length above {}, or smaller --sink and --recent",
          length, candidate.settings.sink, candidate.settings.recent, exact);
    }
  }
}

/// Bits per element of the whole cache of a sequence this long, keys and values together.
double bits_per_element(const ServedSettings& settings, const ModelConfig& config,
                        std::int64_t length) {
  const auto bits = [&](int dim) {
    const double scale_bits =
        8.0 * static_cast<double>(bytes_of(parse_scale_type(settings.scale_type)));
    const double coded = 2 + 2 * scale_bits / std::min(settings.group, dim);
    const double exact = std::min(
        1.0, static_cast<double>(settings.sink + settings.recent) / static_cast<double>(length));
    return coded + (16 - coded) * exact;
  };
  return (bits(config.head_dim) * config.head_dim + bits(config.value_dim) * config.value_dim) /
         (config.head_dim + config.value_dim);
}

AttentionFunction stream_attention(QuantisedAttention& attention) {
  return [&attention](const AttentionEvent& event) { return attention.attend(event, 0).output; };
}

/// Scores every stream's predictions against the reference's, a block of positions at a time.
std::int64_t score_logits(DecoderStream& stream, const TokenBatch& batch, std::int64_t first_scored,
                          Divergence& reference,
                          const std::vector<std::pair<int, Divergence*>>& others) {
  std::int64_t positions = 0;
  for (std::size_t s = 0; s < batch.sequences.size(); ++s) {
    const auto& tokens = batch.sequences[s];
    const auto length = static_cast<std::int64_t>(tokens.size());
    for (std::int64_t begin = first_scored_position(first_scored, length); begin + 1 < length;
         begin += kScoredBlock) {
      const std::int64_t end = std::min(begin + kScoredBlock, length - 1);
      const auto sequence = static_cast<std::int64_t>(s);
      const at::Tensor expected = stream.logits(0, sequence, begin, end);
      const std::vector<std::int64_t> next(tokens.begin() + begin + 1, tokens.begin() + end + 1);
      const at::Tensor targets = at::tensor(next, at::kLong).to(expected.device());
      reference.add(expected, expected, targets);
      for (const auto& [index, divergence] : others) {
        divergence->add(expected, stream.logits(index, sequence, begin, end), targets);
      }
      positions += end - begin;
    }
  }
  return positions;
}

}  // namespace

Scores score(const Checkpoint& checkpoint, const TokenBatch& batch,
             std::span<const Candidate> candidates, const ScoreOptions& options) {
  check_lengths(batch, candidates, options.first_scored_position);
  DecoderStream stream(checkpoint, batch,
                       {.device = options.device, .precision = options.precision});
  std::vector<Scored> scored;
  std::vector<DecoderStream::HookRegistration> registrations;
  std::map<const CheckpointPatch*, PatchedStream> patches;
  for (const Candidate& candidate : candidates) {
    const CheckpointPatch* patch = candidate.patch.get();
    if (patch != nullptr && !patches.contains(patch)) {
      patches[patch].stream = stream.add_stream({}, patch);
    }
    Scored s{&candidate};
    const auto attention = [&] {
      return std::make_unique<QuantisedAttention>(candidate.pair, candidate.settings,
                                                  options.precision, options.device);
    };
    s.propagated = attention();
    s.stream = stream.add_stream(stream_attention(*s.propagated), patch);
    if (options.local_errors) {
      s.local = attention();
      s.local_error = std::make_unique<LocalError>(
          *s.local, patch == nullptr ? 0 : patches.at(patch).stream, options.first_scored_position);
      registrations.push_back(stream.add_hook(*s.local_error));
    }
    scored.push_back(std::move(s));
  }
  // What rounding the rotated cache to bf16 costs without quantising it.
  const RotationPair unquantised_pair = baseline_pair("hadamard", checkpoint.config());
  QuantisedAttention unquantised(unquantised_pair, {}, options.precision, options.device, false);
  Divergence floor;
  std::vector<std::pair<int, Divergence*>> divergences;
  for (Scored& s : scored) divergences.emplace_back(s.stream, &s.divergence);
  for (auto& [patch, patched] : patches) {
    divergences.emplace_back(patched.stream, &patched.divergence);
  }
  const bool with_floor = options.noise_floor && options.precision == Precision::bf16;
  if (with_floor) {
    divergences.emplace_back(stream.add_stream(stream_attention(unquantised)), &floor);
  }

  Progress progress(options.progress, options.task, "layer", stream.layer_count());
  while (stream.next_layer() < stream.layer_count()) {
    throw_if_interrupted("nothing was written; run the same command again");
    stream.run_layer();
    progress.update(stream.next_layer(), batch.tokens());
  }
  Divergence reference;
  Scores scores;
  scores.positions =
      score_logits(stream, batch, options.first_scored_position, reference, divergences);
  progress.finish();

  scores.perplexity_reference = reference.result().perplexity;
  if (with_floor) scores.noise_floor = floor.result();
  for (const Scored& s : scored) {
    CandidateReport entry;
    entry.name = s.candidate->name;
    entry.baseline = s.candidate->baseline;
    entry.settings = s.candidate->settings;
    entry.propagated = s.divergence.result();
    if (s.local_error) entry.layers = s.local_error->layers();
    if (s.candidate->patch) entry.patch = patches.at(s.candidate->patch.get()).divergence.result();
    entry.bits_per_element =
        bits_per_element(s.candidate->settings, checkpoint.config(), batch.sequence_length);
    scores.candidates.push_back(std::move(entry));
  }
  return scores;
}

}  // namespace oscar
