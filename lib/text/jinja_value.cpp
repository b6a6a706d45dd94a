#include "text/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/unicode.h"

namespace oscar::jinja {

namespace {

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw EvaluationError{fmt::format(format, std::forward<Args>(args)...)};
}

const std::string& text_of(const Value& value, const char* where) {
  if (!value.is_string()) refuse("{} needs a string", where);
  return value.get_ref<const std::string&>();
}

/// Strips characters of `set` (white space without one) from the ends.
std::string strip(const std::string& text, const std::vector<Value>& arguments, bool left,
                  bool right) {
  const auto stripped = [&](char32_t c) {
    if (arguments.empty()) return is_white_space(c) || (c >= 0x1c && c <= 0x1f);
    const std::string& set = text_of(arguments[0], "strip");
    for (std::size_t at = 0; at < set.size();) {
      if (next_code_point(set, at) == c) return true;
    }
    return false;
  };
  std::size_t begin = 0, end = text.size();
  while (left && begin < end) {
    std::size_t next = begin;
    if (!stripped(next_code_point(text, next))) break;
    begin = next;
  }
  while (right && end > begin) {
    std::string last;
    const char32_t c = previous_code_point(text, end);
    if (!stripped(c)) break;
    append_utf8(last, c);
    end -= last.size();
  }
  return text.substr(begin, end - begin);
}

Value split(const std::string& text, const std::vector<Value>& arguments) {
  Value parts = Value::array();
  if (arguments.empty()) {
    std::string part;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      if (is_white_space(next_code_point(text, at))) {
        if (!part.empty()) parts.push_back(part);
        part.clear();
      } else {
        part += text.substr(begin, at - begin);
      }
    }
    if (!part.empty()) parts.push_back(part);
    return parts;
  }
  const std::string& separator = text_of(arguments[0], "split");
  if (separator.empty()) refuse("split needs a separator");
  std::int64_t most = arguments.size() > 1 && arguments[1].is_number_integer()
                          ? arguments[1].get<std::int64_t>()
                          : -1;
  std::size_t begin = 0;
  for (std::size_t end = text.find(separator); end != std::string::npos && most != 0;
       end = text.find(separator, begin), --most) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  if (from.empty()) refuse("replace needs something to replace");
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::string map_ascii(std::string text, int (*convert)(int)) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) >= 0x80)
      refuse("upper and lower are supported for ASCII text only");
    c = static_cast<char>(convert(static_cast<unsigned char>(c)));
  }
  return text;
}

std::int64_t length(const Value& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return std::count_if(text.begin(), text.end(),
                         [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80; });
  }
  if (value.is_array() || value.is_object()) return static_cast<std::int64_t>(value.size());
  refuse("length needs a string, a list or a mapping");
}

bool contains(const Value& container, const Value& item) {
  if (container.is_string())
    return container.get_ref<const std::string&>().find(text_of(item, "in")) != std::string::npos;
  if (container.is_array())
    return std::find(container.begin(), container.end(), item) != container.end();
  if (container.is_object())
    return item.is_string() && container.contains(item.get_ref<const std::string&>());
  refuse("\"in\" needs a string, a list or a mapping on its right");
}

}  // namespace

bool truthy(const Value& value) {
  if (is_undefined(value) || value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.empty();
}

std::string print(const Value& value) {
  if (is_undefined(value)) return "";
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return value.dump();
  refuse("printing a list or a mapping is not supported; use tojson");
}

std::string to_python_json(const Value& value) {
  if (value.is_object() || value.is_array()) {
    std::string out(1, value.is_object() ? '{' : '[');
    bool first = true;
    for (const auto& [key, item] : value.items()) {
      if (!first) out += ", ";
      first = false;
      if (value.is_object()) out += Value(key).dump() + ": ";
      out += to_python_json(item);
    }
    return out + (value.is_object() ? '}' : ']');
  }
  if (is_undefined(value)) refuse("tojson of an undefined value");
  return value.dump();
}

Value get_member(const Value& object, const Value& key) {
  if (is_undefined(object)) refuse("a member of an undefined value");
  if (object.is_object() && key.is_string()) {
    const auto found = object.find(key.get_ref<const std::string&>());
    return found == object.end() ? undefined() : *found;
  }
  if (object.is_array() && key.is_number_integer()) {
    const auto size = static_cast<std::int64_t>(object.size());
    auto index = key.get<std::int64_t>();
    if (index < 0) index += size;
    return index < 0 || index >= size ? undefined() : object[static_cast<std::size_t>(index)];
  }
  if (object.is_string() && key.is_number_integer())
    return slice(object, key, undefined(), undefined());
  return undefined();
}

Value slice(const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (!object.is_array()) refuse("slices are supported for lists only");
  const auto size = static_cast<std::int64_t>(object.size());
  const auto number = [](const Value& value, std::int64_t otherwise) {
    return value.is_number_integer() ? value.get<std::int64_t>() : otherwise;
  };
  const std::int64_t stride = number(step, 1);
  if (stride == 0) refuse("a slice of step 0");
  const std::int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? size : size - 1;
  const auto bound = [&](const Value& value, std::int64_t otherwise) {
    if (!value.is_number_integer()) return otherwise;
    const auto index = value.get<std::int64_t>();
    return std::clamp(index < 0 ? index + size : index, low, high);
  };
  const std::int64_t begin = bound(start, stride > 0 ? low : high),
                     end = bound(stop, stride > 0 ? high : low);
  Value result = Value::array();
  for (std::int64_t i = begin; stride > 0 ? i < end : i > end; i += stride)
    result.push_back(object[static_cast<std::size_t>(i)]);
  return result;
}

Value apply_filter(const std::string& name, const Value& value,
                   const std::vector<Value>& arguments) {
  if (name == "trim") return strip(text_of(value, "trim"), arguments, true, true);
  if (name == "length" || name == "count") return length(value);
  if (name == "tojson") {
    if (!arguments.empty()) refuse("tojson with arguments is not supported");
    return to_python_json(value);
  }
  if (name == "upper") return map_ascii(text_of(value, "upper"), std::toupper);
  if (name == "lower") return map_ascii(text_of(value, "lower"), std::tolower);
  if (name == "string") return print(value);
  if (name == "safe") return value;
  if (name == "default" || name == "d")
    return is_undefined(value) ? (arguments.empty() ? Value("") : arguments[0]) : value;
  if (name == "first" && value.is_array()) return value.empty() ? undefined() : value.front();
  if (name == "last" && value.is_array()) return value.empty() ? undefined() : value.back();
  if (name == "list" && value.is_array()) return value;
  if (name == "int" && value.is_number()) return value.get<std::int64_t>();
  if (name == "items" && value.is_object()) return call_method(value, "items", {});
  if (name == "replace" && arguments.size() == 2) {
    return replace_all(text_of(value, "replace"), text_of(arguments[0], "replace"),
                       text_of(arguments[1], "replace"));
  }
  if (name == "join" && value.is_array()) {
    std::string joined;
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (i > 0 && !arguments.empty()) joined += text_of(arguments[0], "join");
      joined += print(value[i]);
    }
    return joined;
  }
  refuse("the filter \"{}\" is not supported here", name);
}

