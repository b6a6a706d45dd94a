#include "oscar/core/device.h"

#include <charconv>
#include <thread>

#include "core/cuda_info.h"
#include "oscar/core/error.h"

namespace oscar {

std::string Device::name() const {
  return is_cuda() ? fmt::format("cuda:{}", index) : "cpu";
}

int cuda_device_count() {
  return cuda::device_count();
}

Device parse_device(std::string_view word) {
  if (word == "cpu") return {};
  if (word == "auto") {
    return {cuda_device_count() > 0 ? Device::Kind::cuda : Device::Kind::cpu, 0};
  }
  int index = 0;
  bool valid = word == "cuda";
  if (word.starts_with("cuda:")) {
    const std::string_view digits = word.substr(5);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    valid = error == std::errc() && end == digits.data() + digits.size() && index >= 0;
  }
  if (!valid) {
    fail_input("device \"{}\" is not known; use auto, cpu, cuda or cuda:<index>", word);
  }
  if (!cuda::built_in()) {
    fail_input(
        "device \"{}\" was asked for, but this program was built without CUDA; use --device cpu",
        word);
  }
  const int count = cuda_device_count();
  if (index >= count) {
    fail_input("device \"{}\" was asked for, but this machine has {} usable CUDA device(s)", word,
               count);
  }
  return {Device::Kind::cuda, index};
}

std::string describe(const Device& device) {
  if (device.is_cuda()) return cuda::describe(device.index);
  return fmt::format("CPU, {} threads", std::thread::hardware_concurrency());
}

}  // namespace oscar
