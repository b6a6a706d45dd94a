#include "oscar/calibrate/calibrate.h"

#include <chrono>
#include <tuple>

#include "calibrate/plan.h"
#include "calibrate/unfinished_run.h"
#include "oscar/calibrate/recorder.h"
#include "oscar/core/atomic_file.h"
#include "oscar/core/error.h"
#include "oscar/core/hash.h"
#include "oscar/core/log.h"
#include "oscar/core/system.h"
#include "oscar/core/version.h"
#include "oscar/rotation/key_offset.h"
#include "oscar/zoo/pair_folder.h"
#include "oscar/zoo/rotation_file.h"

namespace oscar {

namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The user's input, opened and checked.
struct Input {
  std::unique_ptr<Checkpoint> checkpoint;
  std::shared_ptr<const CheckpointPatch> patch;
  std::string tokenizer_fingerprint;
  TokenBatch tokens;
  TokenBatch held_out;  ///< what a selection is scored on
  Precision precision = Precision::fp32;
  std::set<int> layers;  ///< to record
};

/// The calibration text and, for a selection, what follows it.
void load_text(Input& input, const Tokenizer& tokenizer, const CalibrateOptions& options) {
  const ChatTemplate chat_template = ChatTemplate::load(options.chat_template, options.model);
  if (!options.selection) {
    input.tokens = load_prompts(tokenizer, chat_template, options.prompts);
    return;
  }
  const std::int64_t held_out = options.selection->held_out_tokens;
  PromptOptions all = options.prompts;
  if (all.tokens > 0) all.tokens += held_out;
  all.fill = false;
  const TokenBatch batch = load_prompts(tokenizer, chat_template, all);
  const std::int64_t found = batch.tokens();
  if (found < all.tokens || found <= held_out) {
    fail_input(
        "the prompts hold {} tokens, but --tokens {} and --held-out-tokens {} were asked for; give "
        "more text, or fewer of either (documents of .jsonl files are cut at --sequence-length {})",
        found, options.prompts.tokens, held_out, options.prompts.sequence_length);
  }
  std::tie(input.tokens, input.held_out) = split(batch, found - held_out);
}

Input open_input(const CalibrateOptions& options) {
  Input input;
  input.checkpoint = Checkpoint::open(options.model);
  if (options.patch) input.patch = CheckpointPatch::open(*options.patch, *input.checkpoint);
  const Tokenizer tokenizer = Tokenizer::load(options.model);
  input.tokenizer_fingerprint = tokenizer.fingerprint();
  load_text(input, tokenizer, options);
  input.precision = parse_precision(options.precision, options.device);
  const int count = input.checkpoint->config().layers;
  if (options.selection && !options.layers.empty()) {
    fail_input("--layers cannot go with --objective auto, which scores rotations for every layer");
  }
  for (const int layer : options.layers) {
    if (layer < 0 || layer >= count) {
      fail_input("--layers {}: the model has layers 0 to {}", layer, count - 1);
    }
  }
  input.layers = options.layers;
  if (input.layers.empty()) {
    for (int layer = 0; layer < count; ++layer) input.layers.insert(layer);
  }
  return input;
}

/// Row samples are kept when asked for, and for the objective that cannot do without.
std::int64_t samples_to_keep(const CalibrateOptions& options) {
  constexpr std::int64_t kWhereNeeded = 1024;
  const bool needed = find_objective(Side::key, options.fit.key).needs_samples() ||
                      find_objective(Side::value, options.fit.value).needs_samples() ||
                      options.fit.training.steps > 0 || options.selection.has_value();
  return options.samples > 0 || !needed ? options.samples : kWhereNeeded;
}

CalibratePlan plan_for(const Input& input, const CalibrateOptions& options) {
  return make_plan(input.checkpoint->config(), input.tokens, input.held_out,
                   options.selection ? most_trials(*options.selection) : 0, input.precision,
                   options.device, samples_to_keep(options));
}

OrderedJson identity(const Input& input, const CalibrateOptions& options) {
  return {{"tool_version", kVersion},
          {"model_fingerprint", input.checkpoint->fingerprint()},
          {"patch_sha256", input.patch ? input.patch->sha256() : ""},
          {"tokenizer_fingerprint", input.tokenizer_fingerprint},
          {"dataset_sha256", input.tokens.sha256()},
          {"sequence_length", input.tokens.sequence_length},
          {"precision", name_of(input.precision)},
          {"samples", samples_to_keep(options)},
          {"device", options.device.is_cuda() ? "cuda" : "cpu"},
          {"layers", input.layers}};
}

fs::path unfinished_folder(const fs::path& output) {
  return output / "unfinished";
}

void check_output(const CalibrateOptions& options) {
  if (fs::exists(unfinished_folder(options.output) / "run.json")) {
    if (options.force && !options.resume) {
      fs::remove_all(unfinished_folder(options.output));
    } else if (!options.resume) {
      fail_input(
          "{}: holds an unfinished run; pass --resume to go on with it, or --force to start over",
          options.output.string());
    }
    return;
  }
  if (options.resume && fs::exists(options.output / "manifest.json")) {
    fail_input("{}: the run is finished, there is nothing to resume; its manifest.json is there",
               options.output.string());
  }
  // Killed before it wrote its settings: the folder is ours, and holds nothing yet.
  if (options.resume && fs::exists(unfinished_folder(options.output))) return;
  refuse_existing(options.output, options.force);
}

void check_space(const fs::path& output, std::int64_t needed) {
  fs::path existing = fs::absolute(output);
  while (!fs::exists(existing)) existing = existing.parent_path();
  const auto available = static_cast<std::int64_t>(fs::space(existing).available);
  if (available < needed) {
    fail_input(
        "{}: the disk has {} free, the run needs {}; free some space or choose another --output",
        output.string(), format_bytes(available), format_bytes(needed));
  }
}

/// Streams the model over the tokens and leaves every recorded layer as a file of the unfinished
/// run.
void record_layers(const Input& input, const CalibrateOptions& options, const UnfinishedRun& run) {
  DecoderStream stream(
      *input.checkpoint, input.tokens,
      {.device = options.device, .precision = input.precision, .patch = input.patch.get()});
  Recorder recorder(
      Recorder::Options{input.layers, samples_to_keep(options), input.tokens.tokens()});
  const auto registration = stream.add_hook(recorder);
  const int last = *input.layers.rbegin() + 1;
  Progress progress(options.progress, "calibrating", "layer", last);
  if (const auto layer = run.latest_state()) {
    stream.restore_state(run.state_path(*layer));
    progress.start_at(*layer);
    spdlog::info("going on at layer {}", *layer);
  }
  std::int64_t in_layer = 0;
  recorder.on_progress([&](std::int64_t tokens) {
    in_layer += tokens;
    const double part = static_cast<double>(in_layer) / static_cast<double>(input.tokens.tokens());
    progress.update(stream.next_layer(), tokens, std::min(part, 0.999));
  });
  auto saved = Clock::now();
  const auto save_state = [&] {
    stream.save_state(run.state_path(stream.next_layer()));
    run.keep_only_state(stream.next_layer());
    saved = Clock::now();
  };
  while (stream.next_layer() < last) {
    try {
      throw_if_interrupted("run the same command with --resume to go on");
    } catch (const Interrupted&) {
      save_state();
      throw;
    }
    const int layer = stream.next_layer();
    in_layer = 0;
    stream.run_layer();
    if (input.layers.contains(layer)) run.save_layer(layer, recorder.finish_layer(layer));
    progress.update(stream.next_layer(), 0);
    if (stream.next_layer() < last && seconds_since(saved) > options.state_interval_seconds)
      save_state();
  }
  progress.finish();
}

Statistics collect(const Input& input, const CalibrateOptions& options, const UnfinishedRun& run) {
  Statistics statistics;
  statistics.model = options.model.string();
  statistics.model_fingerprint = input.checkpoint->fingerprint();
  statistics.tokenizer_fingerprint = input.tokenizer_fingerprint;
  statistics.dataset_sha256 = input.tokens.sha256();
  statistics.tool_version = kVersion;
  statistics.precision = name_of(input.precision);
  if (input.patch) statistics.patch_sha256 = input.patch->sha256();
  statistics.tokens = input.tokens.tokens();
  statistics.sequences = static_cast<std::int64_t>(input.tokens.sequences.size());
  statistics.sequence_length = input.tokens.sequence_length;
  for (const int layer : input.layers) statistics.layers.emplace(layer, run.load_layer(layer));
  return statistics;
}

/// A pair, how it was fitted and how it is served.
struct Fitted {
  RotationPair pair;
  FitOptions fit;
  ServedSettings settings;
  std::optional<Choice> choice;
};

Fitted fit_as_asked(const Statistics& statistics, const FitOptions& fit_options,
                    const Device& device) {
  Fitted fitted{fit(statistics, fit_options, device), fit_options, {}, {}};
  fitted.settings.k_clip = fit_options.k_clip;
  fitted.settings.v_clip = fit_options.v_clip;
  return fitted;
}

Fitted fit_best(const Statistics& statistics, const Input& input, const CalibrateOptions& options) {
  Choice choice = choose(
      *input.checkpoint, input.patch, statistics, input.held_out, *options.selection,
      {.device = options.device, .precision = input.precision, .progress = options.progress});
  const Trial& best = choice.best();
  Fitted fitted{best.candidate.pair, best.fit, best.candidate.settings, {}};
  fitted.choice = std::move(choice);
  return fitted;
}

/// Writes a pair with its manifest; `listed` are the folder's other files.
CalibrateResult write_result(const Statistics& statistics, const fs::path& output, Fitted fitted,
                             const Device& device, const std::vector<std::string>& listed) {
  CalibrateResult result;
  result.health = check_health(fitted.pair);
  result.convergence = check_convergence(statistics, fitted.fit, device);
  result.key_offset_warning = key_offset_warning(statistics, fitted.fit);
  PairInfo info;
  info.model = statistics.model;
  info.model_fingerprint = statistics.model_fingerprint;
  info.tokenizer_fingerprint = statistics.tokenizer_fingerprint;
  info.dataset_sha256 = statistics.dataset_sha256;
  info.tokens = statistics.tokens;
  info.sequences = statistics.sequences;
  info.sequence_length = statistics.sequence_length;
  info.precision = statistics.precision;
  info.objective = fitted.fit.key + "+" + fitted.fit.value;
  info.composition = name_of(fitted.fit.composition);
  info.settings = fitted.settings;
  info.convergence = {{"verdict", name_of(result.convergence.verdict)},
                      {"key_excess", result.convergence.key_excess},
                      {"value_excess", result.convergence.value_excess}};
  if (fitted.choice) info.selection = to_json(*fitted.choice);
  write_pair(output, fitted.pair, info, listed);
  result.output = output;
  result.key_file = output / rotation_file_name(fitted.pair.key);
  result.value_file = output / rotation_file_name(fitted.pair.value);
  result.manifest_file = output / "manifest.json";
  result.tokens = statistics.tokens;
  result.sequences = statistics.sequences;
  result.layers = static_cast<int>(statistics.layers.size());
  result.choice = std::move(fitted.choice);
  return result;
}

/// Puts a copy of the patch among the files of a pair.
void add_patch(const fs::path& patch, const fs::path& output, std::vector<std::string>& listed) {
  const fs::path place = output / kPatchFileName;
  if (!fs::exists(place) || !fs::equivalent(patch, place)) write_file(place, read_file(patch));
  listed.emplace_back(kPatchFileName);
}

/// The patch that the weights behind the statistics had: it must lie beside them.
fs::path patch_beside(const fs::path& statistics_file, const Statistics& statistics) {
  fs::path patch = fs::absolute(statistics_file).parent_path() / kPatchFileName;
  if (!fs::exists(patch) || sha256_file(patch) != statistics.patch_sha256) {
    fail_input(
        "{}: was recorded with patched weights (sha256 {}), but {} {}; put the patch there, the "
        "rotations do not work without it",
        statistics_file.string(), statistics.patch_sha256, patch.string(),
        fs::exists(patch) ? "is another" : "is missing");
  }
  return patch;
}

}  // namespace

