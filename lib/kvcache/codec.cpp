#include "oscar/kvcache/codec.h"

#include <vector>

#include "kvcache/backend.h"
#include "kvcache/checks.h"
#include "oscar/core/error.h"

namespace oscar {

Int2Codec::Int2Codec(const CodecSettings& settings) : settings_(settings) {
  settings_.check();
}

void Int2Codec::encode(const ConstRows& rows, const CodedRows& coded, const Execution& where,
                       float* thresholds) const {
  const EncodeJob job{settings_, rows, coded, thresholds};
  oscar::encode({&job, 1}, where);
}

void Int2Codec::decode(const ConstCodedRows& coded, const MutableRows& rows,
                       const Execution& where) const {
  checks::rows("the rows to decode to", rows, rows.tokens, rows.heads, settings_.dim);
  checks::coded("the coded rows", coded, rows.tokens, rows.heads);
  if (rows.tokens == 0) return;
  if (where.device.is_cuda()) {
    cuda::decode(settings_, coded, rows, where);
  } else {
    cpu::decode(settings_, coded, rows);
  }
}

void encode(std::span<const EncodeJob> jobs, const Execution& where) {
  for (const EncodeJob& job : jobs) {
    job.settings.check();
    checks::rows("the rows to encode", job.rows, job.rows.tokens, job.rows.heads, job.settings.dim);
    if (job.rotation.data != nullptr) {
      if (job.rotation.dim != job.settings.dim) {
        fail_input("the rotation of rows to encode has dimension {}; expected {}", job.rotation.dim,
                   job.settings.dim);
      }
      if (job.rotation.matrices < 1 || job.rows.heads % job.rotation.matrices != 0) {
        fail_input("{} rotation matrices can't be shared out among {} heads", job.rotation.matrices,
                   job.rows.heads);
      }
    }
    if (job.rotated.data != nullptr) {
      checks::rows("the rotated rows", job.rotated, job.rows.tokens, job.rows.heads,
                   job.settings.dim);
    }
    checks::coded("the coded rows", job.coded,
                  job.map.count < 0 ? job.rows.tokens : job.coded.tokens, job.rows.heads);
  }
  if (where.device.is_cuda()) {
    cuda::encode(jobs, where);
    return;
  }
  for (const EncodeJob& job : jobs) {
    if (job.tokens() <= 0) continue;
    if (job.rotation.data == nullptr) {
      cpu::encode(job);
      continue;
    }
    std::vector<float> memory;
    EncodeJob rotated = job;
    MutableRows rows = job.rotated;
    if (rows.data == nullptr) {
      memory.resize(static_cast<std::size_t>(job.rows.tokens) * job.rows.heads * job.rows.dim);
      rows = MutableRows::packed(memory.data(), ElementType::fp32, job.rows.tokens, job.rows.heads,
                                 job.rows.dim);
    }
    cpu::rotate_rows(job.rows, job.rotation, rows, {});
    rotated.rows = rows;
    cpu::encode(rotated);
  }
}

}  // namespace oscar
