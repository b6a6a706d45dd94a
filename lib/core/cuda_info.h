#pragma once

#include <string>

/// What device.cpp asks of CUDA; without CUDA, stub/cuda_info.cpp answers.
namespace oscar::cuda {

bool built_in();
int device_count();
std::string describe(int index);

}  // namespace oscar::cuda
