#pragma once

#include <omp.h>

#include <cstddef>
#include <vector>

namespace oscar::cpu {

/// Scratch memory for each OpenMP thread, allocated before the threads start: an allocation that
/// fails inside a parallel region could not be reported.
class Workspace {
 public:
  explicit Workspace(std::size_t floats_per_thread)
      : stride_((floats_per_thread + 15) / 16 * 16),
        data_(stride_ * static_cast<std::size_t>(omp_get_max_threads())) {}

  /// The calling thread's part.
  float* mine() { return data_.data() + stride_ * static_cast<std::size_t>(omp_get_thread_num()); }

 private:
  std::size_t stride_;
  std::vector<float> data_;
};

}  // namespace oscar::cpu