CalibratePlan plan_calibration(const CalibrateOptions& options) {
  check_output(options);
  const Input input = open_input(options);
  return plan_for(input, options);
}

CalibrateResult calibrate(const CalibrateOptions& options) {
  const auto start = Clock::now();
  check_output(options);
  const Input input = open_input(options);
  check_space(options.output, plan_for(input, options).disk_bytes);
  const bool new_output = !fs::exists(options.output);
  const UnfinishedRun run(unfinished_folder(options.output), identity(input, options));
  try {
    record_layers(input, options, run);
    const Statistics statistics = collect(input, options, run);
    const fs::path statistics_file = options.output / "statistics.h5";
    save_statistics(statistics_file, statistics);
    std::vector<std::string> listed = {"statistics.h5"};
    if (input.patch) add_patch(input.patch->path(), options.output, listed);
    Fitted fitted = options.selection ? fit_best(statistics, input, options)
                                      : fit_as_asked(statistics, options.fit, options.device);
    CalibrateResult result =
        write_result(statistics, options.output, std::move(fitted), options.device, listed);
    run.remove();
    result.statistics_file = statistics_file;
    result.seconds = seconds_since(start);
    return result;
  } catch (const InputError&) {
    // The input will not get better by resuming. What this run did not make itself stays.
    if (run.is_new()) run.remove();
    if (new_output) {
      std::error_code ignored;
      fs::remove_all(options.output, ignored);
    }
    throw;
  }
}

CalibrateResult fit_statistics(const fs::path& statistics_file, const fs::path& output,
                               const FitOptions& options, const Device& device, bool force) {
  const auto start = Clock::now();
  const Statistics statistics = load_statistics(statistics_file);
  std::optional<fs::path> patch;
  if (!statistics.patch_sha256.empty()) patch = patch_beside(statistics_file, statistics);
  refuse_existing(output, force);
  std::error_code error;
  fs::create_directories(output, error);
  if (error) fail_input("{}: cannot be created ({})", output.string(), error.message());
  std::vector<std::string> listed;
  if (patch) add_patch(*patch, output, listed);
  CalibrateResult result =
      write_result(statistics, output, fit_as_asked(statistics, options, device), device, listed);
  result.statistics_file = statistics_file;
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace oscar
