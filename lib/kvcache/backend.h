#pragma once

#include "oscar/kvcache/attention.h"
#include "oscar/kvcache/codec.h"
#include "oscar/kvcache/decode.h"
#include "oscar/kvcache/execution.h"
#include "oscar/kvcache/rotate.h"

/// What the operations ask of a back end, after their checks. Without CUDA, stub/ defines the
/// functions of oscar::cuda, which throw.
namespace oscar {

/// The most parts that a decode's context is split into, for the size of the workspace.
inline constexpr int kMostDecodeParts = 1024;

/// Rows to copy to bf16 memory, or one number each to a table.
struct CopyJob {
  ConstRows from;
  MutableRows to;
  TokenMap map;
};
struct ScatterJob {
  std::int32_t* table;
  const std::int32_t* index;
  const std::int32_t* value;
  std::int64_t count;
};

namespace cpu {
void encode(const EncodeJob& job);
void copy_rows(const CopyJob& job);
void attend(const MixedCacheView& cache, const DecodeAttention& problem);
void decode(const CodecSettings& settings, const ConstCodedRows& coded, const MutableRows& rows);
void rotate_rows(const ConstRows& input, const Rotations& rotations, const MutableRows& output,
                 const RotationRounding& rounding);
void attend(const TeacherForcedAttention& problem);
}  // namespace cpu

namespace cuda {
void encode(std::span<const EncodeJob> jobs, const Execution& where);
void copy_rows(const CopyJob& job, const Execution& where);
void scatter(const ScatterJob& job, const Execution& where);
void attend(const MixedCacheView& cache, const DecodeAttention& problem, const Execution& where);
/// Device memory, filled with zeros. Throws Error where it is short.
void* allocate(std::size_t bytes, const Execution& where);
void release(void* memory, const Execution& where);
/// In the stream's order; `from` may be reused when the call returns.
void upload(void* to, const void* from, std::size_t bytes, const Execution& where);
void decode(const CodecSettings& settings, const ConstCodedRows& coded, const MutableRows& rows,
            const Execution& where);
void rotate_rows(const ConstRows& input, const Rotations& rotations, const MutableRows& output,
                 const RotationRounding& rounding, const Execution& where);
void attend(std::span<const TeacherForcedAttention> problems, const Execution& where);
}  // namespace cuda

}  // namespace oscar
