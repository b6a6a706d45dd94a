#include "zoo/pickle_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>

#include "oscar/core/error.h"

namespace oscar::pickle {

Pointer Dict::find(const char* key) const {
  for (const auto& [name, value] : items) {
    const auto* text = name->as<std::string>();
    if (text != nullptr && *text == key) return value;
  }
  return nullptr;
}

/// The pickle virtual machine, protocols 2 to 5, reduced to what tensors need.
class Machine {
 public:
  Machine(std::span<const std::byte> bytes, const std::string& source, std::deque<Value>& values)
      : bytes_(bytes), source_(source), values_(values) {}

  Pointer run() {
    for (;;) {
      const auto opcode = static_cast<unsigned char>(take(1)[0]);
      if (opcode == '.') return pop();
      step(opcode);
    }
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail_input("{}: data.pkl, byte {}: {}", source_, at_,
               fmt::format(format, std::forward<Args>(args)...));
  }

  std::span<const std::byte> take(std::size_t size) {
    if (size > bytes_.size() - at_) refuse("ends in the middle of a value; incomplete download?");
    at_ += size;
    return bytes_.subspan(at_ - size, size);
  }

  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string text(std::size_t size) {
    const auto part = take(size);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }

  std::string line() {
    std::string result;
    for (char c = 0; (c = static_cast<char>(take(1)[0])) != '\n';) result += c;
    return result;
  }

  template <typename T>
  void push(T value) {
    values_.push_back(Value{std::move(value)});
    stack_.push_back(&values_.back());
  }

  Pointer pop() {
    if (stack_.empty() || (!marks_.empty() && marks_.back() >= stack_.size()))
      refuse("takes a value that is not there");
    const Pointer top = stack_.back();
    stack_.pop_back();
    return top;
  }

  std::vector<Pointer> pop_to_mark() {
    if (marks_.empty()) refuse("takes a group that was not begun");
    const auto from = static_cast<std::ptrdiff_t>(marks_.back());
    marks_.pop_back();
    std::vector<Pointer> items(stack_.begin() + from, stack_.end());
    stack_.resize(static_cast<std::size_t>(from));
    return items;
  }

  void tuple(int size) {
    Tuple result;
    for (int i = 0; i < size; ++i) result.items.push_back(pop());
    std::reverse(result.items.begin(), result.items.end());
    push(std::move(result));
  }

  template <typename T>
  T& top_as(const char* what) {
    // Containers are completed after they were pushed; values_ owns them all and is not const.
    auto* value =
        stack_.empty() ? nullptr : std::get_if<T>(&const_cast<Value*>(stack_.back())->data);
    if (value == nullptr) refuse("expected {}", what);
    return *value;
  }

  void set_items(const std::vector<Pointer>& items) {
    if (items.size() % 2 != 0) refuse("a key without a value");
    auto& dict = top_as<Dict>("a dictionary").items;
    for (std::size_t i = 0; i < items.size(); i += 2) dict.emplace_back(items[i], items[i + 1]);
  }

  void append_items(const std::vector<Pointer>& items) {
    auto& list = top_as<List>("a list").items;
    list.insert(list.end(), items.begin(), items.end());
  }

  void recall(std::size_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) refuse("refers to a value that was not remembered");
    stack_.push_back(found->second);
  }

  void remember(std::size_t index) {
    if (stack_.empty()) refuse("remembers a value that is not there");
    memo_[index] = stack_.back();
  }

  void push_global(const std::string& name) {
    static constexpr std::array kAllowed = {"torch._utils._rebuild_tensor_v2",
                                            "torch._utils._rebuild_parameter",
                                            "collections.OrderedDict",
                                            "torch.FloatStorage",
                                            "torch.DoubleStorage",
                                            "torch.HalfStorage",
                                            "torch.BFloat16Storage"};
    if (std::find(kAllowed.begin(), kAllowed.end(), name) == kAllowed.end()) {
      refuse(
          "asks for {}, which is not part of a file of tensors; loading it could run code, so it "
          "is refused",
          name);
    }
    push(Global{name});
  }

  /// ('storage', type, key, location, elements)
  void persistent_id() {
    const auto* id = pop()->as<Tuple>();
    if (id == nullptr || id->items.size() != 5)
      refuse("a storage is not described as torch.save does");
    const auto* type = id->items[1]->as<Global>();
    const auto* key = id->items[2]->as<std::string>();
    const auto* elements = id->items[4]->as<std::int64_t>();
    if (type == nullptr || key == nullptr || elements == nullptr || *elements < 0 ||
        !type->name.ends_with("Storage")) {
      refuse("a storage is not described as torch.save does");
    }
    push(Storage{type->name.substr(type->name.find('.') + 1), *key, *elements});
  }

  std::vector<std::int64_t> integers(Pointer value) const {
    const auto* items = value->as<Tuple>();
    if (items == nullptr || items->items.size() > 8)
      refuse("a tensor's shape is not a tuple of integers");
    std::vector<std::int64_t> result;
    for (const Pointer item : items->items) {
      const auto* integer = item->as<std::int64_t>();
      if (integer == nullptr || *integer < 0) refuse("a tensor's shape is not a tuple of integers");
      result.push_back(*integer);
    }
    return result;
  }

