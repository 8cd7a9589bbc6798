// SPDX-License-Identifier: Apache-2.0
// `stepforge train --dry-run N`: the first step of rank 0 of N simulated ranks.
#include <filesystem>
#include <iostream>

#include "stepforge/app/torch/commands.h"
#include "stepforge/base/format.h"
#include "stepforge/base/temporary_folder.h"
#include "stepforge/comm/recording.h"
#include "stepforge/train/trainer.h"

namespace stepforge {

namespace {

/// Stores the traffic of the last step, without that of building the trainer.
class TrafficCounter : public Callback {
 public:
  TrafficCounter(RecordingWorld& world, std::vector<Traffic>& traffic) : world_(world), traffic_(traffic) {}
  std::string_view name() const override { return "dry run"; }
  void step_begin(Trainer& trainer) override { world_.reset_traffic(); }
  void step_end(Trainer& trainer) override { traffic_ = world_.traffic(); }

 private:
  RecordingWorld& world_;
  std::vector<Traffic>& traffic_;
};

}  // namespace

int run_dry(const TrainOptions& options, const CommandContext& context) {
  const TemporaryFolder folder("dry-run");
  LoadedConfig loaded = options.config;
  loaded.chosen.clear();  // unread options were refused before; the switches below make more of them unread
  loaded.config.run_dir = folder.path().string();
  loaded.config.checkpoint.enable = false;
  loaded.config.checkpoint.resume = false;
  loaded.config.checkpoint.load_step = -1;
  loaded.config.validation.freq = 0;
  loaded.config.sampling.freq = 0;
  loaded.config.sampling.at_ends = false;
  loaded.config.metrics.status_line = StatusLineMode::off;

  RecordingWorld world(0, options.dry_run_ranks);
  std::vector<Traffic> traffic;
  Trainer trainer(std::move(loaded), context.log, context.interrupts, &world);
  trainer.add_callback(std::make_unique<TrafficCounter>(world, traffic));
  // Gradients and losses of the other ranks are placeholders, so metrics would be meaningless.
  trainer.replace_build_step("metrics", [](Trainer& built) {
    built.metrics = std::make_unique<SinkQueue>(std::vector<std::unique_ptr<MetricsSink>>{}, built.log);
  });
  trainer.build();
  trainer.total_steps = 1;
  trainer.run();
  std::cout << format(
      "Ran step 1 as rank 0 of {} simulated ranks. The others' data are placeholders, so loss and speed are "
      "not shown. Collectives, with the size of the data that they gather, reduce or broadcast:\n",
      world.size());
  for (const Traffic& line : traffic) {
    std::cout << format("  {:<22} {:<16} {:>6} calls  {:>12}\n", line.group, collective_name(line.kind),
                        line.calls, human_bytes(line.bytes));
  }
  return 0;
}

}  // namespace stepforge
