#include "oscar/checkpoint/gguf.h"

#include <limits>

#include "checkpoint/byte_reader.h"
#include "checkpoint/tensor_type.h"

namespace oscar {

namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr std::uint64_t kMostStrings = 1u << 26;

enum class ValueType : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64
};

/// Reads the header: key-value pairs, then tensor descriptions.
class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> bytes, std::string source)
      : reader_(bytes, source), source_(std::move(source)) {}

  std::uint64_t read_counts() {
    const auto magic = reader_.number<std::uint32_t>();
    if (magic != kMagic)
      fail_input("{}: is not a GGUF file (it does not begin with \"GGUF\")", source_);
    const auto version = reader_.number<std::uint32_t>();
    if (version != 2 && version != 3) {
      fail_input("{}: GGUF version {} is not supported (2 and 3 are){}", source_, version,
                 version > 0xffff ? "; a big-endian file?" : "");
    }
    tensors_ = reader_.number<std::uint64_t>();
    const auto pairs = reader_.number<std::uint64_t>();
    // Each takes at least a dozen bytes, so that a count beyond the file is a lie.
    if (tensors_ > reader_.remaining() / 12 || pairs > reader_.remaining() / 12) {
      fail_input("{}: claims {} tensors and {} metadata values, more than its {} bytes could hold",
                 source_, tensors_, pairs, reader_.remaining());
    }
    return pairs;
  }
  std::uint64_t tensor_count() const { return tensors_; }
  std::size_t position() const { return reader_.position(); }

  std::string_view string() {
    const auto bytes = reader_.take(reader_.number<std::uint64_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  GgufValue value(const std::string& key) {
    const auto type = static_cast<ValueType>(reader_.number<std::uint32_t>());
    return type == ValueType::array ? array(key) : scalar(type, key);
  }

  template <typename T>
  T number() {
    return reader_.number<T>();
  }

 private:
  std::int64_t integer(ValueType type) {
    switch (type) {
      case ValueType::u8:
        return reader_.number<std::uint8_t>();
      case ValueType::i8:
        return reader_.number<std::int8_t>();
      case ValueType::u16:
        return reader_.number<std::uint16_t>();
      case ValueType::i16:
        return reader_.number<std::int16_t>();
      case ValueType::u32:
        return reader_.number<std::uint32_t>();
      case ValueType::i32:
        return reader_.number<std::int32_t>();
      default:
        return reader_.number<std::int64_t>();
    }
  }

  GgufValue scalar(ValueType type, const std::string& key) {
    switch (type) {
      case ValueType::f32:
        return static_cast<double>(reader_.number<float>());
      case ValueType::f64:
        return reader_.number<double>();
      case ValueType::boolean:
        return reader_.number<std::uint8_t>() != 0;
      case ValueType::string:
        return string();
      case ValueType::u64: {
        const auto wide = reader_.number<std::uint64_t>();
        if (wide > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
          fail_input("{}: the value of {} is out of range ({})", source_, key, wide);
        }
        return static_cast<std::int64_t>(wide);
      }
      case ValueType::u8:
      case ValueType::i8:
      case ValueType::u16:
      case ValueType::i16:
      case ValueType::u32:
      case ValueType::i32:
      case ValueType::i64:
        return integer(type);
      default:
        fail_input("{}: the value of {} has the unknown type {}", source_, key,
                   static_cast<std::uint32_t>(type));
    }
  }

  template <typename T>
  GgufValue array_of(std::uint64_t count, ValueType type, const std::string& key) {
    std::vector<T> result;
    for (std::uint64_t i = 0; i < count; ++i) result.push_back(std::get<T>(scalar(type, key)));
    return result;
  }

  GgufValue array(const std::string& key) {
    const auto type = static_cast<ValueType>(reader_.number<std::uint32_t>());
    const auto count = reader_.number<std::uint64_t>();
    if (count > reader_.remaining() || count > kMostStrings) {
      fail_input("{}: the array {} claims {} elements, more than the file could hold", source_, key,
                 count);
    }
    switch (type) {
      case ValueType::array:
        fail_input("{}: {} is an array of arrays, which is not supported", source_, key);
      case ValueType::string:
        return array_of<std::string_view>(count, type, key);
      case ValueType::boolean:
        return array_of<bool>(count, type, key);
      case ValueType::f32:
      case ValueType::f64:
        return array_of<double>(count, type, key);
      default:
        return array_of<std::int64_t>(count, type, key);
    }
  }

  ByteReader reader_;
  std::string source_;
  std::uint64_t tensors_ = 0;
};

TensorType element_type(std::uint32_t type, const std::string& name, const std::string& source) {
  switch (type) {
    case 0:
      return TensorType::f32;
    case 1:
      return TensorType::f16;
    case 2:
      return TensorType::q4_0;
    case 3:
      return TensorType::q4_1;
    case 6:
      return TensorType::q5_0;
    case 7:
      return TensorType::q5_1;
    case 8:
      return TensorType::q8_0;
    case 12:
      return TensorType::q4_k;
    case 13:
      return TensorType::q5_k;
    case 14:
      return TensorType::q6_k;
    case 30:
      return TensorType::bf16;
    default:
      fail_input(
          "{}: the tensor {} has GGML type {}, which is not supported; F32, F16, BF16, Q8_0, Q4_0, "
          "Q4_1, Q5_0, "
          "Q5_1, Q4_K, Q5_K and Q6_K are",
          source, name, type);
  }
}

/// Two tensors may not share bytes.
void check_overlap(const std::map<std::string, TensorView>& tensors, const std::string& source) {
  std::map<const std::byte*, const TensorView*> by_address;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.data.empty()) continue;
    if (!by_address.emplace(tensor.data.data(), &tensor).second) {
      fail_input("{}: the tensor {} overlaps another", source, name);
    }
  }
  const TensorView* previous = nullptr;
  for (const auto& [address, tensor] : by_address) {
    if (previous != nullptr && previous->data.data() + previous->data.size() > address) {
      fail_input("{}: the tensors {} and {} overlap", source, previous->name, tensor->name);
    }
    previous = tensor;
  }
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path) : file_(path) {
  const std::string source = path.string();
  const auto bytes = file_.bytes();
  HeaderReader header(bytes, source);
  const std::uint64_t pairs = header.read_counts();
  for (std::uint64_t i = 0; i < pairs; ++i) {
    const std::string key(header.string());
    if (!metadata_.emplace(key, header.value(key)).second)
      fail_input("{}: the metadata {} is there twice", source, key);
  }
  std::map<std::string, std::uint64_t> offsets;
  for (std::uint64_t i = 0; i < header.tensor_count(); ++i) {
    TensorView tensor;
    tensor.name = header.string();
    const auto dimensions = header.number<std::uint32_t>();
    if (dimensions > 4)
      fail_input("{}: the tensor {} has {} dimensions", source, tensor.name, dimensions);
    for (std::uint32_t d = 0; d < dimensions; ++d) {
      const auto size = header.number<std::int64_t>();
      tensor.shape.insert(tensor.shape.begin(), size);  // the file lists the innermost first
    }
    tensor.type = element_type(header.number<std::uint32_t>(), tensor.name, source);
    offsets[tensor.name] = header.number<std::uint64_t>();
    const std::string name = tensor.name;
    if (!tensors_.emplace(name, std::move(tensor)).second)
      fail_input("{}: the tensor {} is there twice", source, name);
  }
  const auto alignment = find_as<std::int64_t>("general.alignment").value_or(32);
  if (alignment < 1 || alignment > 1 << 20)
    fail_input("{}: general.alignment is {}", source, alignment);
  const auto step = static_cast<std::uint64_t>(alignment);
  const std::uint64_t begin = (header.position() + step - 1) / step * step;
  for (auto& [name, tensor] : tensors_) {
    const std::uint64_t size =
        bytes_of_tensor(tensor.type, tensor.shape, source + ": the tensor " + name);
    const std::uint64_t offset = offsets[name];
    const std::uint64_t room = bytes.size() > begin ? bytes.size() - begin : 0;
    if (offset > room || size > room - offset) {
      fail_input(
          "{}: the tensor {} reaches beyond the end of the file ({} bytes); incomplete download?",
          source, name, bytes.size());
    }
    tensor.data = bytes.subspan(begin + offset, size);
  }
  check_overlap(tensors_, source);
}

