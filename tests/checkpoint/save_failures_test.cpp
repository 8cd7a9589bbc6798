// SPDX-License-Identifier: Apache-2.0
// Ranks that fail, die or disagree while they save together: every folder is complete afterwards.
#include <atomic>
#include <csignal>

#include <sys/resource.h>

#include "stepforge/base/error.h"
#include "stepforge/checkpoint/writer.h"
#include "tests/checkpoint/layouts.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

constexpr Layout kThree = {3, 1};

void limit_files(rlim_t bytes) {
  rlimit limit = {};
  getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = bytes;
  setrlimit(RLIMIT_FSIZE, &limit);
}

/// Saves step N of the model of seed N.
void save(const fs::path& dir, uint64_t step) {
  run_on(kThree, step, [&](RankModel& rank) {
    write_checkpoint(dir, static_cast<int64_t>(step), rank.stage(), rank.ranks);
  });
}

void expect_complete(const fs::path& dir, uint64_t step) {
  run_on({2, 1}, 99, [&](RankModel& rank) {
    const auto found = checkpoint_of_step(dir, static_cast<int64_t>(step), rank.ranks);
    load_checkpoint(found, rank.model.spec, rank.model.store, &rank.model.optimizer);
    const std::string loaded = rank.model.bits();
    rank.model.refill(step);
    EXPECT_TRUE(loaded == rank.model.bits());
  });
}

TEST(SaveOfSeveralRanks, AFullDiskOnOneRankFailsOnAllLeavesNoFolderAndTheNextSaveWorks) {
  const TempFolder folder;
  const auto failures = failures_on(
      kThree, 3,
      [&](RankModel& rank) {
        write_checkpoint(folder.path(), 1, rank.stage(), rank.ranks);
        std::signal(SIGXFSZ, SIG_IGN);
        if (rank.ranks.rank() == 1) limit_files(4000);
        const std::string message =
            message_of<Error>([&] { write_checkpoint(folder.path(), 2, rank.stage(), rank.ranks); });
        rank.ranks.run([] { return ""; });
        if (!contains(message, "rank 1: cannot write ") || !contains(message, "File too large") ||
            contains(message, "rank 2") || names_in(folder.path()) != Names{"step-1"}) {
          throw Error(message);
        }
        rank.ranks.run([] { return ""; });
        limit_files(RLIM_INFINITY);
        write_checkpoint(folder.path(), 3, rank.stage(), rank.ranks);
      },
      as_processes());
  EXPECT_EQ(failures, Names(3, ""));
  EXPECT_EQ(names_in(folder.path()), (Names{"step-1", "step-3"}));
  expect_complete(folder.path(), 3);
}

/// Sends its process a signal before collective number `fatal`.
class KillingCommunicator : public Communicator {
 public:
  KillingCommunicator(std::unique_ptr<Communicator> inner, int fatal, int signal = SIGKILL)
      : inner_(std::move(inner)), fatal_(fatal), signal_(signal) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void all_gather(std::span<const std::byte> part, std::span<std::byte> whole, int unit) override {
    if (calls_++ == fatal_) std::raise(signal_);
    inner_->all_gather(part, whole, unit);
  }
  void reduce_scatter(std::span<const std::byte>, std::span<std::byte>, DType, int) override {}
  void all_reduce(std::span<std::byte>, DType, int) override {}
  void broadcast(std::span<std::byte>, int) override {}
  void barrier() override {}
  void all_to_all(std::span<const std::byte>, std::span<const std::size_t>, std::span<std::byte>,
                  std::span<const std::size_t>, int) override {}
  void send(std::span<const std::byte>, int) override {}
  void receive(std::span<std::byte>, int) override {}
  void send_receive(std::span<const std::byte>, int, std::span<std::byte>, int) override {}
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  std::unique_ptr<Communicator> inner_;
  int fatal_;
  int signal_;
  int calls_ = 0;
};

