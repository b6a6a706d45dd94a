#pragma once

#include <cstdint>
#include <vector>

#include "device_memory.h"
#include "oscar/kvcache/codec.h"
#include "reference.h"

namespace oscar::test {

/// What encode gives for contiguous rows, brought to plain memory; scales_zeros as raw bytes.
struct Encoded {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales_zeros;
  std::vector<float> thresholds;
  bool operator==(const Encoded&) const = default;
};

/// Encodes [tokens, heads, dim] on a device, from fp32 or bf16 memory.
template <typename T>
Encoded run_encode(const Device& device, const CodecSettings& settings,
                   const std::vector<T>& values, int heads) {
  const std::int64_t tokens = static_cast<std::int64_t>(values.size()) / heads / settings.dim;
  const std::size_t rows = tokens * heads;
  const ElementType type = sizeof(T) == 4 ? ElementType::fp32 : ElementType::bf16;
  DeviceArray<T> input(device, values);
  DeviceArray<std::uint8_t> codes(device, rows * settings.dim / 4);
  DeviceArray<std::uint8_t> scales(device,
                                   rows * 2 * settings.groups() * bytes_of(settings.scale_type));
  DeviceArray<float> thresholds(device, rows);
  Int2Codec(settings).encode(
      ConstRows::packed(input.data(), type, tokens, heads, settings.dim),
      CodedRows::packed(codes.data(), scales.data(), tokens, heads, settings), {device, nullptr},
      thresholds.data());
  return {codes.values(), scales.values(), thresholds.values()};
}

/// Decodes to fp32 on a device.
inline std::vector<float> run_decode(const Device& device, const CodecSettings& settings,
                                     const Encoded& encoded, int heads) {
  const std::int64_t tokens =
      static_cast<std::int64_t>(encoded.codes.size()) * 4 / settings.dim / heads;
  DeviceArray<std::uint8_t> codes(device, encoded.codes);
  DeviceArray<std::uint8_t> scales(device, encoded.scales_zeros);
  DeviceArray<float> rows(device, encoded.codes.size() * 4);
  Int2Codec(settings).decode(
      CodedRows::packed(codes.data(), scales.data(), tokens, heads, settings),
      MutableRows::packed(rows.data(), ElementType::fp32, tokens, heads, settings.dim),
      {device, nullptr});
  return rows.values();
}

}  // namespace oscar::test
