// SPDX-License-Identifier: Apache-2.0
// The race detector finds a step program that lacks an event, wherever it is removed.
#include <algorithm>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/step/checker.h"
#include "stepforge/step/plan_text.h"
#include "tests/catalog/all_families.h"
#include "tests/sim/sim_ranks.h"

namespace stepforge::testing {
namespace {

/// An operation and one that it needs, in another lane.
using Edge = std::pair<std::size_t, std::size_t>;

StepProgram without(StepProgram program, const Edge& edge) {
  std::erase(program.operations.at(edge.first).needs, static_cast<int>(edge.second));
  return program;
}

/// Whether an edge orders no accesses on a device. Some limit how many copies of weights there are, or keep lanes in step; the norm
/// of offloaded gradients waits on the host, which orders what comes after the check of it.
bool orders_no_access(const Operation& operation, const Operation& needed) {
  const auto is = [&](OpKind kind, OpKind of_needed) {
    return operation.kind == kind && needed.kind == of_needed;
  };
  return is(OpKind::gather_start, OpKind::release) || is(OpKind::reload_start, OpKind::release) ||
         is(OpKind::reload_start, OpKind::check_finite) ||
         is(OpKind::all_reduce_start, OpKind::reduce_wait) || is(OpKind::receive_gradient, OpKind::forward);
}

bool is_sound(const std::vector<StepProgram>& programs) {
  try {
    check_programs(programs);
    return true;
  } catch (const ProgramError&) {
    return false;
  }
}

/// The needs of rank 0 without which the checker refuses the programs, because accesses are in no order.
std::vector<Edge> needed_edges(const std::vector<StepProgram>& programs) {
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < programs[0].operations.size(); ++i) {
    const Operation& operation = programs[0].operations[i];
    for (const int need : operation.needs) {
      const Edge edge{i, static_cast<std::size_t>(need)};
      const Operation& needed = programs[0].operations[edge.second];
      if (needed.lane == operation.lane || orders_no_access(operation, needed)) continue;
      std::vector<StepProgram> damaged = programs;
      damaged[0] = without(damaged[0], edge);
      if (!is_sound(damaged)) edges.push_back(edge);
    }
  }
  return edges;
}

struct FaultCount {
  int planted = 0;
  int found = 0;
};

/// Of all ranks.
std::vector<StepProgram> programs_of(const SimLayout& layout) {
  std::vector<StepProgram> programs(static_cast<std::size_t>(layout.ranks));
  const DeviceRun sound =
      run_on("sim", layout.ranks, layout.options + Strings{"training.steps=1"}, [&](TestRun& run, int rank) {
        after_build_step(run.trainer(), "step_program", [&programs, rank](Trainer& trainer) {
          programs[static_cast<std::size_t>(rank)] = trainer.train_program;
        });
      });
  for (const std::string& failure : sound.failures) EXPECT_EQ(failure, "") << layout.name;
  return programs;
}

/// Whether a run in which the program of rank 0 is `damaged` ends with a race or an access of the host.
bool is_found(const SimLayout& layout, const StepProgram& damaged) {
  const DeviceRun run = run_on(
      "sim", layout.ranks, layout.options + Strings{"training.steps=2"}, [&](TestRun& of_rank, int rank) {
        if (rank == 0)
          after_build_step(of_rank.trainer(), "step_program",
                           [&](Trainer& trainer) { trainer.train_program = damaged; });
      });
  EXPECT_EQ(sim::Machine::get().take_faults(), "") << "a run left faults to the next one";
  return std::ranges::any_of(run.failures, [](const std::string& failure) {
    return failure.find("race on a device") != std::string::npos ||
           failure.find("the host touched") != std::string::npos;
  });
}

FaultCount remove_each_edge(const SimLayout& layout) {
  const std::vector<StepProgram> programs = programs_of(layout);
  FaultCount count;
  for (const Edge& edge : needed_edges(programs)) {
    ++count.planted;
    if (is_found(layout, without(programs[0], edge))) {
      ++count.found;
    } else {
      std::cout << "  not found, " << layout.name << ": "
                << operation_text(programs[0], programs[0].operations[edge.first]) << " needs "
                << operation_text(programs[0], programs[0].operations[edge.second]) << "\n";
    }
  }
  return count;
}

TEST(OrderFaults, EveryEventThatIsRemovedIsFound) {
  const std::vector<SimLayout> layouts = {
      {"fsdp", 2, {"training.global_batch_size=2"}},
      {"offload", 1, {"parallelism.fsdp_cpu_offload=true", "training.global_batch_size=1"}},
      {"hsdp", 4, {"parallelism.data_parallel_replicate_degree=2", "training.global_batch_size=4"}},
      {"fsdp with bf16, more in flight",
       2,
       {"training.global_batch_size=4", "precision.compute=bf16", "precision.reduce=bf16",
        "parallelism.fsdp_forward_prefetch=2", "parallelism.fsdp_reduce_in_flight=2"}},
      {"fsdp in order", 2, {"training.reduction=ordered", "training.global_batch_size=4"}},
      {"fsdp with offload", 2, {"parallelism.fsdp_cpu_offload=true", "training.global_batch_size=2"}},
      {"pipeline", 2, {"parallelism.pipeline_parallel_degree=2", "training.global_batch_size=2"}},
      {"zero bubble",
       2,
       {"model.n_layers=4", "parallelism.pipeline_parallel_degree=2", "training.global_batch_size=2",
        "parallelism.pipeline_parallel_schedule=ZBVZeroBubble"}},
      {"fsdp in a pipeline", 4, {"parallelism.pipeline_parallel_degree=2", "training.global_batch_size=4"}},
      {"experts", 2,
       setting_overrides("qwen3_moe") +
           Strings{"parallelism.expert_parallel_degree=2", "training.global_batch_size=2"}},
  };
  FaultCount all;
  sim::report_host_accesses(true);
  for (const SimLayout& layout : layouts) {
    const FaultCount count = remove_each_edge(layout);
    std::cout << layout.name << ": " << count.found << " of " << count.planted
              << " removed events were found\n";
    EXPECT_GT(count.planted, 0) << layout.name;
    all.planted += count.planted;
    all.found += count.found;
  }
  sim::report_host_accesses(false);
  std::cout << all.found << " of " << all.planted << " planted faults of order found\n";
  EXPECT_EQ(all.found, all.planted);
}

}  // namespace
}  // namespace stepforge::testing
