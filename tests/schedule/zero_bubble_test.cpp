// SPDX-License-Identifier: Apache-2.0
#include "stepforge/schedule/zero_bubble.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/schedule/check.h"
#include "stepforge/schedule/dependencies.h"
#include "stepforge/schedule/generators.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// A row of the tables of arXiv 2401.10241: the profiled times of a model, and the bubble rates that the
/// paper computes from them. Times in microseconds.
struct Published {
  std::string model;
  int ranks = 0;
  int micro_batches = 0;
  double forward = 0;
  double input = 0;
  double weight = 0;
  double latency = 0;
  int layers = 0;
  int width = 0;
  int heads = 0;
  double zb_1p = 0;
  double zb_2p = 0;
};

void PrintTo(const Published& row, std::ostream* out) {
  *out << row.model << ", " << row.micro_batches << " micro-batches";
}

class ZeroBubbleTable : public ::testing::TestWithParam<Published> {};

/// Of a token, a layer keeps 34h + 5as bytes for its backward, s = 1,024, of which W needs 32h: table 1 of
/// the paper. A forward is the unit.
StageTimes times_of(const Published& row) {
  constexpr double kSequence = 1024;
  StageTimes times = uniform_times(row.ranks, row.forward, row.input, row.weight);
  for (StageTime& stage : times.stages)
    stage.weight_activations = 32.0 * row.width / (34.0 * row.width + 5.0 * row.heads * kSequence);
  times.latency = row.latency;
  return times;
}

double peak_of(const Timeline& timeline) {
  return std::ranges::max_element(timeline.ranks, {}, &RankTime::peak_activations)->peak_activations;
}

constexpr double kRoundingOfFourDigits = 0.00005;

/// The bubble rate of an automatic schedule, whose memory must be within the limit.
double automatic_rate(const Published& row, int limit) {
  const StageTimes times = times_of(row);
  const Schedule schedule = zero_bubble_auto(times, row.micro_batches, limit);
  EXPECT_NO_THROW(check_schedule(schedule));
  const Timeline timeline = simulate(schedule, times);
  EXPECT_LE(peak_of(timeline), limit * (1 + 1e-9));
  return timeline.span_bubble_share();
}

TEST_P(ZeroBubbleTable, Zb1pHasThePublishedRate) {
  EXPECT_NEAR(automatic_rate(GetParam(), GetParam().ranks), GetParam().zb_1p, kRoundingOfFourDigits);
}

// Ours idles up to 0.06 % of the step less, as it may delay a rank's first backward.
TEST_P(ZeroBubbleTable, Zb2pHasAtMostThePublishedRate) {
  const double rate = automatic_rate(GetParam(), 2 * GetParam().ranks);
  EXPECT_LE(rate, GetParam().zb_2p + kRoundingOfFourDigits);
  EXPECT_GE(rate, GetParam().zb_2p - 0.0006);
}

// The first of each model is the smallest number of micro-batches of its table.
const std::array<Published, 8> kRows = {{
    {"1.5B", 8, 24, 18522, 18086, 9337, 601, 24, 2304, 24, 0.1585, 0.0433},
    {"1.5B", 8, 32, 18513, 18086, 9331, 626, 24, 2304, 24, 0.1242, 0.0039},
    {"1.5B", 8, 64, 18546, 18097, 9321, 762, 24, 2304, 24, 0.0674, 0.0026},
    {"6.2B", 8, 24, 29718, 29444, 19927, 527, 32, 4096, 32, 0.1323, 0.0029},
    {"6.2B", 8, 32, 29802, 29428, 19530, 577, 32, 4096, 32, 0.1045, 0.0022},
    {"6.2B", 8, 64, 29935, 29621, 19388, 535, 32, 4096, 32, 0.0554, 0.0010},
    {"14.6B", 16, 48, 11347, 11248, 8132, 377, 48, 5120, 40, 0.1397, 0.0066},
    {"28.3B", 32, 96, 10419, 10207, 7715, 408, 64, 6144, 48, 0.1421, 0.0038},
}};

INSTANTIATE_TEST_SUITE_P(Published, ZeroBubbleTable, ::testing::ValuesIn(kRows));

/// The first row of each model, and its published rates without automatic scheduling.
struct Baseline {
  std::size_t row;
  double one_f_one_b;
  double interleaved;
};
constexpr std::array<Baseline, 4> kBaselines = {
    {{0, 0.2431, 0.1055}, {3, 0.2347, 0.0808}, {6, 0.2552, 0.1104}, {7, 0.2646, 0.1493}}};

TEST(ZeroBubbleTables, RatesOf1F1BAreThePublishedOnes) {
  for (const auto& [row, one_f_one_b, interleaved] : kBaselines) {
    const Published& published = kRows.at(row);
    const Schedule schedule =
        make_schedule(ScheduleKind::one_f_one_b, published.ranks, 1, published.micro_batches);
    EXPECT_NEAR(simulate(schedule, times_of(published)).span_bubble_share(), one_f_one_b,
                kRoundingOfFourDigits)
        << published.model;
  }
}

