#include <fmt/format.h>

#include <optional>

#include "command_line.h"
#include "oscar/calibrate/calibrate.h"
#include "oscar/calibrate/key_bias.h"
#include "oscar/calibrate/summary.h"
#include "oscar/core/atomic_file.h"
#include "oscar/core/json.h"
#include "oscar/rotation/target.h"
#include "oscar/statistics/statistics.h"
#include "prompt_options.h"

namespace oscar::cli {
namespace {

/// How to turn moments into rotations.
struct FitArguments {
  std::optional<std::string> objective;
  std::optional<std::string> target;
  std::optional<std::string> composition;
  std::optional<std::string> granularity;
  bool centred = false;
  int training_steps = 0;
  std::int64_t held_out_tokens = 4096;
  std::vector<int> groups;

  static constexpr const char* kAutomatic = "auto";
  bool automatic() const { return objective == kAutomatic; }

  void add_to(CLI::App& app) {
    std::string objectives =
        "What the rotations diagonalise, a preset or KEY+VALUE:\n"
        "auto: whichever loses least on text held out from the fit, clip ratios included";
    for (const Preset& preset : presets()) {
      objectives += fmt::format("\n{} ({}+{}): {}", preset.name, preset.options.key,
                                preset.options.value, preset.summary);
    }
    app.add_option("--objective", objective, objectives)->group("Rotation");
    std::string engines =
        "The engine that will load the files; without --objective, the best that "
        "it loads is fitted:";
    for (const Target& engine : targets()) {
      engines += fmt::format("\n{} ({}): {}", engine.name, engine.preset, engine.summary);
    }
    app.add_option("--target", target, engines)->group("Rotation");
    std::string compositions = "Factors of the rotation, in order:";
    for (const Composition c : all_compositions()) compositions += fmt::format(" {}", name_of(c));
    compositions += " (default: the objective's)";
    app.add_option("--composition", composition, compositions)->group("Rotation");
    app.add_option("--granularity", granularity,
                   "One rotation a layer or a KV head: layer or head (default: the objective's)")
        ->group("Rotation");
    app.add_flag("--center-keys", centred, "Store keys without their head's mean (format v3)")
        ->group("Rotation");
    app.add_option("--train", training_steps,
                   "Steps of training an orthogonal factor on sampled rows; 200 are plenty")
        ->group("Rotation")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
  }
  /// Of the run with a model alone: choosing needs one.
  void add_automatic_to(CLI::App& app) {
    app.add_option("--held-out-tokens", held_out_tokens,
                   "With --objective auto: tokens behind the calibration text to choose on")
        ->group("Rotation")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--groups", groups,
                   "With --objective auto: also try these group sizes, which cost bits")
        ->group("Rotation")
        ->delimiter(',');
  }
  std::optional<Selection> selection() const {
    if (!automatic()) {
      if (!groups.empty()) fail_input("--groups needs --objective auto");
      return std::nullopt;
    }
    if (composition || granularity || centred) {
      fail_input(
          "--composition, --granularity and --center-keys are what --objective auto chooses; leave "
          "them out, or name an objective");
    }
    return Selection{find_target(target.value_or("any")), held_out_tokens, training_steps, groups};
  }
  FitOptions parse() const {
    if (automatic()) {
      fail_input(
          "--objective auto runs the model to choose, so it needs MODEL; without one, name an "
          "objective or a --target");
    }
    FitOptions options;
    const Target& engine = find_target(target.value_or("any"));
    apply_objective(options, objective.value_or(target ? engine.preset : "oscar"));
    if (composition) options.composition = parse_composition(*composition);
    if (granularity) options.granularity = parse_granularity(*granularity);
    if (centred) options.centred = true;
    options.training.steps = training_steps;
    check_target(options, engine);
    return options;
  }
};

void write_result(const CommonOptions& common, const OrderedJson& json) {
  if (!common.json.empty()) write_json(common.json, json);
}

int report(const CalibrateResult& result, const CommonOptions& common) {
  fmt::print("{}", to_text(result));
  write_result(common, to_json(result));
  return result.health.verdict == Health::bad ? kBelowThreshold : kDone;
}

struct KeyBiasArguments {
  std::filesystem::path model, statistics, output;
  KeyBiasOptions options;
  bool force = false;