/// Checks the folder after the save of step 2 was interrupted: step 1 is complete, and so is step 2 if it
/// exists; the next start uses the newest and can save.
void expect_consistent(const fs::path& dir) {
  expect_complete(dir, 1);
  const bool published = fs::exists(dir / "step-2");
  if (published) expect_complete(dir, 2);
  run_on(kThree, 3, [&](RankModel& rank) {
    RecordedLog log;
    const auto found = newest_complete_checkpoint(dir, log.logger(), rank.ranks);
    EXPECT_EQ(found.value_or(FoundCheckpoint{}).step, published ? 2 : 1);
    EXPECT_EQ(log.text(), "");
    CheckpointWriter writer(dir, 0, log.logger(), /*background=*/true, &rank.ranks);
    writer.save(3, rank.stage());
    EXPECT_TRUE(writer.wait());
  });
  expect_complete(dir, 3);
  EXPECT_EQ(names_in(dir), published ? (Names{"step-1", "step-2", "step-3"}) : (Names{"step-1", "step-3"}));
}

TEST(SaveOfSeveralRanks, ARankKilledAtAnyPointLeavesNoPartlyPublishedFolder) {
  bool published_once = false;
  for (const int victim : {0, 2}) {
    // Three collectives each to begin, write and publish; a slow machine takes a few more.
    for (int fatal = 0; fatal < 9; ++fatal) {
      SCOPED_TRACE(format("rank {} before collective {}", victim, fatal));
      const TempFolder folder;
      save(folder.path(), 1);
      const auto body = [&](World& world) -> std::string {
        const RankModel rank(world, kThree, 2);
        auto group = world.group("killing", all_ranks(world.size()));
        if (world.rank() == victim) group = std::make_unique<KillingCommunicator>(std::move(group), fatal);
        write_checkpoint(folder.path(), 2, rank.stage(), CheckpointRanks(std::move(group), 60));
        return "saved";
      };
      const auto results = run_processes(3, body);
      EXPECT_EQ(results[static_cast<size_t>(victim)], format("status {}", SIGKILL));
      for (const int other : {1, 2 - victim}) {
        const std::string& result = results[static_cast<size_t>(other)];
        EXPECT_TRUE(result == "saved" || contains(result, format("rank {}", victim))) << result;
      }
      published_once |= fs::exists(folder / "step-2");
      expect_consistent(folder.path());
    }
  }
  EXPECT_TRUE(published_once);
}

TEST(SaveOfSeveralRanks, ARankKilledWhileWritingAFileLeavesNoFolder) {
  for (const rlim_t bytes : {rlim_t{100}, rlim_t{4000}, rlim_t{9000}}) {
    const TempFolder folder;
    save(folder.path(), 1);
    const auto results = failures_on(
        kThree, 2,
        [&](RankModel& rank) {
          if (rank.ranks.rank() == 1) limit_files(bytes);  // SIGXFSZ kills it
          write_checkpoint(folder.path(), 2, rank.stage(), rank.ranks);
        },
        as_processes());
    EXPECT_CONTAINS(results[0], "PeerError") << results[0];
    EXPECT_FALSE(fs::exists(folder / "step-2"));
    expect_consistent(folder.path());
  }
}

