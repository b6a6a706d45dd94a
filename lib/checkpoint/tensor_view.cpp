#include "oscar/checkpoint/tensor_view.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "checkpoint/tensor_type.h"
#include "oscar/core/error.h"
#include "oscar/core/float16.h"

namespace oscar {

namespace {

/// Where row `row` of the converted tensor lies in the file. Llama-architecture GGUF files
/// interleave the two RoPE halves of each head: stored row 2i is dimension i, row 2i + 1 dimension
/// i + D/2.
std::int64_t stored_row(const TensorView& tensor, std::int64_t row) {
  if (tensor.interleaved_heads == 0) return row;
  const std::int64_t dim = tensor.rows() / tensor.interleaved_heads;
  const std::int64_t head = row / dim, within = row % dim;
  return head * dim + (within < dim / 2 ? 2 * within : 2 * (within - dim / 2) + 1);
}

void check_range(const TensorView& tensor, std::int64_t first_row, std::int64_t row_count) {
  if (first_row < 0 || row_count < 0 || row_count > tensor.rows() - first_row) {
    fail("rows {} to {} of {} were asked for, which has {}", first_row, first_row + row_count,
         tensor.name, tensor.rows());
  }
}

/// Calls convert(row's bytes, output row index) for every row, on several threads.
template <typename Convert>
void for_rows(const TensorView& tensor, std::int64_t first_row, std::int64_t row_count,
              const Convert& convert) {
  check_range(tensor, first_row, row_count);
  const std::size_t stride =
      tensor.data.size() / static_cast<std::size_t>(std::max<std::int64_t>(tensor.rows(), 1));
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < row_count; ++row) {
    const auto stored = static_cast<std::size_t>(stored_row(tensor, first_row + row));
    convert(tensor.data.data() + stored * stride, row);
  }
}

}  // namespace

std::int64_t TensorView::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

std::int64_t TensorView::columns() const {
  return rows() == 0 ? 0 : elements() / rows();
}

void read_rows(const TensorView& tensor, std::int64_t first_row, std::int64_t row_count,
               float* out) {
  const std::int64_t columns = tensor.columns();
  for_rows(tensor, first_row, row_count, [&](const std::byte* data, std::int64_t row) {
    decode_elements(tensor.type, data, columns, out + row * columns);
  });
}

void read_rows_bfloat16(const TensorView& tensor, std::int64_t first_row, std::int64_t row_count,
                        std::uint16_t* out) {
  const std::int64_t columns = tensor.columns();
  for_rows(tensor, first_row, row_count, [&](const std::byte* data, std::int64_t row) {
    std::uint16_t* row_out = out + row * columns;
    if (tensor.type == TensorType::bf16) {
      std::memcpy(row_out, data, static_cast<std::size_t>(columns) * 2);
      return;
    }
    thread_local std::vector<float> wide;
    wide.resize(static_cast<std::size_t>(columns));
    decode_elements(tensor.type, data, columns, wide.data());
    for (std::int64_t i = 0; i < columns; ++i)
      row_out[i] = float_to_bfloat16(wide[static_cast<std::size_t>(i)]);
  });
}

}  // namespace oscar
