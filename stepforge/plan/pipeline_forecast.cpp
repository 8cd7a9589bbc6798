// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/pipeline_forecast.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

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

ProvedStep proved_step(const Config& config, const PipelinePlan& pipeline, RankId rank) {
  const ModelSpec part = plan_rank_model(pipeline, rank);
  return prove_train_step(config, part, plan_layout(config, part, rank, pipeline), pipeline);
}

Cells forecast_of(const Config& config, RankId rank, const MachineModel& machine) {
  const std::string title = schedule_title(config.parallelism);
  try {
    const PipelinePlan pipeline = plan_pipeline(config, rank);
    const ProvedStep step = proved_step(config, pipeline, rank);
    const PipelineRun run = simulate_pipeline(step.stages, machine);
    return {title, std::to_string(pipeline.stages_of(0).size()), percent_text(bubble_share(step.stages, run)),
            format("{:#.3g} s", run.seconds()), human_bytes(step.proof.peak_bytes)};
  } catch (const UsageError& refusal) {
    return {title, format("does not fit: {}", refusal.what())};
  }
}

}  // namespace

std::string schedule_title(const ParallelismConfig& parallelism) {
  return parallelism.pipeline_parallel_schedule_csv.empty()
             ? std::string(choice_name(parallelism.pipeline_parallel_schedule))
             : parallelism.pipeline_parallel_schedule_csv;
}

std::string pipeline_text(const std::string& title, const PipelinePlan& pipeline, const ProvedStep& step,
                          const PipelineRun& run) {
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
  return format("Pipeline: {}, {} stage{} on {} rank{}, {} micro-batch{}\n", title, stages,
                stages == 1 ? "" : "s", pipeline.ranks(), pipeline.ranks() == 1 ? "" : "s",
                pipeline.schedule.micro_batches, pipeline.schedule.micro_batches == 1 ? "" : "es") +
         table_text(rows, {false, true, true, false, false, false}) +
         format("  step: {:.3g} s; bubble of all ranks: {}; critical path: {}\n", run.seconds(),
                percent_text(bubble_share(step.stages, run)), critical_path_text(step.stages, run));
}

std::string schedule_comparison(const Config& config, RankId rank, const MachineModel& machine) {
  if (!has_stages(config.parallelism)) {
    throw UsageError(
        "--compare: the job has no pipeline; set parallelism.pipeline_parallel_degree to a number above 1");
  }
  std::vector<Cells> rows = {{"schedule", "stages per rank", "bubble", "step", "peak memory"}};
  if (!config.parallelism.pipeline_parallel_schedule_csv.empty())
    rows.push_back(forecast_of(config, rank, machine));
  Config other = config;
  other.parallelism.pipeline_parallel_schedule_csv.clear();
  for (std::size_t i = 0; i < choice_names(PipelineSchedule{}).size(); ++i) {
    other.parallelism.pipeline_parallel_schedule = static_cast<PipelineSchedule>(i);
    rows.push_back(forecast_of(other, rank, machine));
  }
  return table_text(rows, {true, false, false, false, false});
}

}  // namespace stepforge