TEST(SaveOfSeveralRanks, ARankThatHangsEndsTheRunAtTheDeadlineAndLeavesNoFolder) {
  const TempFolder folder;
  save(folder.path(), 1);
  const fs::path hanging = folder / "hanging process";
  const auto body = [&](World& world) -> std::string {
    const RankModel rank(world, kThree, 2);
    auto group = world.group("killing", all_ranks(world.size()));
    if (world.rank() == 1) {
      write_text(hanging, format("{}", getpid()));
      group = std::make_unique<KillingCommunicator>(std::move(group), 4, SIGSTOP);
    }
    const CheckpointRanks ranks(std::move(group), 60);
    RecordedLog log;
    CheckpointWriter writer(folder.path(), 0, log.logger(), /*background=*/true, &ranks);
    writer.throw_if_rank_lost();
    writer.save(2, rank.stage());
    if (writer.wait()) return "saved";
    const std::string message = message_of<PeerError>([&] { writer.throw_if_rank_lost(); });
    if (message_of<PeerError>([&] { writer.reusable(); }) != message) return "another save begins";
    if (world.rank() == 0) kill(std::stoi(read_file(hanging)), SIGKILL);
    return message;
  };
  const auto results = run_processes(3, body, {60, 3});
  EXPECT_CONTAINS(results[0], "rank 1") << results[0];
  fs::remove(hanging);
  EXPECT_FALSE(fs::exists(folder / "step-2"));
  expect_consistent(folder.path());
}

TEST(SaveOfSeveralRanks, RanksThatSaveDifferentStepsAreRefused) {
  const TempFolder folder;
  const auto failures = failures_on(kThree, 1, [&](RankModel& rank) {
    write_checkpoint(folder.path(), rank.ranks.rank() == 2 ? 8 : 7, rank.stage(), rank.ranks);
  });
  EXPECT_EQ(failures, Names(3, "Error: rank 2 saves step 8, but rank 0 saves step 7"));
  EXPECT_EQ(names_in(folder.path()), Names{});
}

TEST(SaveOfSeveralRanks, RanksWithoutACommonFolderAreRefused) {
  const TempFolder shared;
  const TempFolder other;
  const auto failures = failures_on(kThree, 1, [&](RankModel& rank) {
    write_checkpoint(rank.ranks.rank() == 1 ? other.path() : shared.path(), 7, rank.stage(), rank.ranks);
  });
  for (const std::string& failure : failures) {
    EXPECT_CONTAINS(failure, "rank 1: ");
    EXPECT_CONTAINS(failure, "all ranks must use one common run folder");
  }
  EXPECT_EQ(names_in(shared.path()), Names{});
  EXPECT_EQ(names_in(other.path()), Names{});
}

TEST(SaveOfSeveralRanks, OnlyRankZeroDeletesOldStepsAndLogs) {
  const TempFolder folder;
  run_on(kThree, 1, [&](RankModel& rank) {
    RecordedLog log;
    CheckpointWriter writer(folder.path(), 2, log.logger(), /*background=*/true, &rank.ranks);
    for (const int64_t step : {8, 9, 10, 11}) {
      writer.save(step, stage_checkpoint(rank.model.spec, rank.model.store, &rank.model.optimizer,
                                         Json::object(), writer.reusable()));
    }
    EXPECT_TRUE(writer.wait());
    EXPECT_EQ(contains(log.text(), "saved"), rank.ranks.rank() == 0);
  });
  EXPECT_EQ(names_in(folder.path()), (Names{"step-10", "step-11"}));
}

TEST(SaveOfSeveralRanks, AFailureIsLoggedOnEachRankAndTrainingContinues) {
  const TempFolder folder;
  run_on(kThree, 4, [&](RankModel& rank) {
    RecordedLog log;
    CheckpointWriter writer(folder / "checkpoint", 0, log.logger(), /*background=*/true, &rank.ranks);
    rank.ranks.run([&] {
      if (rank.ranks.rank() == 0) {
        fs::remove(folder / "checkpoint");
        write_text(folder / "checkpoint", "in the way");
      }
      return "";
    });
    writer.save(1, rank.stage());
    EXPECT_FALSE(writer.wait());
    EXPECT_CONTAINS(log.text(), "CHECKPOINT NOT SAVED at step 1: rank 0: cannot create");
    rank.ranks.run([&] {
      if (rank.ranks.rank() == 0) fs::remove(folder / "checkpoint");
      return "";
    });
    writer.save(4, rank.stage());
    EXPECT_TRUE(writer.wait());
  });
  expect_complete(folder / "checkpoint", 4);
}

}  // namespace
}  // namespace stepforge::testing
