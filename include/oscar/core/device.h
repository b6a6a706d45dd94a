#pragma once

#include <string>
#include <string_view>

namespace oscar {

/// Where work runs. Every room's CUDA back end takes the index; the CPU back ends ignore it.
struct Device {
  enum class Kind { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;

  bool is_cuda() const { return kind == Kind::cuda; }
  /// "cpu", "cuda:0".
  std::string name() const;
  friend bool operator==(const Device&, const Device&) = default;
};

/// The number of usable CUDA devices: 0 without a driver, or in a build without CUDA.
int cuda_device_count();

/// Parses "auto" (the first CUDA device if there is one, else the CPU), "cpu", "cuda" or
/// "cuda:<i>". Throws InputError for other words and for a device that this machine or build does
/// not have.
Device parse_device(std::string_view word);

/// A line for the log: the device's name, memory and compute capability, or the CPU and its
/// threads.
std::string describe(const Device& device);

}  // namespace oscar
