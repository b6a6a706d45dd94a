#include "oscar/validate/validate.h"

#include "oscar/core/error.h"
#include "validate/candidate.h"
#include "validate/verdict.h"

namespace oscar {

ServedSettings SettingOverrides::apply(ServedSettings settings) const {
  settings.sink = sink.value_or(settings.sink);
  settings.recent = recent.value_or(settings.recent);
  settings.group = group.value_or(settings.group);
  settings.k_clip = k_clip.value_or(settings.k_clip);
  settings.v_clip = v_clip.value_or(settings.v_clip);
  settings.clip_rule = clip_rule.value_or(settings.clip_rule);
  settings.scale_type = scale_type.value_or(settings.scale_type);
  if (settings.sink < 0 || settings.recent < 0 || settings.sink % 8 != 0 ||
      settings.recent % 8 != 0) {
    fail_input("--sink {} and --recent {} must be multiples of 8", settings.sink, settings.recent);
  }
  return settings;
}

ValidationReport validate(const ValidateOptions& options) {
  const auto checkpoint = Checkpoint::open(options.model);
  const Tokenizer tokenizer = Tokenizer::load(options.model);
  const TokenBatch batch = load_prompts(
      tokenizer, ChatTemplate::load(options.chat_template, options.model), options.prompts);

  ValidationReport report;
  report.model = options.model.string();
  report.model_fingerprint = checkpoint->fingerprint();
  report.dataset_sha256 = batch.sha256();
  report.tokens = batch.tokens();
  report.sequence_length = batch.sequence_length;
  report.first_scored_position = options.first_scored_position;
  const Precision precision = parse_precision(options.precision, options.device);
  report.precision = name_of(precision);
  report.max_kld = options.max_kld;
  report.max_perplexity_increase = options.max_perplexity_increase;

  const std::vector<Candidate> candidates =
      load_candidates(options, *checkpoint, report.dataset_sha256);

  Scores scores = score(*checkpoint, batch, candidates,
                        {.device = options.device,
                         .precision = precision,
                         .first_scored_position = options.first_scored_position,
                         .progress = options.progress});
  report.scored_positions = scores.positions;
  report.perplexity_reference = scores.perplexity_reference;
  report.noise_floor = std::move(scores.noise_floor);
  report.candidates = std::move(scores.candidates);
  judge(report);
  return report;
}

}  // namespace oscar
