#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace oscar {

/// Shows how far long work has come: layer, tokens/s, peak memory, time to go. Written to stderr.
class Progress {
 public:
  enum class Style { none, bar, plain, json };

  /// `title` is what is being done ("calibrating"), `unit` what is counted ("layer").
  Progress(Style style, std::string title, std::string unit, std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` of the total are finished; `tokens` were processed since the last call. The time to go
  /// comes from the pace of the recent steps, so that it stays honest when the pace changes.
  /// Fractions of a step are welcome: `done` + `part` (0 to 1).
  void update(std::int64_t done, std::int64_t tokens, double part = 0.0);
  /// Work resumed: `done` were finished by an earlier run and say nothing about the pace.
  void start_at(std::int64_t done);
  /// The last line: what was done and how long it took.
  void finish();

 private:
  void print(bool last);
  struct State;
  std::unique_ptr<State> state_;
};

/// Parses auto (a bar on a terminal, plain lines when piped), bar, plain, json or none.
Progress::Style parse_progress_style(std::string_view word);

}  // namespace oscar
