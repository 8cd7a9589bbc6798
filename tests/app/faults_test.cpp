// SPDX-License-Identifier: Apache-2.0
// A small run is killed, stopped, damaged and restarted, round after round, and ends with the bits of a run that
// nothing disturbed. One round of each fault; three hundred rounds as a long test.
#include <algorithm>
#include <random>

#include <sys/stat.h>

#include "stepforge/comm/shared_file.h"
#include "stepforge/metrics/run_folder.h"
#include "tests/app/program.h"
#include "tests/app/run_state.h"
#include "tests/launch/listener.h"
#include "tests/support/flip_bit.h"

namespace stepforge::testing {
namespace {

Strings faulty_run(const TempFolder& folder, const std::string& run, int64_t steps) {
  return small_run(folder / run) +
         Strings{format("training.steps={}", steps),
                 "training.reduction=ordered",
                 "model.dropout=0.1",
                 format("data.sources=[{{path=\"{}\"}}]", (folder / "tale.txt").string()),
                 "data.document=line",
                 "data.validation_fraction=0.1",
                 "validation.freq=5",
                 "validation.steps=1",
                 "checkpoint.interval=1",
                 "checkpoint.keep_latest_k=3",
                 "metrics.log_freq=1"};
}

void flip_any_bit(const fs::path& path, std::mt19937& random) {
  flip_bit(path, 1 + static_cast<int64_t>(random() % fs::file_size(path)), static_cast<int>(random() % 8));
}

class FaultyRun {
 public:
  FaultyRun(const TempFolder& folder, int64_t steps)
      : folder_(folder), run_(folder / "faulty"), args_(faulty_run(folder, "faulty", steps)) {}

  /// One disturbance, and a start that continues the run by a few steps.
  void round(int number) {
    const int64_t before = newest_step(run_);
    switch (number % 16) {
      case 0:
        return train_and_signal(SIGKILL);
      case 1:
        train_and_signal(SIGTERM);
        EXPECT_GT(newest_step(run_), before);
        return;
      case 2:
        return train_and_signal(SIGINT, /*twice=*/true);
      case 3:
        return damage_newest();
      case 4:
        return damage_all();
      case 5:
        return unmount();
      case 6:
        std::ofstream(run_ / "run.json") << "{\"format_version\":1,\"starts\":[{";
        return train_and_signal(SIGTERM);
      case 7:
        return damage_cache();
      case 8:
        return kill_one_rank();
      case 9:
        return train_and_signal(SIGTERM, false, {"launch", "--nproc", "2"});
      case 10:
        return fill_disk();
      case 11:
        return close_log();
      case 12:
        return stop_launcher_and_ranks();
      case 13:
        return make_unreadable();
      case 14:
        return start_beside_foreign_shared_memory();
      default:
        return start_with_bad_options();
    }
  }

  void finish() {
    const ProgramResult last = run_program(Strings{"train"} + args_);
    EXPECT_EQ(last.exit_code, 0) << last.err;
  }

 private:
  fs::path step_folder(int64_t step) const { return run_ / "checkpoint" / format("step-{}", step); }

  /// Trains one to three steps further, signals, and waits for the end. `launcher`: arguments before "train".
  void train_and_signal(int number, bool twice = false, const Strings& launcher = {}) {
    Child child(launcher + Strings{"train"} + args_);
    wait_for_steps(child);
    child.signal(number);
    if (twice) child.signal(number);
    const ProgramResult result = child.wait();
    if (number == SIGKILL) return;
    EXPECT_EQ(result.exit_code, 130) << result.err;
  }

  void wait_for_steps(const Child& child) {
    const int64_t goal = newest_step(run_) + 1 + static_cast<int64_t>(random_() % 3);
    ASSERT_TRUE(child.wait_until([&] { return newest_step(run_) >= goal; })) << child.err();
  }

  /// The start must be refused with `reason`, and leave the checkpoints as they are.
  void expect_refusal(const std::string& reason, int exit_code = 2, const Strings& more = {},
                      const Strings& environment = {}) {
    const std::vector<int64_t> before = saved_steps(run_);
    const ProgramResult result = run_program(Strings{"train"} + args_ + more, "", environment);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_CONTAINS(result.err, reason);
    EXPECT_EQ(saved_steps(run_), before);
  }

  void damage_newest() {
    const std::vector<int64_t> steps = saved_steps(run_);
    ASSERT_GE(steps.size(), 2U);
    flip_any_bit(step_folder(steps[0]) / "model.safetensors", random_);
    Child child(Strings{"train"} + args_);
    ASSERT_TRUE(child.wait_until([&] { return newest_step(run_) > steps[0]; })) << child.err();
    child.signal(SIGTERM);
    const ProgramResult result = child.wait();
    EXPECT_CONTAINS(result.err, format("step-{} is used instead", steps[1]));
    EXPECT_TRUE(fs::exists(run_ / "checkpoint" / format("step-{}.damaged", steps[0]))) << result.err;
  }

  void damage_all() {
    fs::copy(run_ / "checkpoint", folder_ / "copy", fs::copy_options::recursive);
    for (const int64_t step : saved_steps(run_))
      fs::resize_file(step_folder(step) / "optimizer.safetensors", 100);
    expect_refusal("no checkpoint in");
    fs::remove_all(run_ / "checkpoint");
    fs::rename(folder_ / "copy", run_ / "checkpoint");
    train_and_signal(SIGTERM);
  }

  void unmount() {
    fs::rename(run_ / "checkpoint", folder_ / "elsewhere");
    expect_refusal("is its disk mounted?");
    fs::rename(folder_ / "elsewhere", run_ / "checkpoint");
    train_and_signal(SIGTERM);
  }

