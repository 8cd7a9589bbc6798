// SPDX-License-Identifier: Apache-2.0
// `stepforge plan`.
#include <iostream>

#include "stepforge/app/commands.h"
#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/machine.h"
#include "stepforge/plan/job_data.h"
#include "stepforge/plan/job_plan.h"
#include "stepforge/plan/layout_text.h"
#include "stepforge/plan/memory_fit.h"
#include "stepforge/step/draw.h"
#include "stepforge/step/plan_text.h"
#include "stepforge/step/simulate.h"

namespace stepforge {

int plan_command(const ConfigArgs& args, const PlanOptions& options) {
  if (options.rank >= options.world_size) {
    throw UsageError(format("--rank {} does not exist in a job of {} ranks; the last one is {}", options.rank,
                            options.world_size, options.world_size - 1));
  }
  Config config = args.load().config;
  config.model.vocab_size = planned_vocabulary(config);
  const ModelSpec model = plan_model(config);
  const RankId rank{options.rank, options.world_size};
  const PipelinePlan pipeline = plan_pipeline(config, rank);
  const ModelSpec part = plan_rank_model(pipeline, rank);
  const RankLayout layout = plan_layout(config, part, rank, pipeline);
  const ProvedStep step = prove_train_step(config, part, layout, pipeline);
  PlanText text;
  text.proof = step.proof;
  text.title = args.file ? args.file->string() : (config.preset.empty() ? "defaults" : config.preset);
  text.seq_len = config.training.seq_len;
  text.tokens_per_step = plan_batch(config, layout).tokens_per_step();
  const MemoryBudget budget =
      options.memory.empty() ? MemoryBudget{read_machine_facts().memory.available, "are free on this machine"}
                             : MemoryBudget{parse_bytes(options.memory), "are given by --memory", false};
  text.verdict = memory_verdict(config, part, layout.id, account(step.program), budget);
  if (!options.machine.empty()) text.machine = parse_machine(options.machine);
  text.table.all_micro_batches = options.all;
  text.table.all_repetitions = options.all;
  if (options.layout)
    std::cout << layout_text(part, layout, TensorPlan(config.parallelism.tensor_parallel_plan)) << "\n";
  std::cout << render_plan(model, step.program, text);
  if (options.trace.empty()) return 0;
  const TracedRun predicted{"predicted with " + machine_text(text.machine),
                            simulate(step.program, text.machine)};
  write_file_atomic(options.trace, trace_json(step.program, {predicted}));
  std::cout << format("\nTrace of the predicted step: {} (open it in ui.perfetto.dev)\n",
                      options.trace.string());
  return 0;
}

}  // namespace stepforge
