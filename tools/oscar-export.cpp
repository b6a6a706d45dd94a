#include <fmt/format.h>

#include "command_line.h"
#include "oscar/core/json.h"
#include "oscar/zoo/diff.h"
#include "oscar/zoo/publish.h"
#include "oscar/zoo/verify.h"

namespace oscar::cli {
namespace {

int run_main(int argc, char** argv) {
  CLI::App app(
      "Publishes a rotation pair in the layout that serving engines load, checks pairs, and "
      "compares them.",
      "oscar-export");
  set_up(app);
  app.require_subcommand(0, 1);
  app.footer(
      "Exit codes: 0 done, 1 failed or different, 2 wrong usage or input, 3 a check failed.\n"
      "Example: oscar-export rotations/ zoo/ --model-name My-Model");

  PublishOptions options;
  std::filesystem::path report;
  std::string json;
  const auto add_json = [&json](CLI::App& command) {
    command.add_option("--json", json, "Also write the result to this file as JSON")
        ->type_name("FILE");
  };
  app.add_option("ROTATIONS", options.rotations, "Folder that holds one pair and its manifest")
      ->type_name("DIR");
  app.add_option("ZOO", options.zoo, "Root of the zoo")->type_name("DIR");
  app.add_option("--model-name", options.model_name,
                 "Folder in the zoo (default: the model's own name)");
  app.add_option("--report", report, "JSON report of oscar-validate, to be summarised on the card")
      ->type_name("FILE");
  app.add_flag("--force", options.force,
               "Replace what is published for this model and calibration");
  add_json(app);

  std::filesystem::path first, second;
  auto* verify_command = app.add_subcommand(
      "verify", "Check a pair: hashes, schema, coverage, shapes, orthogonality, health, one run");
  verify_command->add_option("PATH", first, "Folder that holds a pair, or one rotation file")
      ->required();
  add_json(*verify_command);
  auto* diff_command = app.add_subcommand("diff", "Compare two pairs, layer by layer");
  diff_command->add_option("A", first, "Folder that holds a pair, or a rotation file")->required();
  diff_command->add_option("B", second, "The other")->required();
  add_json(*diff_command);

  return run(app, argc, argv, [&]() -> int {
    set_up_log("info");
    const auto write_result = [&json](const OrderedJson& result) {
      if (!json.empty()) write_json(json, result);
    };
    if (*verify_command) {
      const Verification result = verify(first);
      fmt::print("{}", to_text(result));
      write_result(to_json(result));
      return result.passed() ? kDone : kBelowThreshold;
    }
    if (*diff_command) {
      const RotationDiff result = diff(first, second);
      fmt::print("{}", to_text(result));
      write_result(to_json(result));
      return result.identical ? kDone : kFailed;
    }
    if (options.rotations.empty() || options.zoo.empty())
      fail_input("ROTATIONS and ZOO are needed; see --help");
    if (!report.empty()) options.report = report;
    const Published result = publish(options);
    fmt::print("Published in {}:\n", result.folder.string());
    OrderedJson files = OrderedJson::array();
    for (const auto& file : result.files) {
      fmt::print("  {}\n", file.filename().string());
      files.push_back(file.string());
    }
    write_result({{"schema", "oscar-export"},
                  {"schema_version", 1},
                  {"folder", result.folder.string()},
                  {"files", files}});
    return kDone;
  });
}

}  // namespace
}  // namespace oscar::cli

int main(int argc, char** argv) {
  return oscar::cli::run_main(argc, argv);
}
