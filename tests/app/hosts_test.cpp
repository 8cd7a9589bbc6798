// SPDX-License-Identifier: Apache-2.0
// Jobs of two hosts, each a launcher with one rank, when a rank hangs: every launcher ends.
#include <algorithm>
#include <fstream>

#include "stepforge/launch/launcher.h"
#include "tests/app/program.h"
#include "tests/app/run_state.h"
#include "tests/launch/listener.h"

namespace stepforge::testing {
namespace {

/// A launcher in a process of its own, with short deadlines.
class Host {
 public:
  Host(int node, const std::string& rendezvous, const fs::path& folder, const Strings& command)
      : report_(folder / format("report-{}", node)) {
    LaunchOptions options;
    options.nodes = 2;
    options.node = node;
    options.rendezvous = rendezvous;
    options.log_folder = folder / format("logs-{}", node);
    options.shown = "";
    options.command = command;
    options.ask_seconds = 0.05;
    options.silent_seconds = 15;  // longer than the other rank waits for the store
    options.ended_seconds = 1;
    options.grace_seconds = 1;
    process_ = fork();
    if (process_ != 0) return;
    std::ofstream report(report_);
    _exit(launch(options, report));
  }
  ~Host() {
    if (process_ <= 0) return;
    for (const pid_t rank : children_of(process_)) kill(rank, SIGKILL);
    kill(process_, SIGKILL);
    wait();
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  /// Its only rank; -1 before that has started.
  pid_t rank() const {
    const std::vector<pid_t> children = children_of(process_);
    return children.empty() ? -1 : children.front();
  }
  int wait() {
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string report() const { return read_file(report_); }

 private:
  fs::path report_;
  pid_t process_ = -1;
};

Strings endless_job(const fs::path& run) {
  return Strings{program_path().string(), "train"} + small_run(run) +
         Strings{"training.steps=1000000", "training.global_batch_size=8", "training.local_batch_size=1",
                 "checkpoint.interval=1000000", "comm.train_timeout=2"};
}

class StoppedRank : public ::testing::TestWithParam<int> {};

TEST_P(StoppedRank, EndsTheLaunchersOfBothHosts) {
  const int stopped = GetParam();
  const TempFolder folder;
  const fs::path run = folder / "run";
  const std::string rendezvous = format("127.0.0.1:{}", free_port());
  Host first(0, rendezvous, folder.path(), endless_job(run));
  Host second(1, rendezvous, folder.path(), endless_job(run));
  const auto has_trained = [&] { return fs::exists(run / "metrics.jsonl") && losses(run).size() >= 3; };
  for (int i = 0; i < 12000 && !has_trained(); ++i) usleep(10000);
  ASSERT_TRUE(has_trained()) << read_file(folder / "logs-0" / "rank-0.log");
  Host& hung = stopped == 0 ? first : second;
  Host& other = stopped == 0 ? second : first;
  const pid_t rank = hung.rank();
  ASSERT_GT(rank, 0);
  ASSERT_EQ(kill(rank, SIGSTOP), 0);
  EXPECT_EQ(other.wait(), 1);
  EXPECT_EQ(hung.wait(), 128 + SIGKILL);
  EXPECT_CONTAINS(hung.report(), format("the job has ended elsewhere: rank 0's store at {}", rendezvous));
  EXPECT_CONTAINS(hung.report(), format("rank {} of this host still ran 1 s later and was ended", stopped));
  EXPECT_FALSE(contains(hung.report(), "out of memory")) << hung.report();
  EXPECT_FALSE(contains(other.report(), "the job has ended elsewhere")) << other.report();
}

INSTANTIATE_TEST_SUITE_P(WithTheStoreOrWithout, StoppedRank, ::testing::Values(0, 1));

}  // namespace
}  // namespace stepforge::testing
