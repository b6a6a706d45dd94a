#include "oscar/core/system.h"

#include <array>
#include <csignal>
#include <cstdlib>
#include <fstream>

#include "oscar/core/error.h"

namespace oscar {

namespace {

/// A field of a /proc file in bytes ("VmHWM:   1234 kB"); 0 if it is not there.
std::int64_t proc_field(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return std::atoll(line.c_str() + name.size() + 1) * 1024;
  }
  return 0;
}

volatile std::sig_atomic_t interrupted = 0;

void on_signal(int signal) {
  if (interrupted != 0) std::_Exit(128 + signal);
  interrupted = 1;
}

}  // namespace

std::int64_t peak_memory_bytes() {
  return proc_field("/proc/self/status", "VmHWM");
}
std::int64_t available_memory_bytes() {
  return proc_field("/proc/meminfo", "MemAvailable");
}

void catch_interrupts() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

void throw_if_interrupted(const std::string& how_to_go_on) {
  if (interrupted != 0) throw Interrupted("interrupted; " + how_to_go_on);
}

std::string format_bytes(std::int64_t bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit >= 3 ? fmt::format("{:.1f} {}", value, kUnits[unit])
                   : fmt::format("{:.0f} {}", value, kUnits[unit]);
}

std::string format_seconds(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{} h {:02d} min", whole / 3600, whole % 3600 / 60);
  if (whole >= 60) return fmt::format("{} min {:02d} s", whole / 60, whole % 60);
  return fmt::format("{:.1f} s", seconds);
}

}  // namespace oscar
