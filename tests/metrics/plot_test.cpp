// SPDX-License-Identifier: Apache-2.0
#include "stepforge/metrics/plot.h"

#include <cctype>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/strings.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// Checks that tags balance, attributes are quoted and unique markup is escaped; returns the fault or "".
/// Covers only the XML that a plot uses.
class XmlChecker {
 public:
  explicit XmlChecker(std::string_view text) : text_(text) {}

  std::string fault() {
    while (at_ < text_.size()) {
      if (text_[at_] == '<') {
        if (!tag())
          return "bad tag at byte " + std::to_string(at_) + ": " + std::string(text_.substr(at_, 60));
      } else if (!character()) {
        return "bad character at byte " + std::to_string(at_);
      }
    }
    return open_.empty() ? "" : "never closed: " + open_.back();
  }

 private:
  bool take(char wanted) {
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  std::string name() {
    const size_t begin = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '-'))
      ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  bool character() {
    if (text_[at_] == '&') {
      for (const std::string_view entity : {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"}) {
        if (text_.substr(at_, entity.size()) == entity) {
          at_ += entity.size();
          return true;
        }
      }
      return false;
    }
    return text_[at_] != '<' && text_[at_++] != '>';
  }
  bool tag() {
    ++at_;
    if (take('/')) {
      const std::string closed = name();
      if (open_.empty() || open_.back() != closed) return false;
      open_.pop_back();
      return take('>');
    }
    const std::string opened = name();
    if (opened.empty()) return false;
    while (take(' ')) {
      if (name().empty() || !take('=') || !take('"')) return false;
      while (at_ < text_.size() && text_[at_] != '"') {
        if (!character()) return false;
      }
      if (!take('"')) return false;
    }
    if (take('/')) return take('>');
    open_.push_back(opened);
    return take('>');
  }

  std::string_view text_;
  size_t at_ = 0;
  std::vector<std::string> open_;
};

std::string xml_fault(std::string_view text) {
  return XmlChecker(text).fault();
}

RunSeries run_of(const std::string& name, int steps) {
  RunSeries run;
  run.name = name;
  for (int step = 1; step <= steps; ++step) {
    run.loss.add(step, 3 + 5.0 / step);
    run.grad_norm.add(step, 0.5 + 1.0 / step);
    run.lr.add(step, 8e-4);
    run.tokens_per_second.add(step, 6120);
    if (step % 10 == 0) run.validation_loss.add(step, 3.25);
  }
  run.tokens_seen = steps * 1024.0;
  run.steps = steps;
  return run;
}

TEST(XmlChecker, FindsFaults) {
  EXPECT_EQ(xml_fault("<a b=\"1\"><c/>x &amp; y</a>"), "");
  EXPECT_NE(xml_fault("<a><b></a></b>"), "");
  EXPECT_NE(xml_fault("<a>"), "");
  EXPECT_NE(xml_fault("<a>x & y</a>"), "");
  EXPECT_NE(xml_fault("<a b=\"<\"/>"), "");
  EXPECT_NE(xml_fault("<a b=1/>"), "");
}

TEST(PlotSvg, IsWellFormedAndHasNoOutsideReferences) {
  const std::string svg = plot_svg({run_of("a", 100), run_of("b <script> & \"c\" 'd'", 50)});
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_FALSE(contains(svg, "<script"));
  EXPECT_FALSE(contains(svg, "href"));
  EXPECT_EQ(count_of(svg, "http"), 1U);
  EXPECT_CONTAINS(svg, "b &lt;script&gt; &amp; &quot;c&quot; &#39;d&#39;</text>");
  EXPECT_CONTAINS(svg, "fill=\"#ffffff\"");
}

TEST(PlotSvg, HasFourPanelsAndATableOfLastValues) {
  const std::string svg = plot_svg({run_of("small", 100)});
  for (const std::string_view text :
       {"Training of small", "Loss", "Gradient norm", "Learning rate", "Tokens per second"}) {
    EXPECT_EQ(count_of(svg, ">" + std::string(text) + "</text>"), 1U) << text;
  }
  for (const std::string_view cell : {"100", "102,400", "3.050", "3.250", "0.510", "8e-4", "6,120"}) {
    EXPECT_GE(count_of(svg, "font-size=\"13\" fill=\"#111827\" text-anchor=\"end\">" + std::string(cell) +
                                "</text>"),
              1U)
        << cell;
  }
}

/// The points of the learning rate's curve, which is the only one drawn 1.5 pixels wide.
std::string rate_points(const RunSeries& run) {
  const std::string svg = plot_svg({run});
  const size_t style = svg.find("stroke-width=\"1.5\" stroke-dasharray");
  EXPECT_NE(style, std::string::npos);
  const size_t begin = svg.rfind("<path d=\"", style) + 9;
  return svg.substr(begin, svg.find('"', begin) - begin);
}

TEST(PlotSvg, InterruptsTheLineAtGaps) {
  RunSeries run = run_of("gap", 100);
  EXPECT_EQ(count_of(rate_points(run), "M"), 1U);
  run.lr.y[50] = NAN;
  EXPECT_EQ(count_of(rate_points(run), "M"), 2U);
  EXPECT_EQ(count_of(rate_points(run), "h4"), 0U);
  EXPECT_FALSE(contains(plot_svg({run}), "nan"));
}

TEST(PlotSvg, APointBetweenTwoGapsIsADash) {
  RunSeries run = run_of("gap", 100);
  run.lr.y[50] = run.lr.y[52] = NAN;
  EXPECT_EQ(count_of(rate_points(run), "h4"), 1U);
}

TEST(PlotSvg, DrawsRunsWithoutValues) {
  RunSeries only_nan;
  only_nan.name = "diverged";
  only_nan.loss.add(1, NAN);
  for (const auto& runs : {std::vector<RunSeries>{only_nan}, {RunSeries{}}, {run_of("one", 1)}, {}}) {
    const std::string svg = plot_svg(runs);
    EXPECT_EQ(xml_fault(svg), "");
    EXPECT_FALSE(contains(svg, "nan"));
    EXPECT_FALSE(contains(svg, "inf"));
  }
  EXPECT_EQ(count_of(plot_svg({only_nan}), "not recorded"), 4U);
}

TEST(PlotSvg, CutsARarePeakOfTheGradientNormWithANote) {
  RunSeries run = run_of("spike", 1000);
  EXPECT_FALSE(contains(plot_svg({run}), "peaks cut"));
  run.grad_norm.y[500] = 250;
  EXPECT_CONTAINS(plot_svg({run}), "peaks cut (highest 250.0)");
}

TEST(PlotSvg, StaysSmallForLongRuns) {
  EXPECT_LT(plot_svg({run_of("long", 200000)}).size(), 400000U);
}

TEST(PlotSvg, ShortensLongNames) {
  std::string name;
  for (int i = 0; i < 100; ++i) name += "ü";
  const std::string svg = plot_svg({run_of(name, 10)});
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_FALSE(contains(svg, name));
  EXPECT_CONTAINS(svg, "ü…</text>");
  EXPECT_FALSE(contains(svg, "\xEF\xBF\xBD"));
}

TEST(PlotSvg, MarksResumesAndKills) {
  RunSeries run = run_of("marked", 100);
  EXPECT_FALSE(contains(plot_svg({run}), "continued"));
  run.resumes = {{20, false}, {50, true}};
  const std::string svg = plot_svg({run});
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_CONTAINS(svg, "continued (red: after a kill or failure)");
  EXPECT_EQ(count_of(svg, "stroke=\"#dc2626\" stroke-dasharray=\"1 3\""), 4U) << "one in each panel";
  EXPECT_EQ(count_of(svg, "stroke=\"#9ca3af\" stroke-dasharray=\"1 3\""), 4U);
}

TEST(PlotSvg, ShowsTheBestValidation) {
  RunSeries run = run_of("best", 100);
  run.validation_loss.y[3] = 3.125;
  const std::string svg = plot_svg({run});
  EXPECT_CONTAINS(svg, ">3.250 (3.125)</text>");
  EXPECT_EQ(count_of(svg, "r=\"3\" fill=\"#2563eb\""), 1U);
}

TEST(PlotSvg, ALogarithmicAxisLeavesOutWhatIsNotPositive) {
  RunSeries run = run_of("log", 100);
  run.loss.y[5] = 0;
  run.loss.y[6] = -1;
  const std::string svg = plot_svg({run}, {.logarithmic = true});
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_FALSE(contains(svg, "nan"));
  EXPECT_FALSE(contains(svg, "inf"));
  EXPECT_CONTAINS(plot_svg({run}, {.x = PlotX::tokens}), ">tokens</text>");
}

TEST(LogAxis, HasTicksInsideItsRange) {
  for (const auto& [low, high] : {std::pair{2.1, 2.3}, std::pair{0.01, 9.0}, std::pair{1e-7, 1e6},
                                  std::pair{3.0, 3.0}, std::pair{1.0, 60.0}}) {
    const Axis axis = log_axis(low, high);
    EXPECT_LE(axis.low, std::log10(low));
    EXPECT_GE(axis.high, std::log10(high));
    EXPECT_GE(axis.ticks.size(), 1U) << low;
    EXPECT_LE(axis.ticks.size(), 12U) << low;
    EXPECT_EQ(axis.ticks.size(), axis.labels.size());
    for (const double tick : axis.ticks) EXPECT_TRUE(tick >= axis.low && tick <= axis.high);
  }
}

TEST(PlotSvg, EscapesMarkupAndReplacesBytesThatXmlForbids) {
  const auto name_in_picture = [](const std::string& name) {
    const std::string svg = plot_svg({run_of(name, 1)});
    const size_t begin = svg.find("<title>Training of ") + 19;
    return svg.substr(begin, svg.find("</title>") - begin);
  };
  EXPECT_EQ(name_in_picture("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(name_in_picture("tab\tnul" + std::string(1, '\0') + "esc\x1b"), "tab\tnul\uFFFDesc\uFFFD");
  EXPECT_EQ(name_in_picture("grüße 😀"), "grüße 😀");
  EXPECT_EQ(name_in_picture("\xC3"), "\uFFFD");
  EXPECT_EQ(name_in_picture("\xC0\xAF"), "\uFFFD\uFFFD");
  EXPECT_EQ(name_in_picture("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(name_in_picture("\xEF\xBF\xBF"), "\uFFFD");
  EXPECT_EQ(name_in_picture("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
}

}  // namespace
}  // namespace stepforge::testing
