// SPDX-License-Identifier: Apache-2.0
// Errors name place, fault and remedy; limits hold.
#include <thread>

#include <gtest/gtest.h>

#include "tests/jinja/rendered.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

using jinja::Template;
using jinja::TemplateError;
using Reason = TemplateError::Reason;

TEST(JinjaErrors, NameTemplateLineFaultAndRemedy) {
  const std::string text = message_of<TemplateError>([] { rendered("a\n{{ x.y }}"); });
  EXPECT_TRUE(contains(text, "test.jinja, line 2: x is undefined", "is defined"));
}

TEST(JinjaErrors, RaiseExceptionHasItsOwnTypeAndMessage) {
  try {
    rendered("\n{{ raise_exception('bad roles') }}");
    FAIL() << "no exception";
  } catch (const jinja::TemplateRefusal& refusal) {
    EXPECT_EQ(refusal.message(), "bad roles");
    EXPECT_EQ(refusal.line(), 2);
  }
}

TEST(JinjaErrors, SyntaxIsCheckedBeforeRendering) {
  for (const char* source :
       {"{% if x %}", "{{ 1 + }}", "{% nosuch %}", "{{ 'a }}", "{{ x|nosuch }}", "{% break %}", "{{ (1] }}",
        "{# open ", "{% for loop in x %}{{ loop }}{% endfor %}", "{% macro m(a, a) %}{% endmacro %}",
        "{{ f(a=1, a=2) }}"}) {
    EXPECT_THROW(Template::parse(source, "t"), TemplateError) << source;
  }
}

TEST(JinjaErrors, AnUnknownFilterInABranchThatIsNotTakenIsNoError) {
  EXPECT_EQ(rendered("{% if false %}{{ x|nosuch }}{% endif %}ok"), "ok");
}

TEST(JinjaErrors, WhatIsMissingIsRefusedByName) {
  const std::pair<const char*, const char*> refused[] = {
      {"{% include 'x' %}", "tag {% include %}"},
      {"{% extends 'x' %}", "tag {% extends %}"},
      {"{% import 'x' as y %}", "tag {% import %}"},
      {"{% block b %}{% endblock %}", "tag {% block %}"},
      {"{% with a = 1 %}{% endwith %}", "tag {% with %}"},
      {"{% print 1 %}", "tag {% print %}"},
      {"{% for i in [] recursive %}{% endfor %}", "a recursive loop"},
      {"{% for loop in [1] %}{% endfor %}", "assignment to the name loop"},
      {"{% macro m() %}{{ kwargs }}{% endmacro %}", "the name kwargs"},
      {"{% macro m() %}{{ varargs }}{% endmacro %}", "the name varargs"},
      {"{% macro m(caller) %}{% endmacro %}", "parameter named caller"},
      {"{{ self }}", "the name self"},
      {"{{ lipsum() }}", "function lipsum()"},
      {"{{ cycler(1) }}", "function cycler()"},
      {"{{ joiner() }}", "function joiner()"},
      {"{{ [1]|random }}", "filter random"},
      {"{{ [1]|batch(2) }}", "filter batch"},
      {"{{ ['a']|map('wordcount')|list }}", "filter wordcount"},
      {"{{ 1.5|round }}", "filter round"},
      {"{{ '7'|int(0, 16) }}", "filter int with a base"},
      {"{{ [1]|sort(attribute='a,b') }}", "sort by several attributes"},
      {"{{ 3 is odd }}", "test odd"},
      {"{{ [1]|select('even')|list }}", "test even"},
      {"{{ 'a'.encode() }}", "attribute encode of str"},
      {"{{ 'a'.find('a') }}", "attribute find of str"},
      {"{{ [1].index(1) }}", "attribute index of list"},
      {"{{ {}.copy() }}", "attribute copy of dict"},
      {"{% for i in [1] %}{{ loop.cycle(1) }}{% endfor %}", "attribute cycle of LoopContext"},
      {"{% for i in [1] %}{{ loop.depth }}{% endfor %}", "attribute depth of LoopContext"},
      {"{% for i in [1] %}{% for j in loop %}{% endfor %}{% endfor %}", "iterating over `loop`"},
      {"{{ (1).real }}", "attribute real of int"},
      {"{{ dict.x }}", "attribute x of function"},
      {"{{ 'a'.startswith('a', 1) }}", "startswith() with a start"},
      {"{{ range }}", "printing a function"},
      {"{% set n = namespace() %}{% set n.n = n %}{{ n }}", "printing a Namespace"},
      {"{{ range(2) }}", "printing a range"},
      {"{{ {}.keys() }}", "printing a dict_keys"},
      {"{{ range(2)[1:] }}", "slice of range"},
      {"{{ {}[1, 2] }}", "several keys"},
      {"{{ {}.keys() == {}.keys() }}", "comparing a dict_keys"},
      {"{{ 2 ** 3 }}", "operator **"},
      {"{{ 7.5 // 2 }}", "operator // or % with a float"},
      {"{{ [1] * 2 }}", "operator * of a list"},
      {"{{ '%s' % 1 }}", "operator % of a string"},
      {"{{ '%5d'|format(1) }}", "the format \"%5d\""},
      {"{{ '%d'|format(1.5) }}", "format d of a float"},
      {"{{ '%(a)s'|format(a=1) }}", "format with names"},
      {"{{ '{:>5}'.format(1) }}", "the format \":>5\""},
      {"{{ '{a.b}'.format(a=1) }}", "field \"a.b\""},
      {"{{ ('a'|safe).replace('a', 'b') }}", "method replace of a safe string"},
      {"{{ ('%s'|safe)|format('b') }}", "format of a safe string"},
      {"{{ 0x1f }}", "number with a prefix"},
      {"{{ 1_000 }}", "number with a prefix or underscores"},
      {"{{ '\\101' }}", "escape in a string"},
  };
  for (const auto& [source, feature] : refused) {
    EXPECT_EQ(reason_of(source), Reason::unsupported) << source;
    const std::string text = message_of<TemplateError>([source = source] { rendered(source); });
    EXPECT_TRUE(contains(text, "test.jinja, line 1: not supported: ", feature)) << text;
  }
}

