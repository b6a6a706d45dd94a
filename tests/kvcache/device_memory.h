#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "oscar/core/device.h"

namespace oscar::test {

void* allocate_on_device(std::size_t bytes);
void free_on_device(void* pointer);
void copy_to_device(void* to, const void* from, std::size_t bytes);
void copy_from_device(void* to, const void* from, std::size_t bytes);  ///< Waits for queued work.

/// An array where an operation runs: plain memory for the CPU, device memory for CUDA.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(const Device& device, const std::vector<T>& values)
      : cuda_(device.is_cuda()), host_(values) {
    if (!cuda_) return;
    device_.reset(allocate_on_device(host_.size() * sizeof(T)));
    copy_to_device(device_.get(), host_.data(), host_.size() * sizeof(T));
  }
  /// Filled with a byte pattern that is a NaN, so that what is not written shows.
  DeviceArray(const Device& device, std::size_t count) : DeviceArray(device, poison(count)) {}

  T* data() { return cuda_ ? static_cast<T*>(device_.get()) : host_.data(); }
  std::vector<T> values() const {
    std::vector<T> result = host_;
    if (cuda_) copy_from_device(result.data(), device_.get(), result.size() * sizeof(T));
    return result;
  }

 private:
  static std::vector<T> poison(std::size_t count) {
    std::vector<T> values(count);
    std::memset(values.data(), 0xff, count * sizeof(T));
    return values;
  }
  struct Free {
    void operator()(void* pointer) const { free_on_device(pointer); }
  };
  bool cuda_;
  std::vector<T> host_;
  std::unique_ptr<void, Free> device_;
};

/// The devices that a test is run on; skip CUDA ones where there is none.
inline const Device kCpu{};
inline const Device kCuda{Device::Kind::cuda, 0};

}  // namespace oscar::test
