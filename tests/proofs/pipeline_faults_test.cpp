// SPDX-License-Identifier: Apache-2.0
// A rank of a pipeline, or one of those over which experts are spread, that fails, dies or stops in the middle of a step, and
// values that are not finite.
#include <atomic>
#include <csignal>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "stepforge/comm/communicator.h"
#include "tests/proofs/staged_job.h"
#include "tests/support/rank_threads.h"

namespace stepforge::testing {
namespace {

/// Before an operation of step 2 on a rank.
struct Moment {
  int rank;
  OpKind kind;
  int micro_batch;
};

void PrintTo(const Moment& moment, std::ostream* out) {
  *out << format("rank {} before {} m{}", moment.rank, op_name(moment.kind), moment.micro_batch);
}

/// Calls a function once.
void call_at(const Moment& moment, TestRun& run, const std::function<void()>& call) {
  after_build_step(run.trainer(), "executor", [moment, call](Trainer& trainer) {
    const auto called = std::make_shared<std::atomic<bool>>(false);
    trainer.train_step->on_operation = [&trainer, moment, call, called](const Operation& operation,
                                                                        bool ended) {
      if (!ended && trainer.state.step == 1 && operation.kind == moment.kind &&
          operation.micro_batch == moment.micro_batch && !called->exchange(true))
        call();
    };
  });
}

/// 1F1B with six micro-batches and a stage on each rank.
Strings six_micro_batches(const std::filesystem::path& run_dir, int ranks) {
  return staged_job(run_dir, "llama", 6) + kNoCheckpoint + pipeline_of({"1F1B", ranks, 1});
}

/// Two micro-batches on each rank, and two experts of each layer.
Strings spread_experts(const std::filesystem::path& run_dir, int ranks) {
  return staged_job(run_dir, "qwen3_moe", 3) + kNoCheckpoint +
         Strings{format("model.n_experts={}", 2 * ranks), "model.experts_per_token=2",
                 format("parallelism.expert_parallel_degree={}", ranks), "training.local_batch_size=1",
                 format("training.global_batch_size={}", 2 * ranks)};
}

/// The same with tokens that are gathered.
Strings gathered_experts(const std::filesystem::path& run_dir, int ranks) {
  return spread_experts(run_dir, ranks) + Strings{"parallelism.expert_parallel_dispatcher=allgather"};
}

/// Spread experts with slices of the tokens: pairs of ranks read the same rows.
Strings spread_experts_of_slices(const std::filesystem::path& run_dir, int ranks) {
  return spread_experts(run_dir, ranks) + Strings{"parallelism.tensor_parallel_degree=2",
                                                  "training.seq_len=20",
                                                  format("training.global_batch_size={}", ranks)};
}

using JobOfRanks = Strings (*)(const std::filesystem::path& run_dir, int ranks);

/// Waits until a process has ended, at most a minute; its status can still be asked for.
bool ends(pid_t process) {
  for (int i = 0; i < 30000; ++i) {
    siginfo_t info{};
    const int waited = waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOHANG | WNOWAIT);
    if (waited == 0 && info.si_pid == process) return true;
    usleep(2000);
  }
  return false;
}

class PipelineFaults : public ::testing::Test {
 protected:
  /// Runs a pipeline of processes and calls `fault` in one of them; returns what each rank reports.
  std::vector<std::string> run_with(const Moment& moment, int ranks, CommDeadlines deadlines,
                                    const std::function<void()>& fault,
                                    JobOfRanks job = six_micro_batches) const {
    const TempFolder folder;
    const std::string run_id = unique_run_id();
    RankProcesses processes;
    for (int rank = 0; rank < ranks; ++rank) {
      processes.start([&, rank] {
        const auto world = process_world(run_id, rank, ranks, deadlines);
        TestRun run(job(folder / "run", ranks), nullptr, world.get());
        if (rank == moment.rank) call_at(moment, run, fault);
        run.run();
        return std::string("went through");
      });
    }
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == moment.rank) continue;
      EXPECT_TRUE(ends(processes.process(static_cast<size_t>(rank)))) << rank;
    }
    kill(processes.process(static_cast<size_t>(moment.rank)), SIGCONT);  // if it was stopped
    return processes.results();
  }
};

TEST_F(PipelineFaults, AKilledRankEndsAllOthersWhichNameItTheStepAndTheOperation) {
  for (const Moment& moment :
       {Moment{0, OpKind::send, 4}, Moment{1, OpKind::forward, 3}, Moment{2, OpKind::receive_gradient, 1},
        Moment{3, OpKind::loss_forward_backward, 2}}) {
    const auto results = run_with(moment, 4, {60, 60}, [] { kill(getpid(), SIGKILL); });
    for (int rank = 0; rank < 4; ++rank) {
      SCOPED_TRACE(::testing::PrintToString(moment) + format(", rank {}", rank));
      const std::string& result = results[static_cast<size_t>(rank)];
      if (rank == moment.rank) {
        EXPECT_EQ(result, "status 9");
        continue;
      }
      EXPECT_TRUE(result.starts_with("PeerError: step 2, ")) << result;
      EXPECT_CONTAINS(result, format("rank {} (process ", moment.rank), " is gone; rank ",
                      " waited for it in ");
    }
  }
}

