// SPDX-License-Identifier: Apache-2.0
// Rules of the language that are easy to get wrong; the results are Jinja2's.
#include <gtest/gtest.h>

#include "tests/jinja/rendered.h"

namespace stepforge::testing {
namespace {

using jinja::Template;
using Reason = jinja::TemplateError::Reason;

TEST(JinjaWhiteSpace, ABlockTakesTheLineEndAfterItAndTheIndentationBeforeIt) {
  EXPECT_EQ(rendered("a\n  {% if true %}\nb\n  {% endif %}\nc"), "a\nb\nc");
}

TEST(JinjaWhiteSpace, SignsStripOrKeep) {
  EXPECT_EQ(rendered("a \n {%- if true -%} \n b {%- endif %}"), "ab");
  EXPECT_EQ(rendered("  {%+ if true +%}\nb{% endif %}"), "  \nb");
  EXPECT_EQ(rendered("a {{- 1 -}} b"), "a1b");
}

TEST(JinjaWhiteSpace, OneLineEndAtTheEndIsDroppedAndLineEndsBecomeLineFeeds) {
  EXPECT_EQ(rendered("a\r\nb\rc\n\n"), "a\nb\nc\n");
}

TEST(JinjaWhiteSpace, RawKeepsTagsAndCommentsVanish) {
  EXPECT_EQ(rendered("{% raw %}{{ a }}{% endraw %}{# {{ b }} #}!"), "{{ a }}!");
}

TEST(JinjaScopes, ALoopKeepsItsAssignmentsToItselfAndANamespaceDoesNot) {
  EXPECT_EQ(rendered("{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}"),
            "15151");
  EXPECT_EQ(
      rendered(
          "{% set n = namespace(x=1) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}"),
      "4");
}

TEST(JinjaScopes, AnIfAssignsToTheScopeAroundIt) {
  EXPECT_EQ(rendered("{% if true %}{% set x = 2 %}{% endif %}{{ x }}", {{"x", 1}}), "2");
  EXPECT_EQ(rendered("{% if false %}{% set x = 2 %}{% endif %}{{ x }}", {{"x", 1}}), "1");
}

TEST(JinjaScopes, AMacroReadsNamesWhenItIsCalled) {
  EXPECT_EQ(rendered("{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}", {{"x", 1}}), "2");
}

TEST(JinjaLoops, ElseRunsWhenNoBodyRanToItsEnd) {
  EXPECT_EQ(rendered("{% for i in [] %}a{% else %}b{% endfor %}"), "b");
  EXPECT_EQ(rendered("{% for i in [1] %}a{% break %}{% else %}b{% endfor %}"), "ab");
}

TEST(JinjaLoops, TheLoopVariableKnowsItsNeighbours) {
  EXPECT_EQ(rendered("{% for i in [1, 2, 3] %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }}{{ "
                     "loop.revindex }} {% endfor %}"),
            "<1>23 1<2>32 2<3>1 ");
}

TEST(JinjaLoops, TheConditionIsReadAsTheLoopRuns) {
  EXPECT_EQ(rendered("{% set n = namespace(on=true) %}{% for i in range(5) if n.on %}{{ i }}{% set n.on = i "
                     "< 1 %}{% endfor %}"),
            "01");
}

TEST(JinjaMacros, TakeDefaultsAndNames) {
  EXPECT_EQ(
      rendered("{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}"),
      "111243");
  EXPECT_EQ(reason_of("{% macro m() %}{% endmacro %}{{ m(1) }}"), Reason::evaluation);
}

TEST(JinjaMacros, ACallBlockIsTheCaller) {
  EXPECT_EQ(rendered("{% macro m() %}[{{ caller(3) }}]{% endmacro %}{% call(x) m() %}{{ x }}{% endcall %}"),
            "[3]");
}

TEST(JinjaGeneration, SpansAreBytesOfTheText) {
  const auto result =
      Template::parse("é{% generation %}ü{% endgeneration %}!{% generation %}{% endgeneration %}", "t")
          .render(Json::object());
  EXPECT_EQ(result.text, "éü!");
  EXPECT_EQ(result.generation, (std::vector<jinja::Span>{{2, 4}, {5, 5}}));
}

TEST(JinjaValues, AnUndefinedValuePrintsNothingAndFailsWhenItIsUsed) {
  EXPECT_EQ(rendered("{{ x }}{{ x is defined }}{{ x|default(3) }}{% for i in x %}{% endfor %}"), "False3");
  EXPECT_EQ(reason_of("{{ x.y }}"), Reason::evaluation);
  EXPECT_EQ(reason_of("{{ x + 1 }}"), Reason::evaluation);
}

TEST(JinjaValues, AMethodComesBeforeAKeyOfTheSameName) {
  const Json variables = {{"d", {{"items", 1}, {"x", 2}}}};
  EXPECT_EQ(rendered("{{ d.x }}{{ d['items'] }}{{ d.items()|length }}", variables), "212");
}

TEST(JinjaValues, TheSandboxHidesMethodsThatChangeAValue) {
  EXPECT_EQ(rendered("{{ [1].append is defined }}"), "False");
  EXPECT_EQ(reason_of("{{ [1].append(2) }}"), Reason::evaluation);
}

TEST(JinjaValues, AGeneratorIsReadOnce) {
  EXPECT_EQ(rendered("{% set g = [1, 2]|map('string') %}{{ g|join }}{{ g|join }}!"), "12!");
}

TEST(JinjaValues, StringsCountCodePoints) {
  EXPECT_EQ(rendered("{{ s|length }}{{ s[1] }}{{ s[::-1] }}", {{"s", "é𝒳x"}}), "3𝒳x𝒳é");
}

TEST(JinjaValues, PrintAsPythonPrintsThem) {
  EXPECT_EQ(rendered("{{ [1, 2.0, 1e16, none, true, 'it\\'s', (1,), {'a': 1}] }}"),
            "[1, 2.0, 1e+16, None, True, \"it's\", (1,), {'a': 1}]");
  EXPECT_EQ(rendered("{{ 7 // -2 }} {{ -7 % 3 }} {{ 6 / 3 }}"), "-4 2 2.0");
}

TEST(JinjaValues, CaseIsThatOfUnicode) {
  EXPECT_EQ(rendered("{{ s.upper() }}|{{ s.lower() }}|{{ s.title() }}|{{ s.capitalize() }}",
                     {{"s", "ßa ﬁX ΟΔΟΣ ᾳ ǆ İ"}}),
            "SSA FIX ΟΔΟΣ ΑΙ Ǆ İ|ßa ﬁx οδος ᾳ ǆ i̇|Ssa Fix Οδος ᾼ ǅ İ|Ssa ﬁx οδος ᾳ ǆ i̇");
}

TEST(JinjaFormats, FillTheirPlaces) {
  EXPECT_EQ(
      rendered(
          "{{ '%s|%d|%%'|format('a', 3) }}{{ '{}-{}'.format(1, none) }}{{ '{1}{0}{{}}'.format('a', 'b') }}{{ "
          "'<{i:d}>'.format(i=7) }}"),
      "a|3|%1-Noneba{}<7>");
  for (const char* source :
       {"{{ '%s'|format }}", "{{ ''|format(1) }}", "{{ '%d'|format('x') }}", "{{ '{}'.format() }}",
        "{{ '{'.format(1) }}", "{{ '{}{0}'.format(1) }}", "{{ '{x}'.format(1) }}"}) {
    EXPECT_EQ(reason_of(source), Reason::evaluation) << source;
  }
}

TEST(JinjaFilters, ToJsonWritesWhatJsonDumpsWrites) {
  const Json variables = {{"v", {{"b", "é\n"}, {"a", {1, nullptr}}}}};
  EXPECT_EQ(rendered("{{ v|tojson }}", variables), "{\"b\": \"é\\n\", \"a\": [1, null]}");
  EXPECT_EQ(rendered("{{ v|tojson(indent=1, sort_keys=true, ensure_ascii=true) }}", variables),
            "{\n \"a\": [\n  1,\n  null\n ],\n \"b\": \"\\u00e9\\n\"\n}");
}

TEST(JinjaClock, StrftimeNowShowsTheTimeOfTheOptions) {
  jinja::RenderOptions options;
  options.now = 86400;
  EXPECT_EQ(rendered("{{ strftime_now('%d %b %Y %H') }}", Json::object(), options), "02 Jan 1970 00");
}

}  // namespace
}  // namespace stepforge::testing
