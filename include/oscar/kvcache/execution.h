#pragma once

#include "oscar/core/device.h"

namespace oscar {

/// Where an operation runs; every pointer it is given must be readable there. On the CPU a call
/// returns when the work is done; on CUDA it is queued on `stream` (a cudaStream_t; null: the
/// default stream).
struct Execution {
  Device device;
  void* stream = nullptr;
};

}  // namespace oscar