  void add_to(CLI::App& app) {
    app.add_option("MODEL", model, "Hugging Face folder or GGUF file")
        ->required()
        ->type_name("PATH");
    app.add_option("--statistics", statistics, "statistics.h5 of a calibration of this model")
        ->required()
        ->type_name("FILE");
    app.add_option("--context", options.context, "Tokens that will be served at most")
        ->required()
        ->check(CLI::PositiveNumber);
    app.add_option("--max-angle", options.max_angle,
                   "Radians that RoPE may turn a plane by over the context")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("-o,--output", output, "Patch to write (.safetensors)")
        ->required()
        ->type_name("FILE");
    app.add_flag("--force", force, "Replace the output file");
  }
};

int take_key_bias(const KeyBiasArguments& arguments, const CommonOptions& common) {
  refuse_existing(arguments.output, arguments.force);
  const auto checkpoint = Checkpoint::open(arguments.model);
  const KeyBiasPatch patch =
      take_key_biases(*checkpoint, load_statistics(arguments.statistics), arguments.options);
  fmt::print("{}", to_text(patch));
  if (patch.tensors.empty()) {
    fmt::print("Nothing was written.\n");
  } else {
    write_patch(arguments.output, patch.tensors);
    fmt::print(
        "\nWritten: {0}\nCalibrate again with --patch {0}; oscar-validate then also measures what "
        "the patch alone costs.\n",
        arguments.output.string());
  }
  write_result(common, to_json(patch));
  return patch.tensors.empty() && !patch.heads.empty() ? kBelowThreshold : kDone;
}

int calibrate_model(CalibrateOptions options, const CommonOptions& common, bool dry_run) {
  options.device = common.parsed_device();
  options.progress = common.parsed_progress();
  if (dry_run) {
    const CalibratePlan plan = plan_calibration(options);
    fmt::print("{}", to_text(plan, options.device));
    write_result(common, to_json(plan));
    return kDone;
  }
  return report(calibrate(options), common);
}

int run_main(int argc, char** argv) {
  CLI::App app(
      "Learns the rotations of an INT2 KV cache from a model and a calibration set.\n"
      "Writes statistics.h5, the rotation pair and manifest.json.",
      "oscar-calibrate");
  set_up(app);
  app.require_subcommand(0, 1);
  app.footer(
      "Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 the data cannot support the "
      "rotation, "
      "130 interrupted.\nExample: oscar-calibrate my-model/ --output rotations/");

  CommonOptions common;
  CalibrateOptions options;
  TextOptions text;
  FitArguments fit_arguments;
  std::vector<int> layers;
  bool dry_run = false;
  std::optional<std::filesystem::path> patch;
  app.add_option("MODEL", options.model, "Hugging Face folder or GGUF file")->type_name("PATH");
  app.add_option("-o,--output", options.output, "Folder to write")
      ->group("Output")
      ->type_name("DIR");
  app.add_flag("--force", options.force, "Replace what the output folder holds")->group("Output");
  app.add_option("--patch", patch,
                 "Safetensors with other values for some of the model's tensors (see key-bias)")
      ->group("Model")
      ->type_name("FILE");
  app.add_flag("--resume", options.resume, "Go on with an interrupted run")->group("Running");
  app.add_option("--state-interval", options.state_interval_seconds,
                 "Seconds between keeping the hidden states for --resume")
      ->group("Running")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--dry-run", dry_run, "Print tokens, layers, memory and time; write nothing")
      ->group("Running");
  app.add_option(
         "--samples", options.samples,
         "Key and value rows to keep in statistics.h5 (1024 where the objective needs them)")
      ->group("Rotation")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--layers", layers, "Record only these layers")->group("Rotation")->delimiter(',');
  text.add_to(app, "the built-in calibration set");
  fit_arguments.add_to(app);
  fit_arguments.add_automatic_to(app);
  common.add_to(app);

  std::filesystem::path statistics;
  auto* fit_command = app.add_subcommand("fit", "Fit again from statistics.h5, without the model");
  fit_command->add_option("STATISTICS", statistics, "statistics.h5 of a calibration")
      ->required()
      ->type_name("FILE");
  fit_command->add_option("-o,--output", options.output, "Folder to write")
      ->required()
      ->type_name("DIR");
  fit_command->add_flag("--force", options.force, "Replace what the output folder holds");
  fit_arguments.add_to(*fit_command);
  common.add_to(*fit_command);

  std::vector<std::filesystem::path> parts;
  auto* merge_command =
      app.add_subcommand("merge", "Add the statistics of several runs of one model");
  merge_command->add_option("STATISTICS", parts, "Two or more statistics files")
      ->required()
      ->expected(2, 4096)
      ->type_name("FILE...");
  merge_command->add_option("-o,--output", options.output, "Statistics file to write")
      ->required()
      ->type_name("FILE");
  merge_command->add_flag("--force", options.force, "Replace the output file");

  KeyBiasArguments key_bias_arguments;
  auto* key_bias_command = app.add_subcommand(
      "key-bias",
      "Take what RoPE barely turns out of the key biases, as a patch of the checkpoint");
  key_bias_arguments.add_to(*key_bias_command);
  common.add_to(*key_bias_command);

  std::filesystem::path inspected;
  auto* inspect_command =
      app.add_subcommand("inspect", "Say what a statistics or rotation file holds");
  inspect_command
      ->add_option("FILE", inspected, "statistics.h5, a rotation file, or a folder with a pair")
      ->required()
      ->type_name("PATH");
  inspect_command->add_option("--json", common.json, "Also write it to this file as JSON")
      ->type_name("FILE");

  return run(app, argc, argv, [&]() -> int {
    set_up_log(common.log_level);
    if (*fit_command) {
      return report(fit_statistics(statistics, options.output, fit_arguments.parse(),
                                   common.parsed_device(), options.force),
                    common);
    }
    if (*merge_command) {
      refuse_existing(options.output, options.force);
      std::vector<Statistics> loaded;
      for (const auto& part : parts) loaded.push_back(load_statistics(part));
      const Statistics sum = merge(std::move(loaded));
      save_statistics(options.output, sum);
      fmt::print("{}: {} tokens of {} runs\n", options.output.string(), sum.tokens, parts.size());
      return kDone;
    }
    if (*key_bias_command) return take_key_bias(key_bias_arguments, common);
    if (*inspect_command) {
      const OrderedJson found = inspect(inspected);
      fmt::print("{}", inspect_text(found));
      write_result(common, found);
      return kDone;
    }
    if (options.model.empty() || options.output.empty()) {
      fail_input("MODEL and --output are needed; see --help");
    }
    options.patch = patch;
    options.prompts = text.prompts;
    options.chat_template = text.chat_template;
    options.precision = text.precision;
    options.selection = fit_arguments.selection();
    if (!options.selection) options.fit = fit_arguments.parse();
    options.layers = {layers.begin(), layers.end()};
    return calibrate_model(options, common, dry_run);
  });
}

}  // namespace
}  // namespace oscar::cli

int main(int argc, char** argv) {
  return oscar::cli::run_main(argc, argv);
}
