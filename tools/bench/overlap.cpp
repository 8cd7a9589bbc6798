// SPDX-License-Identifier: Apache-2.0
// Measures how much communication is hidden behind compute, of shards, of a ring and of tensor parallelism: two
// ranks train as threads, over links of several speeds; the times of the operations are recorded in each step.
//
//   bench_overlap CONFIG.toml [section.key=value...]
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "stepforge/base/log.h"
#include "stepforge/comm/shared_memory.h"
#include "stepforge/config/load.h"
#include "stepforge/step/simulate.h"
#include "stepforge/train/trainer.h"
#include "tests/support/delayed_world.h"

namespace stepforge {
namespace {

constexpr int kRanks = 2;
constexpr int kMeasuredSteps = 5;
constexpr int kWarmupSteps = 2;

struct Link {
  const char* name = "";
  double latency_seconds = 0;
  double bytes_per_second = 0;  ///< 0: no delay
};

/// The times of one step on one rank, in seconds.
struct Overlap {
  double step = 0;
  double communicating = 0;  ///< on any lane
  double exposed = 0;        ///< the part that the compute lane waited for or did itself

  double hidden_share() const { return communicating > 0 ? 1.0 - exposed / communicating : 1.0; }
};

/// Gathers and reductions as in lane_report(); collectives on the compute lane itself (counts, norm, loss)
/// are never hidden.
Overlap overlap_of(const StepProgram& program, const std::vector<OperationTime>& times) {
  const LaneReport report = lane_report(program, times);
  Overlap overlap{report.total, report.communicating, report.waiting};
  for (std::size_t i = 0; i < times.size(); ++i) {
    const Operation& operation = program.operations[i];
    if (operation.lane != Lane::compute || operation.group < 0) continue;
    const double seconds = times[i].end - times[i].start;
    overlap.communicating += seconds;
    overlap.exposed += seconds;
  }
  return overlap;
}

/// What blocks exchange over one group: how long the calls took, and compute waited for them.
template <int RankLayout::* group>
class GroupRecorder : public Callback {
 public:
  explicit GroupRecorder(std::vector<Overlap>& steps) : steps_(steps) {}
  std::string_view name() const override { return "overlap of a group"; }
  void step_end(Trainer& trainer) override {
    const GroupMeter& meter = trainer.groups->meter(trainer.job.layout.*group);
    const Overlap total{0.0, meter.call_seconds(), meter.wait_seconds()};
    const double step = trainer.executor->times().back().end;
    if (trainer.state.step > kWarmupSteps)
      steps_.push_back({step, total.communicating - before_.communicating, total.exposed - before_.exposed});
    before_ = total;
  }

 private:
  std::vector<Overlap>& steps_;
  Overlap before_;
};

class Recorder : public Callback {
 public:
  explicit Recorder(std::vector<Overlap>& steps) : steps_(steps) {}
  std::string_view name() const override { return "overlap"; }
  void step_end(Trainer& trainer) override {
    if (trainer.state.step > kWarmupSteps)
      steps_.push_back(overlap_of(trainer.train_program, trainer.executor->times()));
  }

 private:
  std::vector<Overlap>& steps_;
};

/// The measured steps of every rank.
template <typename StepRecorder>
std::vector<std::vector<Overlap>> train(const std::filesystem::path& config,
                                        const std::vector<std::string>& overrides, const Link& link) {
  auto worlds = thread_worlds(kRanks);
  std::vector<std::vector<Overlap>> steps(kRanks);
  std::vector<std::string> failures(kRanks);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      auto world = std::move(worlds[rank]);
      if (link.bytes_per_second > 0)
        world = testing::delayed_world(std::move(world),
                                       testing::link_delay(link.latency_seconds, link.bytes_per_second));
      try {
        Logger log(LogLevel::error);
        Trainer trainer(load_config(config, overrides, ConfigUse::train), log, nullptr, world.get());
        trainer.add_callback(std::make_unique<StepRecorder>(steps[rank]));
        trainer.build();
        trainer.run();
      } catch (const std::exception& failure) {
        failures[rank] = failure.what();
        world->abort(failure.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& failure : failures) {
    if (!failure.empty()) throw Error(failure);
  }
  return steps;
}

/// The median step of the rank with the smallest hidden share.
Overlap median_of_worst_rank(std::vector<std::vector<Overlap>> ranks_steps) {
  std::optional<Overlap> worst;
  for (auto& steps : ranks_steps) {
    const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
    std::nth_element(steps.begin(), middle, steps.end(), [](const Overlap& left, const Overlap& right) {
      return left.hidden_share() < right.hidden_share();
    });
    if (!worst || middle->hidden_share() < worst->hidden_share()) worst = *middle;
  }
  return *worst;
}

template <typename StepRecorder>
void run(const char* title, const std::filesystem::path& config, std::vector<std::string> overrides) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("stepforge-overlap-" + std::to_string(getpid()));
  overrides.insert(overrides.begin(),
                   {"run_dir=" + folder.string(), "training.threads=1", "metrics.status_line=off",
                    "checkpoint.enable=false", format("training.steps={}", kWarmupSteps + kMeasuredSteps)});
  std::printf(
      "%s: %d ranks, one thread each; median of %d steps on the rank with the smallest hidden share\n"
      "%-24s%12s%16s%12s%10s\n",
      title, kRanks, kMeasuredSteps, "link", "ms per step", "communicating", "exposed", "hidden");
  for (const Link& link : {Link{"shared memory, no delay"}, Link{"100 Gbit/s, 10 us", 10e-6, 12.5e9},
                           Link{"25 Gbit/s, 20 us", 20e-6, 3.125e9}, Link{"10 Gbit/s, 50 us", 50e-6, 1.25e9},
                           Link{"5 Gbit/s, 50 us", 50e-6, 0.625e9}}) {
    std::filesystem::remove_all(folder);
    const Overlap overlap = median_of_worst_rank(train<StepRecorder>(config, overrides, link));
    std::printf("%-24s%12.1f%16.1f%12.1f%9.1f%%\n", link.name, 1e3 * overlap.step,
                1e3 * overlap.communicating, 1e3 * overlap.exposed, 100.0 * overlap.hidden_share());
    std::fflush(stdout);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace stepforge

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "bench_overlap CONFIG.toml [section.key=value...]\n");
    return 2;
  }
  try {
    using namespace stepforge;
    const std::vector<std::string> overrides(argv + 2, argv + argc);
    run<Recorder>("sharded", argv[1], overrides);
    std::vector<std::string> ring = {"parallelism.context_parallel_degree=2",
                                     "parallelism.context_parallel_method=ring", "training.seq_len=4096",
                                     "training.local_batch_size=1", "training.global_batch_size=1"};
    ring.insert(ring.end(), overrides.begin(), overrides.end());
    run<GroupRecorder<&RankLayout::keys_group>>("ring", argv[1], ring);
    std::vector<std::string> tensor = {"parallelism.tensor_parallel_degree=2",
                                       "parallelism.enable_async_tensor_parallel=false"};
    tensor.insert(tensor.end(), overrides.begin(), overrides.end());
    for (const char* async : {"false", "true"}) {
      tensor[1] = std::string("parallelism.enable_async_tensor_parallel=") + async;
      run<GroupRecorder<&RankLayout::tensor_group>>(format("tensor, asynchronous: {}", async).c_str(),
                                                    argv[1], tensor);
    }
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "error: %s\n", failure.what());
    return 1;
  }
}