  void damage_cache() {
    for (const auto& entry : fs::directory_iterator(folder_ / "cache")) {
      if (!entry.is_directory()) continue;
      flip_any_bit(entry.path() / (random_() % 2 == 0 ? "train.bin" : "train.idx"), random_);
      expect_refusal("the cache entry", 1);
      fs::remove_all(entry.path());
      break;
    }
    train_and_signal(SIGTERM);
  }

  /// One of two ranks is killed; the launcher restarts both, and is stopped later.
  void kill_one_rank() {
    Child child(Strings{"launch", "--nproc", "2", "--max-restarts", "1", "train"} + args_);
    wait_for_steps(child);
    const std::vector<pid_t> ranks = children_of(child.pid());
    if (ranks.size() == 2) kill(ranks[random_() % 2], SIGKILL);
    ASSERT_TRUE(child.wait_until([&] { return contains(child.err(), "restarting all ranks"); }))
        << child.err();
    wait_for_steps(child);
    child.signal(SIGTERM);
    const ProgramResult result = child.wait();
    EXPECT_EQ(result.exit_code, 130) << result.err;
  }

  /// No file may grow to the size of the optimizer's: every save fails, and so does the run in the end.
  void fill_disk() {
    const std::string command = shell_command(Strings{"train"} + args_);
    Child child({"-c", "ulimit -f 400; exec " + command}, "", {}, "/bin/sh");
    ASSERT_TRUE(child.wait_until([&] { return contains(child.err(), "CHECKPOINT NOT SAVED"); }))
        << child.err();
    child.signal(SIGTERM);
    EXPECT_EQ(child.wait().exit_code, 1);
    train_and_signal(SIGTERM);
  }

  /// The reader of the log goes away; the run goes on until it is stopped.
  void close_log() {
    Child child({"-c", shell_command(Strings{"train"} + args_) + " 2>&1 | head -n 1"}, "", {}, "/bin/sh");
    wait_for_steps(child);
    kill(static_cast<pid_t>(read_run_history(run_).back().pid), SIGTERM);
    child.wait();
  }

  /// One SIGTERM for all processes, as from a batch system, counts once: the step is finished and saved.
  void stop_launcher_and_ranks() {
    const int64_t before = newest_step(run_);
    Child child(Strings{"launch", "--nproc", "2", "train"} + args_);
    wait_for_steps(child);
    const std::vector<pid_t> ranks = children_of(child.pid());
    child.signal(SIGTERM);
    for (const pid_t rank : ranks) kill(rank, SIGTERM);
    const ProgramResult result = child.wait();
    EXPECT_EQ(result.exit_code, 130) << result.err;
    EXPECT_GT(newest_step(run_), before);
  }

  void make_unreadable() {
    const fs::path newest = step_folder(newest_step(run_));
    fs::rename(newest, folder_ / "elsewhere");
    fs::create_symlink(newest.filename(), newest);  // a loop: every access fails
    const ProgramResult result = run_program(Strings{"train"} + args_);
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_CONTAINS(result.err, "cannot read");
    fs::remove(newest);
    fs::rename(folder_ / "elsewhere", newest);
    train_and_signal(SIGTERM);
  }

  void start_beside_foreign_shared_memory() {
    const fs::path shared = shared_folder();
    mkdir(shared.c_str(), 0700);  // it may be there
    const fs::path foreign = shared / "foreign";
    std::ofstream(foreign) << "what a dead job has left";
    fs::permissions(foreign, fs::perms::owner_all);
    train_and_signal(SIGTERM, false, {"launch", "--nproc", "2"});
    EXPECT_FALSE(fs::exists(foreign));
  }

  /// Absurd sizes, a foreign checkpoint folder, and a port whose listener never answers.
  void start_with_bad_options() {
    expect_refusal("model.n_layers", 2, {"model.n_layers=2147483648"});
    expect_refusal("inside run_dir", 2, {"checkpoint.folder=../elsewhere"});
    const Listener listener;
    expect_refusal("does not answer", 1, {"comm.init_timeout=1"},
                   {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1",
                    format("MASTER_PORT={}", listener.port())});
    train_and_signal(SIGTERM);
  }

  const TempFolder& folder_;
  fs::path run_;
  Strings args_;
  std::mt19937 random_{20251122};
};

void expect_undisturbed_result(int rounds) {
  const int64_t steps = int64_t{40} * rounds;
  const TempFolder folder;
  std::ofstream(folder / "tale.txt") << some_text(200);
  FaultyRun faulty(folder, steps);
  for (int number = 0; number < rounds; ++number) {
    SCOPED_TRACE(format("round {}", number));
    faulty.round(number);
    if (::testing::Test::HasFailure()) return;
  }
  faulty.finish();
  ASSERT_EQ(run_program(Strings{"train"} + faulty_run(folder, "whole", steps)).exit_code, 0);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const fs::path path = fs::path("checkpoint") / format("step-{}", steps) / file;
    EXPECT_TRUE(read_file(folder / "faulty" / path) == read_file(folder / "whole" / path)) << file;
  }
  EXPECT_EQ(losses(folder / "faulty"), losses(folder / "whole"));
}

TEST(Faults, OfAllKindsInARowChangeNoBitOfTheResult) {
  expect_undisturbed_result(16);
}

TEST(Faults, LongTestThreeHundredInARowChangeNoBitOfTheResult) {
  if (!long_tests()) GTEST_SKIP() << "a quarter of an hour";
  expect_undisturbed_result(300);
}

}  // namespace
}  // namespace stepforge::testing