TEST_F(PipelineFaults, AKilledRankWithExpertsOfOthersEndsAllWhichNameIt) {
  const std::vector<std::pair<Moment, JobOfRanks>> deaths = {
      {{1, OpKind::forward, 1}, spread_experts},
      {{2, OpKind::backward, 0}, spread_experts},
      {{0, OpKind::dispatch, 1}, spread_experts},
      {{3, OpKind::combine, 0}, spread_experts},
      {{1, OpKind::combine_gradient, 1}, spread_experts},
      {{2, OpKind::dispatch_gradient, 0}, spread_experts},
      {{1, OpKind::forward, 0}, spread_experts_of_slices},
      {{2, OpKind::dispatch, 1}, spread_experts_of_slices},
      {{3, OpKind::dispatch_gradient, 0}, spread_experts_of_slices},
      {{2, OpKind::dispatch, 1}, gathered_experts},
      {{1, OpKind::dispatch_gradient, 0}, gathered_experts}};
  for (const auto& [moment, job] : deaths) {
    const auto results = run_with(moment, 4, {60, 60}, [] { kill(getpid(), SIGKILL); }, job);
    for (int rank = 0; rank < 4; ++rank) {
      SCOPED_TRACE(::testing::PrintToString(moment) + format(", rank {}", rank));
      const std::string& result = results[static_cast<size_t>(rank)];
      if (rank == moment.rank) {
        EXPECT_EQ(result, "status 9");
        continue;
      }
      EXPECT_TRUE(result.starts_with("PeerError: step 2, ")) << result;
      EXPECT_CONTAINS(result, format("rank {} (process ", moment.rank), " is gone; rank ");
    }
  }
}

TEST_F(PipelineFaults, AStoppedRankWithExpertsOfOthersIsNamedAtTheDeadline) {
  const Moment moment{1, OpKind::combine, 1};
  const auto results = run_with(moment, 2, {60, 5}, [] { raise(SIGSTOP); }, spread_experts);
  for (const std::string& result : results) {
    SCOPED_TRACE(result);
    EXPECT_TRUE(result.starts_with("PeerError: step 2, "));
    EXPECT_CONTAINS(result, "no answer within 5 s: rank ", " for rank 1");
  }
}

/// Not a rank that waits for it too.
TEST_F(PipelineFaults, AStoppedRankIsNamedAtTheDeadlineWithTheStepAndTheOperation) {
  const std::vector<std::pair<int, Moment>> stops = {
      {2, {0, OpKind::forward, 3}}, {2, {1, OpKind::backward, 2}}, {4, {2, OpKind::forward, 1}}};
  for (const auto& [ranks, moment] : stops) {
    const auto results = run_with(moment, ranks, {60, 5}, [] { raise(SIGSTOP); });
    // Continued, the stopped rank learns why the others have ended.
    for (const std::string& result : results) {
      SCOPED_TRACE(::testing::PrintToString(moment) + ": " + result);
      EXPECT_TRUE(result.starts_with("PeerError: step 2, "));
      EXPECT_CONTAINS(result, "no answer within 5 s: rank ", format(" for rank {}", moment.rank));
    }
  }
}

TEST_F(PipelineFaults, AStageThatThrowsEndsAllRanksAndIsNamed) {
  const TempFolder folder;
  for (const OpKind kind : {OpKind::send, OpKind::receive, OpKind::receive_gradient, OpKind::send_gradient,
                            OpKind::backward_input, OpKind::backward_weight, OpKind::share_loss}) {
    for (const int failing : {0, 1, 3}) {
      RankThreads threads(4);
      threads.run(
          [&](int) {
            return staged_job(folder / "run", "qwen3", 4) + kNoCheckpoint +
                   pipeline_of({"InterleavedZeroBubble", 4, 2});
          },
          [&](TestRun& run, int rank) {
            if (rank != failing) return;
            call_at({rank, kind, kind == OpKind::share_loss ? -1 : 2}, run,
                    [] { throw Error("planted failure"); });
          });
      for (int rank = 0; rank < 4; ++rank)
        EXPECT_CONTAINS(threads.failures[static_cast<size_t>(rank)], format("step 2, {} ", op_name(kind)),
                        ": planted failure");
      std::filesystem::remove_all(folder / "run");
    }
  }
}

TEST_F(PipelineFaults, AValueThatIsNotFiniteInAMiddleStageIsNamedOnAllRanks) {
  const TempFolder folder;
  for (const auto& [block, rank] : std::map<std::string, int>{{"layers.2", 1}, {"layers.3", 2}}) {
    const Strings planted{"debug.plant_nan_step=2", "debug.plant_nan_block=" + block};
    RankThreads threads(4);
    threads.run([&](int) { return six_micro_batches(folder / "run", 4) + planted; });
    for (const std::string& failure : threads.failures) {
      EXPECT_TRUE(failure.starts_with("step 2: loss ")) << failure;
      EXPECT_CONTAINS(failure, format("first not finite in block {} (output) on rank {};", block, rank));
    }
    std::filesystem::remove_all(folder / "run");
  }
}

}  // namespace
}  // namespace stepforge::testing