const GgufValue* GgufFile::find(const std::string& key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

template <typename T>
std::optional<T> GgufFile::find_as(const std::string& key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const T* typed = std::get_if<T>(value);
  if (typed == nullptr)
    fail_input("{}: the metadata {} is of the wrong type", path().string(), key);
  return *typed;
}

template <typename T>
const T& GgufFile::get(const std::string& key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) fail_input("{}: the metadata {} is missing", path().string(), key);
  const T* typed = std::get_if<T>(value);
  if (typed == nullptr)
    fail_input("{}: the metadata {} is of the wrong type", path().string(), key);
  return *typed;
}

#define OSCAR_GGUF_TYPE(T)                                               \
  template std::optional<T> GgufFile::find_as(const std::string&) const; \
  template const T& GgufFile::get(const std::string&) const;
OSCAR_GGUF_TYPE(bool)
OSCAR_GGUF_TYPE(std::int64_t)
OSCAR_GGUF_TYPE(double)
OSCAR_GGUF_TYPE(std::string_view)
OSCAR_GGUF_TYPE(std::vector<bool>)
OSCAR_GGUF_TYPE(std::vector<std::int64_t>)
OSCAR_GGUF_TYPE(std::vector<double>)
OSCAR_GGUF_TYPE(std::vector<std::string_view>)
#undef OSCAR_GGUF_TYPE

}  // namespace oscar
