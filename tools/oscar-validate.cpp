#include <fmt/format.h>

#include "command_line.h"
#include "oscar/core/json.h"
#include "oscar/validate/validate.h"
#include "prompt_options.h"

namespace oscar::cli {
namespace {

template <typename T>
void add_override(CLI::App& app, const char* name, std::optional<T>& value, const char* what) {
  app.add_option_function<T>(
         name, [&value](const T& given) { value = given; }, what)
      ->group("Cache (default: what the pair's manifest says)");
}

int run_main(int argc, char** argv) {
  CLI::App app(
      "Scores rotations: runs the INT2 KV cache with them and says what the model loses,\n"
      "per layer and in perplexity, beside the identity and Hadamard rotations.",
      "oscar-validate");
  set_up(app);
  app.footer(
      "Exit codes: 0 done, 1 failed, 2 wrong usage or input, 3 a limit is not kept, 130 "
      "interrupted.\n"
      "Example: oscar-validate my-model/ rotations/ --prompts held-out.txt --max-kld 0.1");

  CommonOptions common;
  ValidateOptions options;
  TextOptions text;
  text.prompts.tokens = 8192;
  std::vector<std::string> baselines = options.baselines;
  app.add_option("MODEL", options.model, "Hugging Face folder or GGUF file")
      ->required()
      ->type_name("PATH");
  app.add_option("ROTATIONS", options.rotations, "Folders that hold one pair each")
      ->type_name("DIR...");
  text.add_to(app, "the built-in calibration set, which flatters rotations calibrated on it");
  app.add_option("--baselines", baselines, "Also score these: identity, hadamard, or none")
      ->group("Scoring")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--first-scored-position", options.first_scored_position,
                 "First position of a sequence that counts (default: the second half)")
      ->group("Scoring")
      ->check(CLI::NonNegativeNumber);
  app.add_option_function<double>(
         "--max-kld", [&](double x) { options.max_kld = x; },
         "Exit with 3 if the mean KL divergence is above this (nats)")
      ->group("Scoring");
  app.add_option_function<double>(
         "--max-ppl-increase", [&](double x) { options.max_perplexity_increase = x; },
         "Exit with 3 if perplexity rises by more than this many per cent")
      ->group("Scoring");
  app.add_flag("--force", options.force, "Score a pair made for another model all the same")
      ->group("Scoring");
  SettingOverrides& cache = options.settings;
  add_override(app, "--k-clip", cache.k_clip, "Clip ratio of keys; 0: off");
  add_override(app, "--v-clip", cache.v_clip, "Clip ratio of values; 0: off");
  add_override(app, "--clip-rule", cache.clip_rule,
               "exact (prefill) or bisect (demotion during decode)");
  add_override(app, "--group", cache.group, "Channels that share a scale");
  add_override(app, "--sink", cache.sink, "First tokens kept in bf16");
  add_override(app, "--recent", cache.recent, "Last tokens kept in bf16");
  add_override(app, "--scale-type", cache.scale_type, "fp32, bf16 or fp16");
  common.add_to(app);

  return run(app, argc, argv, [&]() -> int {
    set_up_log(common.log_level);
    options.prompts = text.prompts;
    options.chat_template = text.chat_template;
    options.precision = text.precision;
    options.device = common.parsed_device();
    options.progress = common.parsed_progress();
    options.baselines =
        baselines == std::vector<std::string>{"none"} ? std::vector<std::string>{} : baselines;
    const ValidationReport report = validate(options);
    fmt::print("{}", to_text(report));
    if (!common.json.empty()) write_json(common.json, to_json(report));
    return report.passed ? kDone : kBelowThreshold;
  });
}

}  // namespace
}  // namespace oscar::cli

int main(int argc, char** argv) {
  return oscar::cli::run_main(argc, argv);
}
