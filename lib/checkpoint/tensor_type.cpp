#include "checkpoint/tensor_type.h"

#include <array>
#include <cstring>

#include "oscar/core/error.h"
#include "oscar/core/float16.h"

namespace oscar {

namespace {

struct TypeInfo {
  const char* name;
  BlockShape block;
};

const TypeInfo& info(TensorType type) {
  static constexpr std::array<TypeInfo, 11> kTypes = {{{"F32", {1, 4}},
                                                       {"F16", {1, 2}},
                                                       {"BF16", {1, 2}},
                                                       {"Q8_0", {32, 34}},
                                                       {"Q4_0", {32, 18}},
                                                       {"Q4_1", {32, 20}},
                                                       {"Q5_0", {32, 22}},
                                                       {"Q5_1", {32, 24}},
                                                       {"Q4_K", {256, 144}},
                                                       {"Q5_K", {256, 176}},
                                                       {"Q6_K", {256, 210}}}};
  return kTypes[static_cast<std::size_t>(type)];
}

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

float half_at(const std::byte* at) {
  return half_to_float(load<std::uint16_t>(at));
}
int byte_at(const std::byte* at) {
  return static_cast<int>(*at);
}

// The block formats, as llama.cpp's ggml-quants defines them. Four-bit formats keep element i in
// the low half of byte i and element i + 16 in the high half; five-bit formats add a word of fifth
// bits. kNoOffset is what addition leaves as it is, the sign of a zero included.

constexpr float kNoOffset = -0.0f;

void decode_q8_0(const std::byte* block, float* out) {
  const float scale = half_at(block);
  for (int i = 0; i < 32; ++i)
    out[i] = scale * static_cast<float>(load<std::int8_t>(block + 2 + i));
}

void decode_q4(const std::byte* codes, float scale, float offset, int centre, float* out) {
  for (int i = 0; i < 16; ++i) {
    const int byte = byte_at(codes + i);
    out[i] = static_cast<float>((byte & 15) - centre) * scale + offset;
    out[i + 16] = static_cast<float>((byte >> 4) - centre) * scale + offset;
  }
}

void decode_q5(const std::byte* codes, std::uint32_t fifth, float scale, float offset, int centre,
               float* out) {
  for (int i = 0; i < 16; ++i) {
    const int byte = byte_at(codes + i);
    const int low = (byte & 15) | static_cast<int>((fifth >> i) & 1u) << 4;
    const int high = (byte >> 4) | static_cast<int>((fifth >> (i + 16)) & 1u) << 4;
    out[i] = static_cast<float>(low - centre) * scale + offset;
    out[i + 16] = static_cast<float>(high - centre) * scale + offset;
  }
}

/// Six-bit scale and minimum of sub-block `j` of a K block, packed into 12 bytes.
void k_scale(const std::byte* packed, int j, int& scale, int& minimum) {
  if (j < 4) {
    scale = byte_at(packed + j) & 63;
    minimum = byte_at(packed + j + 4) & 63;
  } else {
    scale = (byte_at(packed + j + 4) & 15) | (byte_at(packed + j - 4) >> 6) << 4;
    minimum = (byte_at(packed + j + 4) >> 4) | (byte_at(packed + j) >> 6) << 4;
  }
}

/// Q4_K and Q5_K: eight sub-blocks of 32; `fifth` is null for Q4_K.
void decode_q45_k(const std::byte* block, const std::byte* fifth, const std::byte* codes,
                  float* out) {
  const float d = half_at(block), d_minimum = half_at(block + 2);
  for (int j = 0; j < 8; ++j) {
    int scale = 0, minimum = 0;
    k_scale(block + 4, j, scale, minimum);
    const float s = d * static_cast<float>(scale), m = d_minimum * static_cast<float>(minimum);
    for (int i = 0; i < 32; ++i) {
      const int byte = byte_at(codes + (j / 2) * 32 + i);
      int code = j % 2 == 0 ? byte & 15 : byte >> 4;
      if (fifth != nullptr) code += ((byte_at(fifth + i) >> j) & 1) << 4;
      out[j * 32 + i] = s * static_cast<float>(code) - m;
    }
  }
}

void decode_q6_k(const std::byte* block, float* out) {
  const std::byte *low = block, *high = block + 128, *scales = block + 192;
  const float d = half_at(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, within = i % 128, lane = within % 32, quarter = within / 32;
    const int low_byte = byte_at(low + half * 64 + (quarter % 2) * 32 + lane);
    const int low_bits = quarter < 2 ? low_byte & 15 : low_byte >> 4;
    const int high_bits = (byte_at(high + half * 32 + lane) >> (2 * quarter)) & 3;
    const int scale = load<std::int8_t>(scales + half * 8 + quarter * 2 + lane / 16);
    out[i] = d * static_cast<float>(scale) * static_cast<float>((low_bits | high_bits << 4) - 32);
  }
}

void decode_block(TensorType type, const std::byte* block, float* out) {
  switch (type) {
    case TensorType::q8_0:
      return decode_q8_0(block, out);
    case TensorType::q4_0:
      return decode_q4(block + 2, half_at(block), kNoOffset, 8, out);
    case TensorType::q4_1:
      return decode_q4(block + 4, half_at(block), half_at(block + 2), 0, out);
    case TensorType::q5_0:
      return decode_q5(block + 6, load<std::uint32_t>(block + 2), half_at(block), kNoOffset, 16, out);
    case TensorType::q5_1:
      return decode_q5(block + 8, load<std::uint32_t>(block + 4), half_at(block),
                       half_at(block + 2), 0, out);
    case TensorType::q4_k:
      return decode_q45_k(block, nullptr, block + 16, out);
    case TensorType::q5_k:
      return decode_q45_k(block, block + 16, block + 48, out);
    case TensorType::q6_k:
      return decode_q6_k(block, out);
    default:
      fail("{} is not a block format", name_of(type));
  }
}

}  // namespace

const char* name_of(TensorType type) {
  return info(type).name;
}
BlockShape block_shape(TensorType type) {
  return info(type).block;
}

std::uint64_t bytes_of_tensor(TensorType type, const std::vector<std::int64_t>& shape,
                              const std::string& name) {
  const BlockShape block = block_shape(type);
  std::uint64_t elements = 1, bytes = 0;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements)) {
      fail_input("{}: the shape [{}] is impossible", name, fmt::join(shape, ", "));
    }
  }
  if (!shape.empty() && shape.back() % block.elements != 0) {
    fail_input("{}: rows of {} elements are not whole {} blocks of {}", name, shape.back(),
               name_of(type), block.elements);
  }
  const std::uint64_t blocks = elements / static_cast<std::uint64_t>(block.elements);
  if (__builtin_mul_overflow(blocks, static_cast<std::uint64_t>(block.bytes), &bytes)) {
    fail_input("{}: the shape [{}] is impossible", name, fmt::join(shape, ", "));
  }
  return bytes;
}

void decode_elements(TensorType type, const std::byte* data, std::int64_t count, float* out) {
  switch (type) {
    case TensorType::f32:
      std::memcpy(out, data, static_cast<std::size_t>(count) * 4);
      return;
    case TensorType::f16:
      for (std::int64_t i = 0; i < count; ++i) out[i] = half_at(data + 2 * i);
      return;
    case TensorType::bf16:
      for (std::int64_t i = 0; i < count; ++i)
        out[i] = bfloat16_to_float(load<std::uint16_t>(data + 2 * i));
      return;
    default: {
      const BlockShape block = block_shape(type);
      for (std::int64_t i = 0; i < count / block.elements; ++i) {
        decode_block(type, data + i * block.bytes, out + i * block.elements);
      }
    }
  }
}

}  // namespace oscar