/// The makespan if only the first micro-batch of a round waits where a chunk ends on one end of the pipeline
/// and the next begins on the other.
double makespan_without_waits(const Schedule& schedule, const StageTimes& times) {
  const ActionTable table(schedule);
  std::vector<std::vector<double>> ends;
  for (const auto& actions : schedule.actions) ends.emplace_back(actions.size());
  const auto end = [&](const ActionPlace& place) -> double& {
    return ends[static_cast<std::size_t>(place.rank)][static_cast<std::size_t>(place.position)];
  };
  double last = 0;
  for (const ActionPlace& place : run_order(schedule, table)) {
    const Action& action =
        schedule.actions[static_cast<std::size_t>(place.rank)][static_cast<std::size_t>(place.position)];
    const StageTime& stage = times.stages[static_cast<std::size_t>(action.stage)];
    double start = place.position == 0 ? 0 : end({place.rank, place.position - 1});
    if (const auto need = table.need(action); need && need->rank != place.rank) {
      const bool next_chunk = std::abs(need->rank - place.rank) > 1;
      if (!next_chunk || action.micro_batch % schedule.ranks() == 0)
        start = std::max(start, end(*need) + times.latency);
    }
    end(place) = start + (action.kind == ActionKind::forward ? stage.forward : stage.backward);
    last = std::max(last, end(place));
  }
  return last;
}

// The script that made the tables lets all but the first micro-batch of a round begin the next chunk without
// having arrived. With the same omission the rates are the published ones; with every wait they are up to 0.4
// % higher.
TEST(ZeroBubbleTables, RatesOfInterleaved1F1BAreThePublishedOnes) {
  for (const auto& [row, one_f_one_b, interleaved] : kBaselines) {
    const Published& published = kRows.at(row);
    const int chunks = published.layers / published.ranks;
    const Schedule schedule =
        make_schedule(ScheduleKind::interleaved_1f1b, published.ranks, chunks, published.micro_batches);
    StageTimes times = uniform_times(schedule.stages(), published.forward / chunks, published.input / chunks,
                                     published.weight / chunks);
    times.latency = published.latency;
    const double makespan = makespan_without_waits(schedule, times);
    const double busy = (published.forward + published.input + published.weight) * published.micro_batches;
    EXPECT_NEAR((makespan - busy) / makespan, interleaved, kRoundingOfFourDigits) << published.model;
    const double exact = simulate(schedule, times).span_bubble_share();
    EXPECT_GT(exact, interleaved) << published.model;
    EXPECT_LT(exact, interleaved + 0.004) << published.model;
  }
}

// Table 2 of the paper: with memory for p activations the bubble is that of ZB-H1, (p-1)(F+I-W); with 2p it
// is (p-1)(F+I-2W), that of ZB-H2, which is none if all take the same.
TEST(ZeroBubbleAuto, UniformStagesHaveTheBubblesOfTheHandWrittenSchedules) {
  for (const int ranks : {1, 2, 4, 8}) {
    const int micro_batches = 3 * ranks;
    const StageTimes times = uniform_times(ranks, 5, 5, 5);
    const auto idle = [&](double limit) {
      const Timeline timeline = simulate(zero_bubble_auto(times, micro_batches, limit), times);
      return timeline.longest_span() - 15 * micro_batches;
    };
    EXPECT_EQ(idle(ranks), (ranks - 1) * 5) << ranks;
    EXPECT_EQ(idle(2 * ranks), 0) << ranks;
  }
}

TEST(ZeroBubbleAuto, KeepsTheLimitAndCanRunWithAnyTimes) {
  StageTimes times = uniform_times(4, 3, 4, 2);
  times.latency = 0.5;
  times.stages[0].forward = 4;
  times.stages[3].loss = 2;
  times.stages[2].weight_activations = 0.5;
  for (const double limit : {1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 100.0}) {
    for (const int micro_batches : {1, 2, 3, 9}) {
      const Schedule schedule = zero_bubble_auto(times, micro_batches, limit);
      ASSERT_NO_THROW(check_schedule(schedule)) << limit << " " << micro_batches;
      EXPECT_LE(peak_of(simulate(schedule, times)), limit);
    }
  }
}

TEST(ZeroBubbleAuto, MoreMemoryNeverMakesItSlower) {
  const StageTimes times = uniform_times(6, 4, 5, 3);
  double before = simulate(zero_bubble_auto(times, 18, 1), times).makespan;
  for (int limit = 2; limit <= 12; ++limit) {
    const double now = simulate(zero_bubble_auto(times, 18, limit), times).makespan;
    EXPECT_LE(now, before) << limit;
    before = now;
  }
}

TEST(ZeroBubbleAuto, ALimitBelowOneForwardIsRefused) {
  EXPECT_CONTAINS(message_of<UsageError>([] { zero_bubble_auto(uniform_times(2, 1, 1, 1), 4, 0.5); }),
                  "stage 0", "limit of 0.5", "raise the limit");
  EXPECT_CONTAINS(message_of<UsageError>([] { zero_bubble_auto(uniform_times(2, 1, 1, 1), 0, 2); }),
                  "0 micro-batches");
  EXPECT_CONTAINS(message_of<UsageError>([] { zero_bubble_auto({}, 1, 2); }), "0 stages");
}

}  // namespace
}  // namespace stepforge::testing
