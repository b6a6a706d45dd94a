#pragma once

#include <string>
#include <vector>

#include "oscar/core/json.h"

namespace oscar::jinja {

/// A value of a template. JSON's "discarded" stands for Jinja's undefined.
using Value = OrderedJson;

inline Value undefined() {
  return Value(Value::value_t::discarded);
}
inline bool is_undefined(const Value& value) {
  return value.is_discarded();
}

/// What went wrong inside an expression; the interpreter adds the place.
struct EvaluationError {
  std::string message;
};

bool truthy(const Value& value);
/// As {{ }} prints it: Python's str().
std::string print(const Value& value);
/// Python's json.dumps(value, ensure_ascii=False), with its separators.
std::string to_python_json(const Value& value);

Value get_member(const Value& object, const Value& key);
Value slice(const Value& object, const Value& start, const Value& stop, const Value& step);
Value apply_filter(const std::string& name, const Value& value,
                   const std::vector<Value>& arguments);
bool apply_test(const std::string& name, const Value& value);
Value call_method(const Value& object, const std::string& name,
                  const std::vector<Value>& arguments);
Value binary(const std::string& op, const Value& left, const Value& right);

}  // namespace oscar::jinja
