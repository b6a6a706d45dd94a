#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace oscar::pickle {

struct Value;
using Pointer = const Value*;

struct None {};
struct Global {
  std::string name;  ///< "torch._utils._rebuild_tensor_v2"
};
struct Tuple {
  std::vector<Pointer> items;
};
struct List {
  std::vector<Pointer> items;
};
struct Dict {
  std::vector<std::pair<Pointer, Pointer>> items;
  /// The value of a string key, or null.
  Pointer find(const char* key) const;
};
/// A storage that torch keeps in an entry of its own.
struct Storage {
  std::string type;  ///< "FloatStorage"
  std::string key;   ///< entry data/<key>
  std::int64_t elements = 0;
};
/// A strided view of a storage.
struct Tensor {
  Storage storage;
  std::int64_t offset = 0;
  std::vector<std::int64_t> shape, strides;
};

struct Value {
  std::variant<None, bool, std::int64_t, double, std::string, Tuple, List, Dict, Global, Storage,
               Tensor>
      data;

  template <typename T>
  const T* as() const {
    return std::get_if<T>(&data);
  }
};

/// Interprets a pickle as torch.load(weights_only=True) would: data, tensors and ordered
/// dictionaries; a file that asks for anything else to be imported or called is refused, and no
/// code is run.
class Reader {
 public:
  /// Throws InputError naming `source`.
  Reader(std::span<const std::byte> bytes, const std::string& source);
  const Value& root() const { return *root_; }

 private:
  friend class Machine;
  std::deque<Value> values_;  // owns every value: cycles cannot leak
  Pointer root_ = nullptr;
};

}  // namespace oscar::pickle
