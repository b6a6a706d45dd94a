#include "oscar/kvcache/codec.h"

#include "kvcache/backend.h"
#include "kvcache/checks.h"

namespace oscar {

Int2Codec::Int2Codec(const CodecSettings& settings) : settings_(settings) {
  settings_.check();
}

void Int2Codec::encode(const ConstRows& rows, const CodedRows& coded, const Execution& where,
                       float* thresholds) const {
  checks::rows("the rows to encode", rows, rows.tokens, rows.heads, settings_.dim);
  checks::coded("the coded rows", coded, rows.tokens, rows.heads);
  if (rows.tokens == 0) return;
  if (where.device.is_cuda()) {
    cuda::encode(settings_, rows, coded, thresholds, where);
  } else {
    cpu::encode(settings_, rows, coded, thresholds);
  }
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

}  // namespace oscar
