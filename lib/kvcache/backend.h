#pragma once

#include "oscar/kvcache/attention.h"
#include "oscar/kvcache/codec.h"
#include "oscar/kvcache/execution.h"
#include "oscar/kvcache/rotate.h"

/// What the operations ask of a back end, after their checks. Without CUDA, stub/ defines the
/// functions of oscar::cuda, which throw.
namespace oscar {

namespace cpu {
void encode(const CodecSettings& settings, const ConstRows& rows, const CodedRows& coded,
            float* thresholds);
void decode(const CodecSettings& settings, const ConstCodedRows& coded, const MutableRows& rows);
void rotate_rows(const ConstRows& input, const Rotations& rotations, const MutableRows& output,
                 const RotationRounding& rounding);
void attend(const TeacherForcedAttention& problem);
}  // namespace cpu

namespace cuda {
void encode(const CodecSettings& settings, const ConstRows& rows, const CodedRows& coded,
            float* thresholds, const Execution& where);
void decode(const CodecSettings& settings, const ConstCodedRows& coded, const MutableRows& rows,
            const Execution& where);
void rotate_rows(const ConstRows& input, const Rotations& rotations, const MutableRows& output,
                 const RotationRounding& rounding, const Execution& where);
void attend(const TeacherForcedAttention& problem, const Execution& where);
}  // namespace cuda

}  // namespace oscar
