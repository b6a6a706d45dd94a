#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace oscar::pickle {

/// Emits the pickle protocol 2 instructions of nested dictionaries and float32 tensors, as
/// torch.save does; torch.load(weights_only=True) accepts the result.
class Writer {
 public:
  Writer() { out_ = "\x80\x02"; }
  void begin_dict() { out_ += "}("; }
  void end_dict() { out_ += 'u'; }
  void string(std::string_view text);
  void integer(std::int64_t value);
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  /// A contiguous float32 tensor whose bytes are in the entry data/<key>.
  void tensor(int key, const std::vector<std::int64_t>& shape);
  std::string finish() { return out_ + '.'; }

 private:
  void tuple(const std::vector<std::int64_t>& values);
  std::string out_;
};

}  // namespace oscar::pickle
