#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "oscar/checkpoint/tensor_view.h"
#include "oscar/core/mapped_file.h"

namespace oscar {

/// The tensors of one mapped safetensors file, by name. Throws InputError if the header lies:
/// lengths, offsets, overlaps, sizes that do not fit the shapes, duplicates. Tensors of types that
/// no weight has (integers, FP8) are left out and named in `skipped` with their type.
std::map<std::string, TensorView> read_safetensors(const MappedFile& file,
                                                   std::map<std::string, std::string>& skipped);

}  // namespace oscar
