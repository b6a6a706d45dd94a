#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kvcache/arithmetic.h"
#include "oscar/core/cuda_check.h"
#include "oscar/kvcache/codec.h"
#include "oscar/kvcache/execution.h"
#include "oscar/kvcache/rows.h"

namespace oscar::cuda {

/// Makes a device current and brings the earlier one back.
class DeviceScope {
 public:
  explicit DeviceScope(const Execution& where) {
    OSCAR_CUDA_CHECK(cudaGetDevice(&before_));
    OSCAR_CUDA_CHECK(cudaSetDevice(where.device.index));
  }
  ~DeviceScope() { cudaSetDevice(before_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

inline cudaStream_t stream_of(const Execution& where) {
  return static_cast<cudaStream_t>(where.stream);
}

/// Memory that lives on a stream: taken and given back in the stream's order.
class StreamBuffer {
 public:
  StreamBuffer(std::size_t bytes, cudaStream_t stream) : stream_(stream) {
    OSCAR_CUDA_CHECK(cudaMallocAsync(&data_, bytes, stream));
  }
  ~StreamBuffer() { cudaFreeAsync(data_, stream_); }
  StreamBuffer(const StreamBuffer&) = delete;
  StreamBuffer& operator=(const StreamBuffer&) = delete;
  template <typename T>
  T* as() {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  cudaStream_t stream_;
};

__device__ inline std::int64_t row_offset(const ConstRows& rows, std::int64_t token, int head) {
  return token * rows.token_stride + head * rows.head_stride;
}

__device__ inline std::int64_t row_offset(const MutableRows& rows, std::int64_t token, int head) {
  return token * rows.token_stride + head * rows.head_stride;
}

__device__ inline float load_element(const ConstRows& rows, std::int64_t offset) {
  if (rows.type == ElementType::fp32) return static_cast<const float*>(rows.data)[offset];
  return bfloat16_to_float(static_cast<const std::uint16_t*>(rows.data)[offset]);
}

__device__ inline void store_element(const MutableRows& rows, std::int64_t offset, float value) {
  if (rows.type == ElementType::fp32) {
    static_cast<float*>(rows.data)[offset] = value;
  } else {
    static_cast<std::uint16_t*>(rows.data)[offset] = float_to_bfloat16(value);
  }
}

/// The first scale of a coded row.
__device__ inline const void* scales_of(const ConstCodedRows& coded, ScaleType type,
                                        std::int64_t token, int head) {
  const std::int64_t offset = token * coded.scale_token_stride + head * coded.scale_head_stride;
  return static_cast<const char*>(coded.scales_zeros) + offset * (type == ScaleType::fp32 ? 4 : 2);
}

/// Channel `channel` of a coded row.
__device__ inline float decode_element(const CodecSettings& settings, const ConstCodedRows& coded,
                                       std::int64_t token, int head, int channel) {
  const int quarter = settings.dim / 4;
  const int part = channel / quarter;
  const std::int64_t row = token * coded.code_token_stride + head * coded.code_head_stride;
  const int code = (coded.codes[row + channel - part * quarter] >> (2 * part)) & 3;
  const void* scales = scales_of(coded, settings.scale_type, token, head);
  return arithmetic::value_of(
      code, arithmetic::load_scale_zero(scales, settings.scale_type, channel / settings.group));
}

}  // namespace oscar::cuda