TEST(JinjaErrors, WhatIsRefusedInABranchThatIsNotTakenIsNoError) {
  EXPECT_EQ(rendered("{% if false %}{{ [1]|batch(2) }}{{ 3 is odd }}{{ 'a'.find('a') }}{% endif %}ok"), "ok");
}

TEST(JinjaLimits, EndEndlessAndHugeWork) {
  for (const char* source : {
           "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
           "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
           "{{ 'abcdefgh' * 1000000000 }}",
           "{{ 'x'|indent(1000000000, true) }}",
           "{{ 9223372036854775807 + 1 }}",
           "{{ 9223372036854775807 * 2 }}",
           "{% set n = namespace(x=[]) %}{% for i in range(1000) %}{% set n.x = [n.x] %}{% endfor %}",
           "{% set n = namespace(x='a') %}{% for i in range(1000) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
           "{% set n = namespace(x=[0]) %}{% for i in range(90) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ "
           "n.x }}",
           "{% set n = namespace(x=[0], y=[0]) %}{% for i in range(90) %}{% set n.x = [n.x, n.x] %}{% set "
           "n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}",
       }) {
    EXPECT_EQ(reason_of(source), Reason::limit) << source;
  }
  EXPECT_EQ(reason_of("{{ range(100001) }}"), Reason::evaluation);
}

TEST(JinjaLimits, BoundTheNestingOfTheSource) {
  const auto repeat = [](const std::string& text, int count) {
    std::string result;
    for (int i = 0; i < count; ++i) result += text;
    return result;
  };
  EXPECT_EQ(reason_of("{{ " + repeat("(", 5000) + "1" + repeat(")", 5000) + " }}"), Reason::limit);
  EXPECT_EQ(reason_of("{{ " + repeat("not ", 5000) + "1 }}"), Reason::limit);
  EXPECT_EQ(reason_of("{{ 1" + repeat(" + 1", 5000) + " }}"), Reason::limit);
  EXPECT_EQ(reason_of(repeat("{% if 1 %}", 5000)), Reason::limit);
  EXPECT_EQ(rendered("{{ 1" + repeat(" + 1", 200) + " }}"), "201");
}

TEST(JinjaLimits, TheOutputHasAMaximum) {
  jinja::RenderOptions options;
  options.max_output_bytes = 9;
  EXPECT_EQ(reason_of("{% for i in range(10) %}x{% endfor %}", Json::object(), options), Reason::limit);
  EXPECT_EQ(rendered("{% for i in range(9) %}x{% endfor %}", Json::object(), options), "xxxxxxxxx");
}

TEST(JinjaLimits, GrowWithTheVariables) {
  const std::string work = "{% for i in range(n) %}{% set x = i %}{% endfor %}done";
  EXPECT_EQ(rendered(work, {{"n", 2'000}}), "done");
  EXPECT_EQ(reason_of(work, {{"n", 50'000}}), Reason::limit) << "a small record has little time";
  EXPECT_EQ(rendered(work, {{"n", 50'000}, {"text", std::string(40'000, 'x')}}), "done");
  const std::string copies = "{{ ('y' * n) | length }}";
  EXPECT_EQ(rendered(copies, {{"n", 2'000'000}}), "2000000");
  EXPECT_EQ(reason_of(copies, {{"n", 20'000'000}}), Reason::limit) << "and little memory";
  EXPECT_EQ(rendered(copies, {{"n", 20'000'000}, {"text", std::string(1'000'000, 'x')}}), "20000000");
}

TEST(JinjaLimits, CountIndentsAndSeparatorsOfJson) {
  const std::string items = "{% set items = range(1000) | list %}";
  EXPECT_EQ(reason_of(items + "{{ items | tojson(separators=('x' * 100000, ':')) | length }}"),
            Reason::limit);
  EXPECT_EQ(reason_of(items + "{{ [[[[[[[[items]]]]]]]] | tojson(indent=1000) | length }}"), Reason::limit);
  EXPECT_EQ(reason_of("{{ ('x' * 1500000).split('x') | length }}"), Reason::limit);
}

TEST(JinjaTemplate, RendersFromSeveralThreads) {
  const Template shared = Template::parse("{% for i in range(n) %}{{ 'a' ~ i }}{% endfor %}", "t");
  std::vector<std::string> texts(4);
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < texts.size(); ++i) {
      threads.emplace_back([&, i] { texts[i] = shared.render({{"n", i}}).text; });
    }
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"", "a0", "a0a1", "a0a1a2"}));
}

}  // namespace
}  // namespace stepforge::testing
