#pragma once

#include <cstdint>

#include "oscar/checkpoint/tensor_view.h"

namespace oscar {

/// Block formats store `elements` values in `bytes`; plain types are blocks of one.
struct BlockShape {
  int elements;
  int bytes;
};
BlockShape block_shape(TensorType type);

/// Bytes that a tensor of this type and shape takes. Throws InputError naming `name` if a dimension
/// is negative, the product overflows, or rows are not whole blocks.
std::uint64_t bytes_of_tensor(TensorType type, const std::vector<std::int64_t>& shape,
                              const std::string& name);

/// Decodes `count` elements (whole blocks) that start at `data`.
void decode_elements(TensorType type, const std::byte* data, std::int64_t count, float* out);

}  // namespace oscar
