#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace oscar {

/// How a checkpoint stores a tensor's elements. The q types are GGUF's block formats.
enum class TensorType { f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k };

/// "F32", "Q4_1", ...
const char* name_of(TensorType type);

/// A tensor inside a mapped checkpoint: nothing is copied until it is converted.
struct TensorView {
  std::string name;  ///< as the file calls it, for messages
  TensorType type = TensorType::f32;
  std::vector<std::int64_t>
      shape;  ///< outermost dimension first; block formats run along the last one
  std::span<const std::byte> data;
  /// For q and k projections of Llama-architecture GGUF files: each head's rows are stored in
  /// interleaved RoPE order and are brought to Hugging Face's half-split order by the conversion.
  /// 0: rows as they are.
  std::int64_t interleaved_heads = 0;

  std::int64_t elements() const;
  std::int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  /// Elements of one row: elements() / rows().
  std::int64_t columns() const;
};

/// Converts rows [first_row, first_row + row_count) to float32, multi-threaded. `out` has row_count
/// × columns() elements.
void read_rows(const TensorView& tensor, std::int64_t first_row, std::int64_t row_count,
               float* out);
/// The same, rounded to bfloat16 bit patterns (exact if the tensor is stored in bf16).
void read_rows_bfloat16(const TensorView& tensor, std::int64_t first_row, std::int64_t row_count,
                        std::uint16_t* out);

}  // namespace oscar
