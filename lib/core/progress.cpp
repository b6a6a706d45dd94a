#include "oscar/core/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <deque>

#include "oscar/core/error.h"
#include "oscar/core/json.h"
#include "oscar/core/system.h"

namespace oscar {

namespace {
using Clock = std::chrono::steady_clock;
double seconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}
}  // namespace

struct Progress::State {
  struct Sample {
    Clock::time_point time;
    double position;
    std::int64_t tokens;
  };
  Style style;
  std::string title, unit;
  std::int64_t total = 0;
  std::int64_t first = 0;
  std::int64_t tokens = 0;
  double position = 0;
  std::int64_t printed_step = -1;
  bool finished = false;
  Clock::time_point start = Clock::now();
  Clock::time_point printed{};
  std::deque<Sample> recent;  // the last minute at most

  /// Seconds to go and tokens per second, from the recent samples.
  std::pair<double, double> pace() const {
    const Sample& then = recent.front();
    const Sample& now = recent.back();
    const double elapsed = seconds_between(then.time, now.time);
    const double moved = now.position - then.position;
    if (elapsed <= 0 || moved <= 0) return {-1, 0};
    return {(static_cast<double>(total) - now.position) * elapsed / moved,
            static_cast<double>(now.tokens - then.tokens) / elapsed};
  }
};

Progress::Progress(Style style, std::string title, std::string unit, std::int64_t total)
    : state_(std::make_unique<State>()) {
  state_->style = style;
  state_->title = std::move(title);
  state_->unit = std::move(unit);
  state_->total = total;
  state_->recent.push_back({state_->start, 0, 0});
}

Progress::~Progress() {
  // Unwinding from an error: leave the line as it is, the error's message follows.
  if (state_->style == Style::bar && !state_->finished) std::fputc('\n', stderr);
}

void Progress::start_at(std::int64_t done) {
  state_->first = done;
  state_->position = static_cast<double>(done);
  state_->recent = {{Clock::now(), state_->position, 0}};
}

void Progress::update(std::int64_t done, std::int64_t tokens, double part) {
  State& s = *state_;
  const auto now = Clock::now();
  s.tokens += tokens;
  s.position = static_cast<double>(done) + part;
  s.recent.push_back({now, s.position, s.tokens});
  while (s.recent.size() > 2 && seconds_between(s.recent.front().time, now) > 60)
    s.recent.pop_front();
  const bool step = done != s.printed_step;
  const double since = s.printed == Clock::time_point{} ? 1e9 : seconds_between(s.printed, now);
  const bool due =
      s.style == Style::bar ? since >= 0.1 : step && (since >= 1 || s.style == Style::json);
  if (!due || s.style == Style::none) return;
  s.printed = now;
  s.printed_step = done;
  print(false);
}

void Progress::finish() {
  if (state_->finished) return;
  state_->finished = true;
  if (state_->style != Style::none) print(true);
}

void Progress::print(bool last) {
  State& s = *state_;
  const auto done = static_cast<std::int64_t>(s.position);
  const double elapsed = seconds_between(s.start, Clock::now());
  auto [to_go, rate] = s.pace();
  if (last) {
    to_go = 0;
    rate = elapsed > 0 ? static_cast<double>(s.tokens) / elapsed : 0;
  }
  if (s.style == Style::json) {
    OrderedJson line = {{"progress", s.title},
                        {"unit", s.unit},
                        {"done", done},
                        {"total", s.total},
                        {"tokens_per_second", rate},
                        {"peak_memory_bytes", peak_memory_bytes()},
                        {"elapsed_seconds", elapsed},
                        {"seconds_to_go", to_go < 0 ? OrderedJson(nullptr) : OrderedJson(to_go)},
                        {"finished", last}};
    std::fputs((line.dump() + "\n").c_str(), stderr);
    return;
  }
  const std::string pace = rate > 0 ? fmt::format(", {:.0f} token-{}s/s", rate, s.unit) : "";
  const std::string when = last         ? "done in " + format_seconds(elapsed)
                           : to_go >= 0 ? format_seconds(to_go) + " to go"
                                        : "estimating";
  const std::string text = fmt::format("{}: {} {} of {}{}, peak {}, {}", s.title, s.unit, done,
                                       s.total, pace, format_bytes(peak_memory_bytes()), when);
  if (s.style == Style::plain) {
    std::fputs((text + "\n").c_str(), stderr);
    return;
  }
  constexpr int kWidth = 24;
  const int full =
      s.total > 0 ? static_cast<int>(kWidth * std::min(1.0, s.position / s.total)) : kWidth;
  std::string bar;
  for (int i = 0; i < kWidth; ++i) bar += i < full ? "█" : "░";
  std::fputs(fmt::format("\r\x1b[K{} {}{}", bar, text, last ? "\n" : "").c_str(), stderr);
  std::fflush(stderr);
}

Progress::Style parse_progress_style(std::string_view word) {
  if (word == "auto")
    return ::isatty(STDERR_FILENO) != 0 ? Progress::Style::bar : Progress::Style::plain;
  if (word == "bar") return Progress::Style::bar;
  if (word == "plain") return Progress::Style::plain;
  if (word == "json") return Progress::Style::json;
  if (word == "none") return Progress::Style::none;
  fail_input("progress style \"{}\" is not known; use auto, bar, plain, json or none", word);
}

}  // namespace oscar
