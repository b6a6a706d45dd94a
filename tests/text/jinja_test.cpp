#include "text/jinja.h"

#include "oscar/core/error.h"
#include "oscar/text/chat_template.h"
#include "support.h"

namespace oscar {
namespace {

std::string render(const std::string& text, const OrderedJson& variables = OrderedJson::object()) {
  return JinjaTemplate(text, "test").render(variables);
}

struct Example {
  const char* text;
  const char* expected;
  friend std::ostream& operator<<(std::ostream& out, const Example& e) { return out << e.text; }
};
class Renders : public testing::TestWithParam<Example> {};

TEST_P(Renders, AsJinjaDoes) {
  const OrderedJson variables = {
      {"name", "Ada"},
      {"list", {1, 2, 3}},
      {"messages",
       {{{"role", "user"}, {"content", " hi "}}, {{"role", "assistant"}, {"content", "yo"}}}},
      {"flag", false}};
  EXPECT_EQ(render(GetParam().text, variables), GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    Jinja, Renders,
    testing::Values(
        Example{"Hello {{ name }}!", "Hello Ada!"}, Example{"a {#- comment -#} b", "ab"},
        Example{"{% if flag %}yes{% else %}no{% endif %}", "no"},
        Example{"{% if name == 'Bob' %}1{% elif name is defined and not flag %}2{% endif %}", "2"},
        Example{"{% for x in list %}{{ loop.index0 }}:{{ x }}{% if not loop.last %},{% endif %}{% "
                "endfor %}",
                "0:1,1:2,2:3"},
        Example{"{% for x in list[::-1] %}{{ x }}{% endfor %}", "321"},
        Example{"{{ list[1:][0] + list[-1] }}", "5"},
        Example{"{% for x in list if x > 1 %}{{ x }}{% endfor %}", "23"},
        Example{"{% for x in nothing %}{% else %}none{% endfor %}", "none"},
        Example{"{% for m in messages %}{{ m.role ~ '=' ~ m['content'] | trim }};{% endfor %}",
                "user=hi;assistant=yo;"},
        Example{"{% set ns = namespace(n=0) %}{% for x in list %}{% set ns.n = ns.n + x %}{% "
                "endfor %}{{ ns.n }}",
                "6"},
        Example{"{% set x = 1 %}{% for y in list %}{% set x = y %}{% endfor %}{{ x }}", "1"},
        Example{"{{ 'a-b-c'.split('-')[-1] }}{{ '  x '.strip() }}{{ 'xxa'.lstrip('x') }}", "cxa"},
        Example{"{{ 'yes' if 'ell' in 'hello' else 'no' }}", "yes"},
        Example{"{{ messages | length }}", "2"},
        Example{"{{ {'a': [1, true, none]} | tojson }}", "{\"a\": [1, true, null]}"},
        Example{"{{ missing }}|{{ missing is defined }}|{{ none }}", "|False|None"},
        Example{"  {% if true %}\nx\n  {% endif %}\ny", "x\ny"},  // lstrip_blocks and trim_blocks
        Example{"a\n  {%- if true -%}  b  {%- endif %}", "ab"}, Example{"{{ '{%' }}", "{%"},
        Example{"{{ 7 // 2 }} {{ -7 % 3 }} {{ 2 * 3 - 1 }}", "3 2 5"},
        Example{"{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"}));

struct Refusal {
  const char* text;
  const char* message;
  friend std::ostream& operator<<(std::ostream& out, const Refusal& r) { return out << r.text; }
};
class Refuses : public testing::TestWithParam<Refusal> {};

TEST_P(Refuses, NamingTheConstructAndItsLine) {
  EXPECT_THROW_WITH(render(GetParam().text), InputError, GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Jinja, Refuses,
    testing::Values(Refusal{"\n{% macro x() %}{% endmacro %}", "line 2: the statement \"macro\""},
                    Refusal{"{{ x | frobnicate }}", "filter \"frobnicate\""},
                    Refusal{"{{ strftime_now('%d') }}", "function \"strftime_now\""},
                    Refusal{"{{ 'a' is prime }}", "test \"prime\""},
                    Refusal{"{% if true %}", "endif is missing"}, Refusal{"{{ 'a", "not closed"},
                    Refusal{"a\nb {{ (1 }}", "line 2"}, Refusal{"{% endfor %}", "\"endfor\""},
                    Refusal{"{{ missing.field }}", "undefined"},
                    Refusal{"{{ raise_exception('no') }}", "refuses the conversation: no"}));

TEST(ChatTemplate, RendersChatMl) {
  const ChatTemplate chatml = ChatTemplate::load("chatml", "");
  EXPECT_EQ(chatml.render({{"user", "hi"}}, true),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, NoneJoinsContents) {
  EXPECT_EQ(ChatTemplate::load("none", "").render({{"user", "a"}, {"assistant", "b"}}), "a\nb");
}

TEST(ChatTemplate, SaysWhatToDoWithoutATemplate) {
  const test::TemporaryFolder folder;
  const ChatTemplate none_there = ChatTemplate::load("auto", folder.path());
  EXPECT_THROW_WITH(none_there.render({{"user", "a"}}), InputError, "--chat-template chatml");
  EXPECT_THROW_WITH(ChatTemplate::load("alpaca", ""), InputError, "\"alpaca\" is not known");
}

}  // namespace
}  // namespace oscar
