#pragma once

#include <cstdint>
#include <string>

namespace oscar {

/// The process's peak resident memory in bytes (Linux: VmHWM).
std::int64_t peak_memory_bytes();

/// Memory that this machine could still give, in bytes (Linux: MemAvailable).
std::int64_t available_memory_bytes();

/// Turns SIGINT and SIGTERM into a flag. A second signal ends the process at once.
void catch_interrupts();
/// Throws Interrupted if a signal has arrived; called between steps of long work. `how_to_go_on` is
/// what the user is told.
void throw_if_interrupted(const std::string& how_to_go_on);

/// "1.6 GiB", "312 MiB", "12 KiB".
std::string format_bytes(std::int64_t bytes);
/// "1 h 02 min", "3 min 20 s", "12.3 s".
std::string format_seconds(double seconds);

}  // namespace oscar
