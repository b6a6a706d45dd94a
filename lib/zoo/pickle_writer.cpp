#include "zoo/pickle_writer.h"

#include <limits>

namespace oscar::pickle {

namespace {
template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}
}  // namespace

void Writer::string(std::string_view text) {
  out_ += 'X';
  append(out_, static_cast<std::uint32_t>(text.size()));
  out_ += text;
}

void Writer::integer(std::int64_t value) {
  if (value >= std::numeric_limits<std::int32_t>::min() &&
      value <= std::numeric_limits<std::int32_t>::max()) {
    out_ += 'J';
    append(out_, static_cast<std::int32_t>(value));
  } else {
    out_ += "\x8a\x08";
    append(out_, value);
  }
}

void Writer::tuple(const std::vector<std::int64_t>& values) {
  out_ += '(';
  for (const std::int64_t value : values) integer(value);
  out_ += 't';
}

void Writer::tensor(int key, const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  std::vector<std::int64_t> strides(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = elements;
    elements *= shape[i];
  }
  out_ += "ctorch._utils\n_rebuild_tensor_v2\n((";
  string("storage");
  out_ += "ctorch\nFloatStorage\n";
  string(std::to_string(key));
  string("cpu");
  integer(elements);
  out_ += "tQ";  // the storage's persistent id
  integer(0);    // offset
  tuple(shape);
  tuple(strides);
  boolean(false);                             // requires_grad
  out_ += "ccollections\nOrderedDict\n)RtR";  // no hooks; call
}

}  // namespace oscar::pickle
