#include "kvcache/backend.h"
#include "oscar/core/error.h"

namespace oscar::cuda {

void encode(std::span<const EncodeJob>, const Execution&) {
  fail("INT2 encoding on a CUDA device: this program was built without CUDA");
}

void decode(const CodecSettings&, const ConstCodedRows&, const MutableRows&, const Execution&) {
  fail("INT2 decoding on a CUDA device: this program was built without CUDA");
}

}  // namespace oscar::cuda
