// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/pipeline_forecast.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/plan/job_batch.h"
#include "stepforge/schedule/generators.h"
#include "stepforge/schedule/timeline.h"
#include "stepforge/schedule/zero_bubble.h"

namespace stepforge {

namespace {

using Cells = std::vector<std::string>;

/// Columns as wide as their widest cell, numbers to the right; `left` says which columns are text.
std::string table_text(const std::vector<Cells>& rows, const std::vector<bool>& left) {
  std::vector<std::size_t> widths(left.size());
  for (const Cells& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c)
      if (c + 1 < row.size() || row.size() == left.size()) widths[c] = std::max(widths[c], row[c].size());
  std::string text;
  for (const Cells& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - std::min(widths[c], row[c].size()), ' ');
      line += "  " + (left[c] ? row[c] + padding : padding + row[c]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string percent_text(double share) {
  return format("{:.1f} %", 100 * share);
}

/// Three digits, without an exponent.
std::string seconds_text(double seconds) {
  constexpr double kWhole = 1000;
  return seconds < kWhole ? format("{:#.3g} s", seconds) : format("{:.0f} s", seconds);
}

/// "0, 7"
std::string stages_text(const std::vector<int>& stages) {
  std::vector<std::string> numbers;
  for (const int stage : stages) numbers.push_back(std::to_string(stage));
  return join(numbers, ", ");
}

/// The blocks of each stage of a rank: "embedding to layers.2, layers.9 to layers.11".
std::string blocks_text(const PipelinePlan& pipeline, const std::vector<int>& stages) {
  std::vector<std::string> ranges;
  for (const int stage : stages) {
    std::vector<std::string> names;
    for (const BlockSpec& block : pipeline.model.blocks)
      if (block.stage == stage) names.push_back(block.name);
    ranges.push_back(names.size() == 1 ? names[0] : format("{} to {}", names.front(), names.back()));
  }
  return join(ranges, ", ");
}

double flops_of(const StepProgram& program) {
  double sum = 0;
  for (const Operation& operation : program.operations) sum += operation.flops;
  return sum;
}

/// The predictions for one schedule.
struct Forecast {
  PipelinePlan pipeline;
  double bubble = 0;
  double seconds = 0;
  int64_t peak_bytes = 0;
};

Forecast forecast_of(const Job& job, const MachineModel& machine) {
  const ProvedStep step = prove_train_step(job);
  const PipelineRun run = simulate_pipeline(step.stages, machine);
  return {.pipeline = job.pipeline,
          .bubble = bubble_share(step.stages, run),
          .seconds = run.seconds(),
          .peak_bytes = step.proof.peak_bytes};
}

/// Adds a computation of a micro-batch to the times of its stage.
void add_time(StageTime& stage, OpKind kind, double seconds) {
  switch (kind) {
    case OpKind::forward:
      stage.forward += seconds;
      break;
    case OpKind::loss_forward_backward:
      stage.loss += seconds;
      break;
    case OpKind::backward_weight:
      stage.backward_weight += seconds;
      break;
    default:  // recompute, and the backward of blocks that are not split
      stage.backward_input += seconds;
  }
}

/// The predicted times of the stages of a job with one stage per rank and split backwards.
StageTimes stage_times(const Config& config, RankId rank, const MachineModel& machine) {
  const auto ranks = static_cast<int>(config.parallelism.pipeline_parallel_degree);
  const Schedule any =
      zero_bubble_auto(uniform_times(ranks, 1, 1, 1), plan_micro_batches(config, rank.world_size), ranks);
  const ProvedStep step = prove_train_step(plan_job(config, rank, &any));
  StageTimes times = uniform_times(ranks, 0, 0, 0);
  for (const StepProgram& program : step.stages) {
    for (const Operation& operation : program.operations) {
      if (operation.block < 0 || operation.micro_batch != 0) continue;
      const double seconds = operation_seconds(program, operation, machine);
      if (operation.peer >= 0)
        times.latency = std::max(times.latency, seconds);
      else
        add_time(element(times.stages, element(program.blocks, operation.block).stage), operation.kind,
                 seconds);
    }
  }
  return times;
}

/// Makes zero-bubble schedules for the times of a job.
class ZeroBubbleSearch {
 public:
  ZeroBubbleSearch(const Config& config, RankId rank, const MachineModel& machine)
      : config_(config), rank_(rank), machine_(machine), times_(stage_times(config, rank, machine)) {}

  int ranks() const { return static_cast<int>(times_.stages.size()); }
  std::string title(int limit) const { return format("ZB-{:.3g}p", static_cast<double>(limit) / ranks()); }

  /// With the activations of at most `limit` micro-batches on a rank.
  Forecast forecast(int limit) const {
    const Schedule schedule = zero_bubble_auto(times_, plan_micro_batches(config_, rank_.world_size), limit);
    return forecast_of(plan_job(config_, rank_, &schedule), machine_);
  }

  /// The largest limit above that of ZB-1p and at most that of ZB-2p with which the job needs no more than `memory`; the
  /// limit of ZB-1p if there is none. A larger limit never needs less.
  int largest_limit(int64_t memory) const {
    int fits = ranks();
    int above = 2 * ranks() + 1;
    if (forecast(above - 1).peak_bytes <= memory) return above - 1;
    while (above - fits > 1) {
      const int middle = (fits + above) / 2;
      (forecast(middle).peak_bytes <= memory ? fits : above) = middle;
    }
    return fits;
  }

 private:
  const Config& config_;
  RankId rank_;
  const MachineModel& machine_;
  StageTimes times_;
};

/// Collects the rows of the table and the fastest schedule.
class Comparison {
 public:
  explicit Comparison(int64_t memory) : memory_(memory) {}

  void add(const std::string& title, const Forecast& forecast) {
    rows_.push_back({title, std::to_string(forecast.pipeline.stages_of(0).size()),
                     percent_text(forecast.bubble), seconds_text(forecast.seconds),
                     human_bytes(forecast.peak_bytes)});
    if (forecast.peak_bytes > memory_ || (!result_.fastest.empty() && forecast.seconds >= seconds_)) return;
    seconds_ = forecast.seconds;
    result_.fastest = title;
    result_.schedule = forecast.pipeline.schedule;
  }
  /// `add_rows` may refuse.
  template <typename AddRows>
  void try_to_add(const std::string& title, const AddRows& add_rows) {
    try {
      add_rows();
    } catch (const UsageError& refusal) {
      rows_.push_back({title, format("does not fit: {}", refusal.what())});
    }
  }
  ScheduleComparison result() {
    result_.table = table_text(rows_, {true, false, false, false, false});
    return std::move(result_);
  }

 private:
  std::vector<Cells> rows_ = {{"schedule", "stages per rank", "bubble", "step", "peak memory"}};
  int64_t memory_;
  double seconds_ = 0;
  ScheduleComparison result_;
};

}  // namespace

std::string schedule_title(const ParallelismConfig& parallelism) {
  return parallelism.pipeline_parallel_schedule_csv.empty() ? parallelism.pipeline_parallel_schedule
                                                            : parallelism.pipeline_parallel_schedule_csv;
}

std::string pipeline_text(const Job& job, const ProvedStep& step, const PipelineRun& run) {
  const PipelinePlan& pipeline = job.pipeline;
  const int stages = pipeline.schedule.stages();
  double all_flops = 0;
  for (const StepProgram& program : step.stages) all_flops += flops_of(program);
  std::vector<Cells> rows = {{"rank", "stages", "blocks", "FLOPs", "peak memory", "bubble"}};
  for (std::size_t member = 0; member < step.stages.size(); ++member) {
    const StepProgram& program = step.stages[member];
    const std::vector<int> own = pipeline.stages_of(static_cast<int>(member));
    rows.push_back({std::to_string(program.rank), stages_text(own), blocks_text(pipeline, own),
                    percent_text(flops_of(program) / all_flops), human_bytes(step.proof.class_peaks[member]),
                    percent_text(bubble_share(step.stages, run, member))});
  }
  return format("Pipeline: {}, {} stage{} on {} rank{}, {} micro-batch{}\n",
                schedule_title(job.config.parallelism), stages, stages == 1 ? "" : "s", pipeline.ranks(),
                pipeline.ranks() == 1 ? "" : "s", pipeline.schedule.micro_batches,
                pipeline.schedule.micro_batches == 1 ? "" : "es") +
         table_text(rows, {false, true, true, false, false, false}) +
         format("  step: {}; bubble of all ranks: {}; critical path: {}\n", seconds_text(run.seconds()),
                percent_text(bubble_share(step.stages, run)), critical_path_text(step.stages, run));
}

ScheduleComparison compare_schedules(const Config& config, RankId rank, const MachineModel& machine,
                                     int64_t memory) {
  if (!has_stages(config)) {
    throw UsageError(
        "--compare: the job has no pipeline; set parallelism.pipeline_parallel_degree to a number above 1");
  }
  Comparison comparison(memory);
  const auto add = [&](const Config& job) {
    const std::string title = schedule_title(job.parallelism);
    comparison.try_to_add(title, [&] { comparison.add(title, forecast_of(plan_job(job, rank), machine)); });
  };
  if (!config.parallelism.pipeline_parallel_schedule_csv.empty()) add(config);
  Config other = config;
  other.parallelism.pipeline_parallel_schedule_csv.clear();
  for (const ScheduleKind& kind : schedule_kinds(config.extensions.registry())) {
    other.parallelism.pipeline_parallel_schedule = kind.name;
    add(other);
  }
  comparison.try_to_add("ZB", [&] {
    const ZeroBubbleSearch search(other, rank, machine);
    const int least = search.ranks();
    const int most = search.largest_limit(memory);
    comparison.add(search.title(least), search.forecast(least));
    if (most > least) comparison.add(search.title(most), search.forecast(most));
  });
  return comparison.result();
}

}  // namespace stepforge
