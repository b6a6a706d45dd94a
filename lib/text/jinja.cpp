#include "text/jinja.h"

#include <functional>
#include <map>
#include <optional>

#include "text/jinja_lexer.h"
#include "text/jinja_value.h"

namespace oscar {

namespace {

using jinja::EvaluationError;
using jinja::Segment;
using jinja::Token;
using jinja::Value;

/// Variables, innermost scope last. `if` opens no scope, `for` opens one for each round.
struct Scopes {
  std::vector<std::map<std::string, Value>> stack{1};

  Value* find(const std::string& name) {
    for (auto scope = stack.rbegin(); scope != stack.rend(); ++scope) {
      const auto found = scope->find(name);
      if (found != scope->end()) return &found->second;
    }
    return nullptr;
  }
};

using Expression = std::function<Value(Scopes&)>;
using Statement = std::function<void(Scopes&, std::string&)>;

/// Parses one template into closures.
class Parser {
 public:
  Parser(const std::string& text, std::string source)
      : source_(std::move(source)), segments_(jinja::cut(text, source_)) {}

  std::vector<Statement> parse() {
    auto body = block({});
    if (at_ < segments_.size()) refuse(segments_[at_].line, "a block ends that was not begun");
    return body;
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(int line, fmt::format_string<Args...> format, Args&&... args) const {
    fail_input("{}, line {}: {}", source_, line, fmt::format(format, std::forward<Args>(args)...));
  }

  /// The first word of a statement segment.
  std::string keyword(const Segment& segment) const {
    const auto tokens = jinja::tokenize(segment, source_);
    return tokens[0].kind == Token::Kind::name ? tokens[0].text : "";
  }

  /// Statements up to one of these keywords, or the end.
  std::vector<Statement> block(const std::vector<std::string>& stops) {
    std::vector<Statement> body;
    while (at_ < segments_.size()) {
      const Segment& segment = segments_[at_];
      if (segment.kind == Segment::Kind::text) {
        body.push_back([text = segment.content](Scopes&, std::string& out) { out += text; });
        ++at_;
      } else if (segment.kind == Segment::Kind::output) {
        open(segment);
        Expression value = expression();
        close("an output");
        const int line = segment.line;
        body.push_back([this_source = source_, value, line](Scopes& scopes, std::string& out) {
          try {
            out += jinja::print(value(scopes));
          } catch (const EvaluationError& error) {
            fail_input("{}, line {}: {}", this_source, line, error.message);
          }
        });
        ++at_;
      } else {
        const std::string word = keyword(segment);
        for (const std::string& stop : stops) {
          if (word == stop) return body;
        }
        if (auto parsed = statement(word)) body.push_back(std::move(*parsed));
      }
    }
    if (!stops.empty())
      refuse(segments_.empty() ? 1 : segments_.back().line, "{} is missing", stops.back());
    return body;
  }

  std::optional<Statement> statement(const std::string& word) {
    const int line = segments_[at_].line;
    Statement parsed;
    if (word == "if") {
      parsed = if_statement();
    } else if (word == "for") {
      parsed = for_statement();
    } else if (word == "set") {
      parsed = set_statement();
    } else if (word == "generation" || word == "endgeneration") {
      ++at_;  // marks the assistant's part for training; renders nothing
      return std::nullopt;
    } else {
      refuse(line, "the statement \"{}\" is not supported; if, for and set are", word);
    }
    return Statement([parsed, line, this_source = source_](Scopes& scopes, std::string& out) {
      try {
        parsed(scopes, out);
      } catch (const EvaluationError& error) {
        fail_input("{}, line {}: {}", this_source, line, error.message);
      }
    });
  }

  static void run(const std::vector<Statement>& body, Scopes& scopes, std::string& out) {
    for (const Statement& step : body) step(scopes, out);
  }

  Statement if_statement() {
    struct Branch {
      Expression condition;  // empty: else
      std::vector<Statement> body;
    };
    std::vector<Branch> branches;
    for (;;) {
      open(segments_[at_]);
      const std::string word = take_name();
      Expression condition;
      if (word != "else") condition = expression();
      close(word.c_str());
      ++at_;
      auto body = block(word == "else" ? std::vector<std::string>{"endif"}
                                       : std::vector<std::string>{"elif", "else", "endif"});
      branches.push_back({condition, std::move(body)});
      if (keyword(segments_[at_]) == "endif") break;
    }
    ++at_;
    return [branches](Scopes& scopes, std::string& out) {
      for (const Branch& branch : branches) {
        if (!branch.condition || jinja::truthy(branch.condition(scopes)))
          return run(branch.body, scopes, out);
      }
    };
  }

  Statement for_statement() {
    open(segments_[at_]);
    take_name();
    std::vector<std::string> names = {take_name()};
    while (accept(",")) names.push_back(take_name());
    expect_name("in");
    Expression iterable = disjunction();  // a bare `if` belongs to the loop
    Expression filter;
    if (accept_name("if")) filter = expression();
    close("for");
    ++at_;
    auto body = block({"else", "endfor"});
    std::vector<Statement> otherwise;
    if (keyword(segments_[at_]) == "else") {
      ++at_;
      otherwise = block({"endfor"});
    }
    ++at_;
    return [names, iterable, filter, body, otherwise](Scopes& scopes, std::string& out) {
      const Value all = iterable(scopes);
      const auto bind = [&](const Value& item) {
        if (names.size() == 1) {
          scopes.stack.back()[names[0]] = item;
          return;
        }
        if (!item.is_array() || item.size() != names.size())
          throw EvaluationError{"for cannot take its items apart"};
        for (std::size_t i = 0; i < names.size(); ++i) scopes.stack.back()[names[i]] = item[i];
      };
      Value items = Value::array();
      if (all.is_object()) {
        for (const auto& [key, value] : all.items()) items.push_back(key);
      } else if (all.is_array()) {
        for (const Value& item : all) {
          scopes.stack.emplace_back();
          bind(item);
          if (!filter || jinja::truthy(filter(scopes))) items.push_back(item);
          scopes.stack.pop_back();
        }
      } else if (!jinja::is_undefined(all)) {
        throw EvaluationError{"for needs a list or a mapping"};
      }
      const std::size_t count = items.size();
      for (std::size_t i = 0; i < count; ++i) {
        scopes.stack.emplace_back();
        bind(items[i]);
        Value loop = {{"index", i + 1},
                      {"index0", i},
                      {"first", i == 0},
                      {"last", i + 1 == count},
                      {"length", count},
                      {"revindex", count - i},
                      {"revindex0", count - i - 1}};
        if (i > 0) loop["previtem"] = items[i - 1];
        if (i + 1 < count) loop["nextitem"] = items[i + 1];
        scopes.stack.back()["loop"] = std::move(loop);
        run(body, scopes, out);
        scopes.stack.pop_back();
      }
      if (count == 0) run(otherwise, scopes, out);
    };
  }

  Statement set_statement() {
    const int line = segments_[at_].line;
    open(segments_[at_]);
    take_name();
    const std::string name = take_name();
    const std::string member = accept(".") ? take_name() : "";
    if (!accept("=")) refuse(line, "a set block without \"=\" is not supported");
    Expression value = expression();
    close("set");
    ++at_;
    return [name, member, value](Scopes& scopes, std::string&) {
      Value result = value(scopes);
      if (member.empty()) {
        scopes.stack.back()[name] = std::move(result);
        return;
      }
      Value* object = scopes.find(name);
      if (object == nullptr || !object->is_object())
        throw EvaluationError{"\"" + name + "\" is not a namespace"};
      (*object)[member] = std::move(result);
    };
  }

  // --- expressions, from the loosest binding to the tightest

  Expression expression() {
    Expression value = disjunction();
    if (!accept_name("if")) return value;
    Expression condition = disjunction();
    Expression otherwise = [](Scopes&) { return jinja::undefined(); };
    if (accept_name("else")) otherwise = expression();
    return [=](Scopes& s) { return jinja::truthy(condition(s)) ? value(s) : otherwise(s); };
  }

  Expression disjunction() {
    Expression left = conjunction();
    while (accept_name("or")) {
      Expression right = conjunction();
      left = [=](Scopes& s) {
        Value value = left(s);
        return jinja::truthy(value) ? value : right(s);
      };
    }
    return left;
  }

  Expression conjunction() {
    Expression left = negation();
    while (accept_name("and")) {
      Expression right = negation();
      left = [=](Scopes& s) {
        Value value = left(s);
        return jinja::truthy(value) ? right(s) : value;
      };
    }
    return left;
  }

  Expression negation() {
    if (!accept_name("not")) return comparison();
    Expression value = negation();
    return [=](Scopes& s) { return Value(!jinja::truthy(value(s))); };
  }

  Expression comparison() {
    Expression left = sum();
    for (;;) {
      std::string op;
      for (const char* symbol : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (op.empty() && accept(symbol)) op = symbol;
      }
      if (op.empty() && accept_name("in")) op = "in";
      if (op.empty() && peek_name("not") && tokens_[position_ + 1].text == "in") {
        position_ += 2;
        op = "not in";
      }
      if (op.empty()) return left;
      left = binary(op, left, sum());
    }
  }

  Expression sum() {
    Expression left = concatenation();
    for (;;) {
      if (accept("+")) {
        left = binary("+", left, concatenation());
      } else if (accept("-")) {
        left = binary("-", left, concatenation());
      } else {
        return left;
      }
    }
  }

  Expression concatenation() {
    Expression left = product();
    while (accept("~")) left = binary("~", left, product());
    return left;
  }

  Expression product() {
    Expression left = unary();
    for (;;) {
      std::string op;
      for (const char* symbol : {"*", "//", "%"}) {
        if (op.empty() && accept(symbol)) op = symbol;
      }
      if (op.empty()) return left;
      left = binary(op, left, unary());
    }
  }

  static Expression binary(const std::string& op, const Expression& left, const Expression& right) {
    return [=](Scopes& s) { return jinja::binary(op, left(s), right(s)); };
  }

  Expression unary() {
    if (!accept("-")) return postfix(primary());
    Expression value = unary();
    return binary(
        "-", [](Scopes&) { return Value(std::int64_t{0}); }, value);
  }

  Expression postfix(Expression value) {
    for (;;) {
      if (accept(".")) {
        const std::string name = take_name();
        if (accept("(")) {
          auto arguments = call_arguments();
          value = [=](Scopes& s) {
            return jinja::call_method(value(s), name, evaluate(arguments, s));
          };
        } else {
          value = [=](Scopes& s) { return jinja::get_member(value(s), name); };
        }
      } else if (accept("[")) {
        value = subscript(value);
      } else if (accept("|")) {
        const std::string name = take_name();
        const auto arguments = accept("(") ? call_arguments() : std::vector<Expression>{};
        value = [=](Scopes& s) {
          return jinja::apply_filter(name, value(s), evaluate(arguments, s));
        };
      } else if (accept_name("is")) {
        const bool negated = accept_name("not");
        const std::string name = take_name();
        value = [=](Scopes& s) { return Value(jinja::apply_test(name, value(s)) != negated); };
      } else {
        return value;
      }
    }
  }

  Expression subscript(const Expression& object) {
    Expression parts[3];
    int count = 0;
    bool is_slice = false;
    while (!accept("]")) {
      if (accept(":")) {
        is_slice = true;
        if (++count > 2) refuse(token().line, "a slice has at most three parts");
      } else {
        parts[count] = expression();
      }
    }
    if (!is_slice) {
      if (!parts[0]) refuse(token().line, "an index is missing");
      return [=, key = parts[0]](Scopes& s) { return jinja::get_member(object(s), key(s)); };
    }
    const auto value_of = [](const Expression& part, Scopes& s) {
      return part ? part(s) : jinja::undefined();
    };
    return [=, start = parts[0], stop = parts[1], step = parts[2]](Scopes& s) {
      return jinja::slice(object(s), value_of(start, s), value_of(stop, s), value_of(step, s));
    };
  }

  Expression primary() {
    const Token t = token();
    ++position_;
    switch (t.kind) {
      case Token::Kind::string: {
        std::string text = t.text;
        while (token().kind == Token::Kind::string)
          text += tokens_[position_++].text;  // adjacent strings join
        return constant(text);
      }
      case Token::Kind::integer: {
        if (t.text.size() > 18) refuse(t.line, "the number {} is too large", t.text);
        return constant(std::int64_t{std::stoll(t.text)});
      }
      case Token::Kind::number:
        return constant(std::stod(t.text));
      case Token::Kind::name:
        return name(t);
      case Token::Kind::symbol:
        if (t.text == "(") {
          Expression value = expression();
          if (!accept(")"))
            refuse(t.line, "a \"(\" is not closed, or holds a tuple, which is not supported");
          return value;
        }
        if (t.text == "[") return list();
        if (t.text == "{") return mapping();
        break;
      case Token::Kind::end:
        break;
    }
    refuse(t.line, "an expression is missing before \"{}\"", t.text);
  }

  Expression name(const Token& t) {
    if (t.text == "true" || t.text == "True") return constant(true);
    if (t.text == "false" || t.text == "False") return constant(false);
    if (t.text == "none" || t.text == "None") return constant(nullptr);
    if (!accept("(")) {
      return [name = t.text](Scopes& s) {
        const Value* found = s.find(name);
        return found == nullptr ? jinja::undefined() : *found;
      };
    }
    if (t.text == "namespace" || t.text == "dict") return keyword_arguments();
    if (t.text == "raise_exception") {
      auto arguments = call_arguments();
      return [=](Scopes& s) -> Value {
        const auto values = evaluate(arguments, s);
        throw EvaluationError{"the template refuses the conversation: " +
                              (values.empty() ? "" : jinja::print(values[0]))};
      };
    }
    if (t.text == "range") {
      auto arguments = call_arguments();
      return [=](Scopes& s) -> Value {
        const auto values = evaluate(arguments, s);
        if (values.empty() || values.size() > 2)
          throw EvaluationError{"range takes one or two numbers"};
        for (const Value& v : values) {
          if (!v.is_number_integer()) throw EvaluationError{"range takes integers"};
        }
        const std::int64_t first = values.size() == 2 ? values[0].get<std::int64_t>() : 0,
                           last = values.back().get<std::int64_t>();
        if (last - first > 1000000) throw EvaluationError{"range is too long"};
        Value result = Value::array();
        for (std::int64_t i = first; i < last; ++i) result.push_back(i);
        return result;
      };
    }
    refuse(t.line, "the function \"{}\" is not supported", t.text);
  }

  template <typename T>
  static Expression constant(T value) {
    return [value = Value(value)](Scopes&) { return value; };
  }

  static std::vector<Value> evaluate(const std::vector<Expression>& expressions, Scopes& scopes) {
    std::vector<Value> values;
    for (const Expression& e : expressions) values.push_back(e(scopes));
    return values;
  }

  /// Positional arguments up to ")".
  std::vector<Expression> call_arguments() { return list_until(")"); }

  std::vector<Expression> list_until(const char* end) {
    std::vector<Expression> items;
    while (!accept(end)) {
      if (token().kind == Token::Kind::name && tokens_[position_ + 1].text == "=") {
        refuse(token().line, "the named argument \"{}\" is not supported", token().text);
      }
      items.push_back(expression());
      if (!accept(",") && token().text != end)
        refuse(token().line, "expected \"{}\" before \"{}\"", end, token().text);
    }
    return items;
  }

  Expression list() {
    auto items = list_until("]");
    return [=](Scopes& s) {
      Value result = Value::array();
      for (const Expression& item : items) result.push_back(item(s));
      return result;
    };
  }

  Expression mapping() {
    std::vector<std::pair<Expression, Expression>> items;
    while (!accept("}")) {
      Expression key = expression();
      if (!accept(":")) refuse(token().line, "expected \":\" in a mapping");
      items.emplace_back(key, expression());
      if (!accept(",") && token().text != "}")
        refuse(token().line, "expected \"}}\" before \"{}\"", token().text);
    }
    return [=](Scopes& s) {
      Value result = Value::object();
      for (const auto& [key, value] : items) result[jinja::print(key(s))] = value(s);
      return result;
    };
  }

  /// name=value, ... up to ")": the members of a namespace.
  Expression keyword_arguments() {
    std::vector<std::pair<std::string, Expression>> items;
    while (!accept(")")) {
      const std::string key = take_name();
      if (!accept("=")) refuse(token().line, "expected \"=\" after \"{}\"", key);
      items.emplace_back(key, expression());
      if (!accept(",") && token().text != ")")
        refuse(token().line, "expected \")\" before \"{}\"", token().text);
    }
    return [=](Scopes& s) {
      Value result = Value::object();
      for (const auto& [key, value] : items) result[key] = value(s);
      return result;
    };
  }

  // --- tokens of the current segment

  void open(const Segment& segment) {
    tokens_ = jinja::tokenize(segment, source_);
    position_ = 0;
  }
  void close(const char* what) {
    if (token().kind != Token::Kind::end)
      refuse(token().line, "\"{}\" is not understood at the end of {}", token().text, what);
  }
  const Token& token() const { return tokens_[std::min(position_, tokens_.size() - 1)]; }
  bool peek_name(const char* word) const {
    return token().kind == Token::Kind::name && token().text == word;
  }
  bool accept(const char* symbol) {
    if (token().kind != Token::Kind::symbol || token().text != symbol) return false;
    ++position_;
    return true;
  }
  bool accept_name(const char* word) {
    if (!peek_name(word)) return false;
    ++position_;
    return true;
  }
  void expect_name(const char* word) {
    if (!accept_name(word))
      refuse(token().line, "expected \"{}\" before \"{}\"", word, token().text);
  }
  std::string take_name() {
    if (token().kind != Token::Kind::name)
      refuse(token().line, "expected a name before \"{}\"", token().text);
    return tokens_[position_++].text;
  }

  std::string source_;
  std::vector<Segment> segments_;
  std::size_t at_ = 0;
  std::vector<Token> tokens_;
  std::size_t position_ = 0;
};

}  // namespace

struct JinjaTemplate::Impl {
  std::vector<Statement> body;
};

JinjaTemplate::JinjaTemplate(const std::string& text, const std::string& source)
    : impl_(std::make_unique<Impl>(Impl{Parser(text, source).parse()})) {}
JinjaTemplate::~JinjaTemplate() = default;
JinjaTemplate::JinjaTemplate(JinjaTemplate&&) noexcept = default;
JinjaTemplate& JinjaTemplate::operator=(JinjaTemplate&&) noexcept = default;

std::string JinjaTemplate::render(const OrderedJson& variables) const {
  Scopes scopes;
  for (const auto& [name, value] : variables.items()) scopes.stack.front()[name] = value;
  std::string out;
  for (const Statement& step : impl_->body) step(scopes, out);
  return out;
}

}  // namespace oscar
