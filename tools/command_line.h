#pragma once

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>

#include "oscar/core/device.h"
#include "oscar/core/error.h"
#include "oscar/core/log.h"
#include "oscar/core/progress.h"
#include "oscar/core/system.h"
#include "oscar/core/version.h"

/// What the three programs' command lines share: common options, help, and exit codes.
namespace oscar::cli {

/// 0 done, 1 failed, 2 wrong usage or input, 3 the result is below what was asked for or needed,
/// 130 interrupted.
enum ExitCode { kDone = 0, kFailed = 1, kWrongInput = 2, kBelowThreshold = 3, kInterrupted = 130 };

/// Options that every program and subcommand has.
struct CommonOptions {
  std::string device = "auto";
  std::string progress = "auto";
  std::string log_level = "info";
  std::string json;  ///< file for the machine-readable result; empty: none

  void add_to(CLI::App& app) {
    app.add_option("--device", device, "auto, cpu, cuda or cuda:<index>")
        ->group("Running")
        ->capture_default_str();
    app.add_option("--progress", progress,
                   "auto, bar, plain, json (one object a line, on stderr) or none")
        ->group("Running")
        ->capture_default_str();
    app.add_option("--log-level", log_level, "trace, debug, info, warn, error or off")
        ->group("Running")
        ->capture_default_str();
    app.add_option("--json", json, "Also write the result to this file as JSON")
        ->group("Output")
        ->type_name("FILE");
  }
  Device parsed_device() const { return parse_device(device); }
  Progress::Style parsed_progress() const { return parse_progress_style(progress); }
};

/// An application with --version, and --config FILE.toml for long command lines.
inline void set_up(CLI::App& app) {
  app.set_version_flag("--version", std::string(app.get_name()) + " " + kVersion);
  app.set_config("--config", "", "Read options from a TOML file")->group("Running");
  app.get_formatter()->column_width(34);
}

/// Parses and runs; turns every way of ending into its exit code, and errors into one message on
/// stderr.
inline int run(CLI::App& app, int argc, char** argv, const std::function<int()>& body) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? kDone : kWrongInput;
  }
  const auto say = [&](const char* what) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), what);
  };
  try {
    catch_interrupts();
    return body();
  } catch (const Interrupted& error) {
    say(error.what());
    return kInterrupted;
  } catch (const InputError& error) {
    say(error.what());
    return kWrongInput;
  } catch (const std::exception& error) {
    say(error.what());
    return kFailed;
  }
}

}  // namespace oscar::cli
