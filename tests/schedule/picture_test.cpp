// SPDX-License-Identifier: Apache-2.0
#include "stepforge/schedule/picture.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/schedule/csv.h"
#include "tests/schedule/kinds.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

Timeline timeline_for(const Schedule& schedule) {
  return simulate(schedule, uniform_times(schedule.stages(), 1, 1, 1));
}

std::string picture_of(const Schedule& schedule, const std::string& title = "title") {
  return schedule_svg(schedule, timeline_for(schedule), title);
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// The first fault of the nesting of elements, or "". Enough of XML for what the picture uses.
std::string nesting_fault(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
    const std::size_t end = xml.find('>', at);
    if (end == std::string::npos) return "a tag is not closed";
    const std::string tag = xml.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos) return "< in " + tag;
    if (tag.back() == '/') continue;
    if (tag.front() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
      continue;
    }
    if (open.empty() || open.back() != tag.substr(1)) return "unexpected " + tag;
    open.pop_back();
  }
  return open.empty() ? "" : open.back() + " is not closed";
}

TEST(SchedulePicture, EveryScheduleIsWellFormedAndHasABoxPerAction) {
  for (const ScheduleKind& kind : all_kinds()) {
    const Schedule schedule = make_schedule(kind, 4, stage_numbers(kind).back(), 5);
    const std::string svg = picture_of(schedule);
    EXPECT_EQ(nesting_fault(svg), "") << kind.name;
    int actions = 0;
    for (const auto& list : schedule.actions) actions += static_cast<int>(list.size());
    EXPECT_EQ(count_of(svg, "<title>"), actions) << kind.name;
    EXPECT_EQ(svg, picture_of(schedule));
  }
}

TEST(SchedulePicture, ABoxIsWhereAndAsLongAsItsAction) {
  // Three actions on one rank, the second twice as long.
  const Schedule schedule = parse_schedule_csv("0F0,0I0,0W0", "my.csv");
  const std::string svg = schedule_svg(schedule, simulate(schedule, uniform_times(1, 1, 2, 1)), "title");
  EXPECT_CONTAINS(svg, "<rect x=\"64\" y=\"40\" width=\"105\" height=\"26\" fill=\"#93baf0\"",
                  "<rect x=\"169\" y=\"40\" width=\"210\" height=\"26\" fill=\"#6ccbd6\"",
                  "<rect x=\"379\" y=\"40\" width=\"105\" height=\"26\" fill=\"#96d482\"");
  EXPECT_CONTAINS(svg, "<text x=\"116.5\" y=\"57\" text-anchor=\"middle\" fill=\"#000\">0</text>");
}

TEST(SchedulePicture, RowsShowRankBubbleAndPeak) {
  const std::string svg = picture_of(make_schedule(ScheduleKind::one_f_one_b, 2, 1, 3));
  EXPECT_CONTAINS(svg, ">rank 0<", ">rank 1<", ">bubble 25.0 %, peak 2.00<", ">bubble 25.0 %, peak 1.00<");
}

TEST(SchedulePicture, LegendNamesTheKindsThatAreUsed) {
  const std::string gpipe = picture_of(make_schedule(ScheduleKind::gpipe, 2, 1, 1));
  EXPECT_CONTAINS(gpipe, ">forward<", ">backward<");
  EXPECT_EQ(gpipe.find("gradient"), std::string::npos);
  EXPECT_EQ(gpipe.find("darker"), std::string::npos);
  EXPECT_CONTAINS(picture_of(make_schedule(ScheduleKind::zbv_zero_bubble, 2, 2, 1)), ">input gradient<",
                  ">weight gradient<", "darker");
}

TEST(SchedulePicture, LaterStagesOfARankAreDarkerWithLegibleText) {
  const std::string svg = picture_of(make_schedule(ScheduleKind::looped_bfs, 2, 3, 1));
  EXPECT_CONTAINS(svg, "fill=\"#93baf0\"", "fill=\"#6b87ae\"", "fill=\"#42546c\"", "fill=\"#fff\">0</text>");
}

TEST(SchedulePicture, NumbersThatDoNotFitAreLeftOut) {
  const Schedule schedule = make_schedule(ScheduleKind::gpipe, 1, 1, 1000);
  const std::string svg = picture_of(schedule);
  EXPECT_EQ(count_of(svg, "<title>"), 2000);
  EXPECT_EQ(svg.find(">0</text>"), std::string::npos);
}

TEST(SchedulePicture, TitlesAreEscaped) {
  const std::string svg = picture_of(make_schedule(ScheduleKind::gpipe, 1, 1, 1), "a < b & \"c\" > d\n");
  EXPECT_CONTAINS(svg, "a &lt; b &amp; \"c\" &gt; d <");
  EXPECT_EQ(nesting_fault(svg), "");
}

TEST(SchedulePicture, TimesOfAnotherScheduleAreRefused) {
  const Schedule schedule = make_schedule(ScheduleKind::gpipe, 2, 1, 2);
  const Timeline other = timeline_for(make_schedule(ScheduleKind::gpipe, 2, 1, 3));
  EXPECT_CONTAINS(message_of<Error>([&] { schedule_svg(schedule, other, ""); }),
                  "not those of this schedule");
  const Timeline zero = simulate(schedule, uniform_times(2, 0, 0, 0));
  EXPECT_CONTAINS(message_of<Error>([&] { schedule_svg(schedule, zero, ""); }), "all zero");
}

}  // namespace
}  // namespace stepforge::testing
