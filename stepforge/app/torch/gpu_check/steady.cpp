// SPDX-License-Identifier: Apache-2.0
// The stages "waits" and "memory": what a steady step does to host and memory.
#include <algorithm>
#include <cmath>

#include "stepforge/app/torch/gpu_check/trained.h"

namespace stepforge::gpu_check {

namespace {

constexpr double kAllowedShare = 0.015;  // of the plan, by which the measured peak may differ

/// What had happened on the device so far.
struct Counts {
  std::optional<int64_t> waits;
  int64_t blocks = 0;
};

Counts counts_of(Trainer& trainer) {
  DeviceBackend& backend = *trainer.device.backend;
  return {backend.host_waits(), backend.memory().system_blocks};
}

/// The steps in which something happened that should not have, and how often.
struct Excess {
  int64_t waits = 0;
  int64_t blocks = 0;
  int64_t first_step = 0;  ///< 0: in none
};

Json numbers_of(const Excess& excess) {
  return {{"waits", excess.waits}, {"new_blocks", excess.blocks}, {"first_step", excess.first_step}};
}

}  // namespace

void check_waits(Check& check, Findings& found) {
  constexpr int64_t kFirst = 5;
  const int64_t last = check.small ? 12 : 50;
  Recipe recipe{.name = "waits", .on = On::device, .options = small_model()};
  recipe.options.push_back(format("training.steps={}", last));
  Counts before;
  Excess excess;
  bool counts_waits = true;
  recipe.stepped = [&](Trainer& trainer) {
    const Counts now = counts_of(trainer);
    counts_waits = now.waits.has_value();
    if (trainer.state.step >= kFirst) {
      // One wait reads the numbers of the step.
      const int64_t waits =
          counts_waits ? std::max<int64_t>(0, *now.waits - before.waits.value_or(0) - 1) : 0;
      const int64_t blocks = now.blocks - before.blocks;
      if (excess.first_step == 0 && (waits > 0 || blocks > 0)) excess.first_step = trainer.state.step;
      excess.waits += waits;
      excess.blocks += blocks;
    }
    before = now;
  };
  train(check, recipe);
  forget(check, "waits");
  found.figure("steps", Json::array({kFirst, last}));
  found.figure("beyond_allowed", numbers_of(excess));
  if (!counts_waits) found.left_out("waits, which this device does not count");
  if (excess.first_step > 0)
    found.fail(
        "steps {} to {}: {} waits of the host beyond the one of each step, {} new blocks of memory; first in step {}",
        kFirst, last, excess.waits, excess.blocks, excess.first_step);
  else
    found.note("steps {} to {}: {}no new memory", kFirst, last,
               counts_waits ? "one wait each, for the numbers of the step; " : "");
}

void check_memory(Check& check, Findings& found) {
  Recipe recipe{.name = "memory", .on = On::device, .options = {"preset=debug", "checkpoint.enable=false"}};
  const Strings sizes = check.small ? Strings{"training.steps=3"}
                                    : Strings{"training.steps=6",      "model.dim=1024",
                                              "model.n_layers=8",      "model.n_heads=16",
                                              "model.n_kv_heads=8",    "model.ffn_dim=4096",
                                              "training.seq_len=1024", "training.local_batch_size=4"};
  recipe.options.insert(recipe.options.end(), sizes.begin(), sizes.end());
  double measured = 0;
  double planned = 0;
  const bool planned_here = check.compute.device.is_cpu();  // a plan counts the CPU's kernels
  recipe.stepped = [&](Trainer& trainer) {
    measured = std::max(measured, static_cast<double>(trainer.device.backend->memory().peak_bytes));
    planned = static_cast<double>(planned_here ? trainer.predicted_memory.peak_of_one_memory()
                                               : trainer.predicted_memory.peak_bytes);
  };
  train(check, recipe);
  forget(check, "memory");
  const double share = (measured - planned) / planned;
  found.figure("planned_bytes", planned);
  found.figure("measured_bytes", measured);
  found.figure("difference", share);
  if (measured <= 0) {
    found.fail("no memory was measured");
  } else if (!planned_here) {
    found.skip("no account for devices: the plan counts the CPU's kernels, {}; measured {} ({:+.1f} %)",
               human_bytes(static_cast<int64_t>(planned)), human_bytes(static_cast<int64_t>(measured)),
               100 * share);
  } else if (std::abs(share) > kAllowedShare) {
    found.fail("peak memory of a step: measured {}, planned {} ({:+.1f} %)",
               human_bytes(static_cast<int64_t>(measured)), human_bytes(static_cast<int64_t>(planned)),
               100 * share);
  } else {
    found.note("peak memory of a step: measured {}, planned {} ({:+.2f} %)",
               human_bytes(static_cast<int64_t>(measured)), human_bytes(static_cast<int64_t>(planned)),
               100 * share);
  }
}

}  // namespace stepforge::gpu_check