bool apply_test(const std::string& name, const Value& value) {
  if (name == "defined") return !is_undefined(value);
  if (name == "undefined") return is_undefined(value);
  if (name == "none") return value.is_null();
  if (name == "string") return value.is_string();
  if (name == "mapping") return value.is_object();
  if (name == "sequence" || name == "iterable")
    return value.is_array() || value.is_string() || value.is_object();
  if (name == "number") return value.is_number() || value.is_boolean();
  if (name == "integer") return value.is_number_integer();
  if (name == "boolean") return value.is_boolean();
  if (name == "true") return value.is_boolean() && value.get<bool>();
  if (name == "false") return value.is_boolean() && !value.get<bool>();
  refuse("the test \"{}\" is not supported", name);
}

Value call_method(const Value& object, const std::string& name,
                  const std::vector<Value>& arguments) {
  if (object.is_string()) {
    const auto& text = object.get_ref<const std::string&>();
    if (name == "strip") return strip(text, arguments, true, true);
    if (name == "lstrip") return strip(text, arguments, true, false);
    if (name == "rstrip") return strip(text, arguments, false, true);
    if (name == "split") return split(text, arguments);
    if (name == "upper") return map_ascii(text, std::toupper);
    if (name == "lower") return map_ascii(text, std::tolower);
    if (name == "startswith" && arguments.size() == 1)
      return text.starts_with(text_of(arguments[0], "startswith"));
    if (name == "endswith" && arguments.size() == 1)
      return text.ends_with(text_of(arguments[0], "endswith"));
    if (name == "replace" && arguments.size() == 2) {
      return replace_all(text, text_of(arguments[0], "replace"), text_of(arguments[1], "replace"));
    }
  }
  if (object.is_object()) {
    if (name == "get" && !arguments.empty()) {
      const Value found = get_member(object, arguments[0]);
      return is_undefined(found) ? (arguments.size() > 1 ? arguments[1] : Value(nullptr)) : found;
    }
    Value list = Value::array();
    for (const auto& [key, item] : object.items()) {
      if (name == "items") list.push_back(Value::array({key, item}));
      if (name == "keys") list.push_back(key);
      if (name == "values") list.push_back(item);
    }
    if (name == "items" || name == "keys" || name == "values") return list;
  }
  refuse("the method \"{}\" is not supported here", name);
}

Value binary(const std::string& op, const Value& left, const Value& right) {
  if (op == "==") return left == right;
  if (op == "!=") return left != right;
  if (op == "in") return contains(right, left);
  if (op == "not in") return !contains(right, left);
  if (op == "~") return print(left) + print(right);
  if (left.is_string() && right.is_string()) {
    if (op == "+") return left.get<std::string>() + right.get<std::string>();
    if (op == "<" || op == ">" || op == "<=" || op == ">=") {
      const int order =
          left.get_ref<const std::string&>().compare(right.get_ref<const std::string&>());
      return op == "<" ? order < 0 : op == ">" ? order > 0 : op == "<=" ? order <= 0 : order >= 0;
    }
  }
  if (left.is_array() && right.is_array() && op == "+") {
    Value joined = left;
    for (const Value& item : right) joined.push_back(item);
    return joined;
  }
  if (left.is_number() && right.is_number()) {
    if (op == "<") return left < right;
    if (op == ">") return left > right;
    if (op == "<=") return left <= right;
    if (op == ">=") return left >= right;
    if (left.is_number_integer() && right.is_number_integer()) {
      const auto a = left.get<std::int64_t>(), b = right.get<std::int64_t>();
      if (op == "+") return a + b;
      if (op == "-") return a - b;
      if (op == "*") return a * b;
      if ((op == "//" || op == "%") && b > 0) {
        const std::int64_t remainder = ((a % b) + b) % b;  // Python rounds towards minus infinity
        return op == "%" ? remainder : (a - remainder) / b;
      }
    }
  }
  refuse("\"{}\" of these values is not supported{}", op,
         is_undefined(left) || is_undefined(right) ? " (one of them is undefined)" : "");
}

}  // namespace oscar::jinja