  void reduce() {
    const auto* arguments = pop()->as<Tuple>();
    const auto* function = pop()->as<Global>();
    if (arguments == nullptr || function == nullptr)
      refuse("calls something that is not a function");
    const auto& items = arguments->items;
    if (function->name == "collections.OrderedDict" && items.empty()) {
      push(Dict{});
    } else if (function->name == "torch._utils._rebuild_parameter" && !items.empty() &&
               items[0]->as<Tensor>() != nullptr) {
      push(*items[0]->as<Tensor>());
    } else if (function->name == "torch._utils._rebuild_tensor_v2" && items.size() >= 4 &&
               items[0]->as<Storage>() != nullptr && items[1]->as<std::int64_t>() != nullptr) {
      Tensor tensor{*items[0]->as<Storage>(), *items[1]->as<std::int64_t>(), integers(items[2]),
                    integers(items[3])};
      if (tensor.offset < 0 || tensor.shape.size() != tensor.strides.size())
        refuse("a tensor is misshapen");
      push(std::move(tensor));
    } else {
      refuse("calls {} with arguments that torch.save does not write", function->name);
    }
  }

  void long_integer(std::size_t size) {
    if (size > 8) refuse("an integer of more than 64 bits");
    const auto part = take(size);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < size; ++i) value |= static_cast<std::uint64_t>(part[i]) << (8 * i);
    if (size > 0 && size < 8 && (static_cast<unsigned>(part[size - 1]) & 0x80u) != 0)
      value |= ~0ULL << (8 * size);
    push(static_cast<std::int64_t>(value));
  }

  void step(unsigned char opcode) {
    switch (opcode) {
      case 0x80:
        take(1);
        break;  // PROTO
      case 0x95:
        take(8);
        break;  // FRAME
      case '(':
        marks_.push_back(stack_.size());
        break;  // MARK
      case '}':
        push(Dict{});
        break;  // EMPTY_DICT
      case ']':
        push(List{});
        break;  // EMPTY_LIST
      case ')':
        push(Tuple{});
        break;  // EMPTY_TUPLE
      case 'N':
        push(None{});
        break;  // NONE
      case 0x88:
        push(true);
        break;  // NEWTRUE
      case 0x89:
        push(false);
        break;  // NEWFALSE
      case 'K':
        push(std::int64_t{number<std::uint8_t>()});
        break;  // BININT1
      case 'M':
        push(std::int64_t{number<std::uint16_t>()});
        break;  // BININT2
      case 'J':
        push(std::int64_t{number<std::int32_t>()});
        break;  // BININT
      case 0x8a:
        long_integer(number<std::uint8_t>());
        break;     // LONG1
      case 'G': {  // BINFLOAT, big endian
        push(std::bit_cast<double>(__builtin_bswap64(number<std::uint64_t>())));
        break;
      }
      case 'X':
        push(text(number<std::uint32_t>()));
        break;  // BINUNICODE
      case 0x8c:
        push(text(number<std::uint8_t>()));
        break;  // SHORT_BINUNICODE
      case 'q':
        remember(number<std::uint8_t>());
        break;  // BINPUT
      case 'r':
        remember(number<std::uint32_t>());
        break;  // LONG_BINPUT
      case 0x94:
        remember(memo_.size());
        break;  // MEMOIZE
      case 'h':
        recall(number<std::uint8_t>());
        break;  // BINGET
      case 'j':
        recall(number<std::uint32_t>());
        break;  // LONG_BINGET
      case 't':
        push(Tuple{pop_to_mark()});
        break;  // TUPLE
      case 0x85:
        tuple(1);
        break;  // TUPLE1
      case 0x86:
        tuple(2);
        break;  // TUPLE2
      case 0x87:
        tuple(3);
        break;     // TUPLE3
      case 'c': {  // GLOBAL
        const std::string module = line();
        push_global(module + "." + line());
        break;
      }
      case 0x93: {  // STACK_GLOBAL
        const auto* name = pop()->as<std::string>();
        const auto* module = pop()->as<std::string>();
        if (name == nullptr || module == nullptr) refuse("imports something without a name");
        push_global(*module + "." + *name);
        break;
      }
      case 'Q':
        persistent_id();
        break;  // BINPERSID
      case 'R':
        reduce();
        break;     // REDUCE
      case 's': {  // SETITEM
        const Pointer value = pop();
        const Pointer key = pop();
        set_items({key, value});
        break;
      }
      case 'u':
        set_items(pop_to_mark());
        break;  // SETITEMS
      case 'a':
        append_items({pop()});
        break;  // APPEND
      case 'e':
        append_items(pop_to_mark());
        break;  // APPENDS
      default:
        refuse("the instruction 0x{:02x} is not part of a file of tensors", opcode);
    }
  }

  std::span<const std::byte> bytes_;
  const std::string& source_;
  std::deque<Value>& values_;
  std::size_t at_ = 0;
  std::vector<Pointer> stack_;
  std::vector<std::size_t> marks_;
  std::map<std::size_t, Pointer> memo_;
};

Reader::Reader(std::span<const std::byte> bytes, const std::string& source) {
  root_ = Machine(bytes, source, values_).run();
}

}  // namespace oscar::pickle
