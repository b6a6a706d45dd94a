#pragma once

#include <cstddef>
#include <cstdint>

namespace oscar {

/// How the elements of a row are stored.
enum class ElementType { fp32, bf16 };

std::size_t bytes_of(ElementType type);
const char* name_of(ElementType type);

/// Rows of `dim` contiguous elements, one for each token and head, in memory that the caller owns.
/// Strides count elements, so [tokens, heads, dim], [heads, tokens, dim] and slices of a fused qkv
/// tensor all fit.
struct ConstRows {
  const void* data = nullptr;
  ElementType type = ElementType::fp32;
  std::int64_t tokens = 0;
  int heads = 0;
  int dim = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;

  /// The view of a contiguous [tokens, heads, dim].
  static ConstRows packed(const void* data, ElementType type, std::int64_t tokens, int heads,
                          int dim) {
    return {data, type, tokens, heads, dim, std::int64_t{heads} * dim, dim};
  }
};

/// The same, to be written. Two rows must not overlap.
struct MutableRows {
  void* data = nullptr;
  ElementType type = ElementType::fp32;
  std::int64_t tokens = 0;
  int heads = 0;
  int dim = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;

  static MutableRows packed(void* data, ElementType type, std::int64_t tokens, int heads, int dim) {
    return {data, type, tokens, heads, dim, std::int64_t{heads} * dim, dim};
  }
  operator ConstRows() const {  // NOLINT(google-explicit-constructor): as T* converts to const T*
    return {data, type, tokens, heads, dim, token_stride, head_stride};
  }
};

}  // namespace oscar
