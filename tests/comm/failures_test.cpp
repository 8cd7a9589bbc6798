// SPDX-License-Identifier: Apache-2.0
// Failures of collectives over shared memory and over messages, and of worlds of processes.
#include <csignal>
#include <filesystem>
#include <set>

#include <gtest/gtest.h>
#include <unistd.h>

#include "stepforge/base/files.h"
#include "stepforge/comm/shared_arena.h"
#include "stepforge/comm/shared_file.h"
#include "tests/comm/exchange_failures_suite.h"
#include "tests/support/memory_engine.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Of, Failures, ::testing::Values(as_threads(), as_processes(), as_messages()),
                         [](const auto& info) { return info.param.name; });

/// Three ranks as processes; the last one calls `end` before its second collective.
std::vector<std::string> run_with_death(const std::function<void()>& end,
                                        CommDeadlines deadlines = {60, 60}) {
  return run_processes(
      3,
      [&](World& world) {
        const auto group = world.group("all", {0, 1, 2});
        std::vector<float> values(100000);
        group->all_reduce(writable_bytes_of(values), DType::f32);
        if (world.rank() == 2) end();
        group->all_reduce(writable_bytes_of(values), DType::f32);
        return std::string("went through");
      },
      deadlines);
}

TEST(ProcessDeath, IsReportedOnAllWaitingRanks) {
  // The parent has not waited for the dead process yet, so it still exists as a zombie.
  for (const auto& end :
       std::vector<std::function<void()>>{[] { _exit(1); }, [] { kill(getpid(), SIGKILL); }}) {
    const auto results = run_with_death(end);
    EXPECT_CONTAINS(results[2], "status");
    for (const std::size_t rank : {0U, 1U}) {
      EXPECT_CONTAINS(results[rank], "PeerError: rank 2 (process ");
      EXPECT_CONTAINS(results[rank], "is gone");
      EXPECT_CONTAINS(results[rank], "all_reduce of 400000 bytes fp32, call 2");
    }
  }
}

TEST(ProcessDeath, IsNoticedInEachCallWithAllToAllOrPairs) {
  for (const auto& [name, call] : waiting_calls(50000)) {
    const Marks marks;
    const bool is_of_all = name == "all_to_all";
    const auto results = run_processes(3, [&, &waiting = call](World& world) {
      const auto group = world.group("all", {0, 1, 2});
      group->barrier();
      if (world.rank() == 2) _exit(1);
      const std::string result = result_of([&] {
        if (world.rank() == 0 || is_of_all) waiting(*group);
        return std::string("went through");
      });
      marks.set(std::to_string(world.rank()));
      marks.wait_for("0");
      return result;
    });
    EXPECT_CONTAINS(results[0], "PeerError: rank 2 (process ", "is gone", name);
  }
}

TEST(ProcessDeath, IsNoticedDuringACollective) {
  const std::string run_id = unique_run_id();
  RankProcesses processes;
  for (int rank = 0; rank < 3; ++rank) {
    processes.start([&, rank] {
      const auto world = process_world(run_id, rank, 3, {60, 60}, kSmallStaging);
      const auto group = world->group("all", {0, 1, 2});
      std::vector<float> values(1000);
      for (;;) group->all_reduce(writable_bytes_of(values), DType::f32);
      return std::string();
    });
  }
  usleep(200000);
  kill(processes.process(1), SIGKILL);
  const auto results = processes.results();
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_CONTAINS(results[rank], "PeerError: rank 1 (process ");
  }
}

TEST(ProcessDeath, IsNoticedWhileAGroupIsCreated) {
  const auto results = run_processes(3, [](World& world) {
    if (world.rank() == 0) _exit(3);
    world.group("all", {0, 1, 2});
    return std::string("went through");
  });
  for (const std::size_t rank : {1U, 2U}) {
    EXPECT_CONTAINS(results[rank], "PeerError: rank 0 (process ");
    EXPECT_CONTAINS(results[rank], "group \"all\"");
  }
}

TEST(ProcessDeath, AStoppedProcessCausesATimeout) {
  const std::string run_id = unique_run_id();
  RankProcesses processes;
  for (int rank = 0; rank < 2; ++rank) {
    processes.start([&, rank] {
      const auto world = process_world(run_id, rank, 2, {60, 0.5}, kSmallStaging);
      const auto group = world->group("all", {0, 1});
      group->barrier();
      if (rank == 1) raise(SIGSTOP);
      group->barrier();
      return std::string("went through");
    });
  }
  int status = 0;
  waitpid(processes.process(0), &status, WUNTRACED);
  kill(processes.process(1), SIGCONT);
  EXPECT_EQ(status, 0);
}

TEST(Deadline, NamesTheRankForWhichAllWaitAndNoneThatWaitsToo) {
  for (const RankRunner& runner : {as_threads(), as_processes()}) {
    const Marks marks;
    const auto results = runner.run(3,
                                    [&](World& world) {
                                      const auto group = world.group("all", {0, 1, 2});
                                      std::vector<std::byte> bytes(100);
                                      // Rank 0 waits first, so that its deadline is the first.
                                      if (world.rank() == 1) usleep(200000);
                                      const std::string result = result_of([&] {
                                        if (world.rank() == 2) marks.wait_for("0");
                                        group->receive(bytes, world.rank() == 2 ? 0 : world.rank() + 1);
                                        return std::string("went through");
                                      });
                                      marks.set(std::to_string(world.rank()));
                                      return result;
                                    },
                                    {60, 2});
    for (const std::string& result : results)
      EXPECT_CONTAINS(result, "no answer within 2 s: rank 1 waits in receive of 100 bytes from member 2",
                      "for rank 2");
  }
}

/// Rank `rank` of `size` creates a world and ends.
std::function<std::string()> only_start(const std::string& run_id, int rank, int size,
                                        CommDeadlines deadlines) {
  return [=] {
    process_world(run_id, rank, size, deadlines);
    return std::string("there");
  };
}

TEST(ProcessWorld, NamesTheRanksThatDoNotStart) {
  const std::string run_id = unique_run_id();
  RankProcesses processes;
  processes.start(only_start(run_id, 0, 4, {0.5, 60}));
  processes.start(only_start(run_id, 2, 4, {60, 60}));
  for (const std::string& result : processes.results()) {
    EXPECT_CONTAINS(result, "PeerError");
    EXPECT_CONTAINS(result, "for rank 1 (not connected), rank 3 (not connected)");
  }
}

TEST(ProcessWorld, ReportsThatRankZeroIsMissing) {
  const std::string run_id = unique_run_id();
  const std::string message = message_of<PeerError>([&] { process_world(run_id, 1, 2, {0.2, 60}); });
  EXPECT_CONTAINS(message, "found no rank 0 within 0.2 s");
}

TEST(ProcessWorld, RefusesARankStartedForADifferentWorldSize) {
  const std::string run_id = unique_run_id();
  RankProcesses processes;
  processes.start(only_start(run_id, 0, 3, {2, 60}));
  processes.start(only_start(run_id, 1, 2, {60, 60}));
  EXPECT_CONTAINS(processes.results()[1], "was started for 2 ranks, rank 0 for 3");
}

TEST(ProcessWorld, RefusesASecondProcessOfTheSameRank) {
  const std::string run_id = unique_run_id();
  RankProcesses processes;
  processes.start(only_start(run_id, 0, 3, {2, 60}));
  processes.start(only_start(run_id, 1, 3, {60, 60}));
  processes.start([&] {
    usleep(300000);
    return only_start(run_id, 1, 3, {0.3, 60})();
  });
  EXPECT_CONTAINS(processes.results()[2], "exists already; the other process did not end");
}

TEST(ProcessWorld, IgnoresTheLeftoversOfAnInterruptedStart) {
  for (const int size_before : {2, 3}) {
    const std::string run_id = unique_run_id();
    RankProcesses interrupted;
    interrupted.start(only_start(run_id, 0, size_before, {60, 60}));
    usleep(200000);
    kill(interrupted.process(0), SIGKILL);
    interrupted.results();
    RankProcesses processes;
    processes.start(only_start(run_id, 1, 2, {60, 60}));  // first finds the leftovers
    usleep(100000);
    processes.start(only_start(run_id, 0, 2, {60, 60}));
    for (const std::string& result : processes.results()) EXPECT_EQ(result, "there");
  }
}

/// The names of a run's shared-memory files.
std::set<std::string> files_of(const std::string& run_id) {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(shared_folder(), none)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(content_hash(run_id))) names.insert(name);
  }
  return names;
}

/// Rank `rank` of 3 creates a world, and a group that rank 2 does not join.
std::function<std::string()> wait_in_a_group(const std::string& run_id, int rank, const Marks& marks) {
  return [=, &marks] {
    const auto world = process_world(run_id, rank, 3, {60, 60}, kSmallStaging);
    marks.set(format("{}", rank));
    while (rank == 2) usleep(10000);
    world->group("all", {0, 1, 2});
    return std::string("went through");
  };
}

TEST(ProcessWorld, RemovesItsFileNamesOnceAllRanksHaveJoined) {
  const std::string run_id = unique_run_id();
  const auto names = run_rank_threads(2, [&](int rank) {
    const auto world = process_world(run_id, rank, 2, {60, 60}, kSmallStaging);
    const auto group = world->group("all", {0, 1});
    group->barrier();  // the rank that creates the group removes its name before it comes here
    const std::size_t count = files_of(run_id).size();
    group->barrier();
    return format("{} names", count);
  });
  EXPECT_EQ(names, (std::vector<std::string>{"0 names", "0 names"}));
}

TEST(ProcessWorld, LeavesNoFilesWhenARankIsKilled) {
  const std::string run_id = unique_run_id();
  const Marks marks;
  RankProcesses processes;
  for (int rank = 0; rank < 3; ++rank) processes.start(wait_in_a_group(run_id, rank, marks));
  for (const char* rank : {"0", "1", "2"}) marks.wait_for(rank);
  kill(processes.process(2), SIGKILL);
  const auto results = processes.results();
  for (const std::size_t rank : {0U, 1U}) EXPECT_CONTAINS(results[rank], "PeerError: rank 2");
  EXPECT_EQ(files_of(run_id), std::set<std::string>());
}

TEST(ProcessWorld, TheNextStartRemovesTheFileNamesOfAKilledJob) {
  const std::string killed = unique_run_id();
  const Marks marks;
  RankProcesses processes;
  for (int rank = 0; rank < 3; ++rank) processes.start(wait_in_a_group(killed, rank, marks));
  for (const char* rank : {"0", "1", "2"}) marks.wait_for(rank);
  while (files_of(killed).empty()) usleep(1000);  // rank 0 has named the group's memory
  for (const std::size_t rank : {0U, 1U, 2U}) kill(processes.process(rank), SIGKILL);
  processes.results();
  // Its name is still there, unless a job of another test, which runs beside this one, was the next start.
  EXPECT_LE(files_of(killed).size(), 1U);
  const std::string next = unique_run_id();
  run_rank_threads(2, [&](int rank) { return only_start(next, rank, 2, {60, 60})(); });
  EXPECT_EQ(files_of(killed), std::set<std::string>());
}

TEST(ProcessWorld, TheNextStartKeepsTheFileNamesOfARunningJob) {
  const std::string waiting = unique_run_id();
  RankProcesses processes;
  processes.start(only_start(waiting, 0, 2, {60, 60}));
  for (int i = 0; i < 10000 && files_of(waiting).empty(); ++i) usleep(1000);
  const std::string next = unique_run_id();
  run_rank_threads(2, [&](int rank) { return only_start(next, rank, 2, {60, 60})(); });
  EXPECT_EQ(files_of(waiting).size(), 1U);
  processes.start(only_start(waiting, 1, 2, {60, 60}));
  EXPECT_EQ(processes.results(), (std::vector<std::string>{"there", "there"}));
}

TEST(ProcessWorld, OfThousandsOfRanksTakesLittleMemoryAndNamesTheFirstThatAreMissing) {
  EXPECT_LT(SharedArena::bytes_for(4096, 0), std::size_t{4} << 20);
  const std::string run_id = unique_run_id();
  const std::string result = result_of([&] {
    process_world(run_id, 0, 4096, {0.2, 60}, kSmallStaging);
    return std::string("joined");
  });
  EXPECT_CONTAINS(result, "no answer within 0.2 s: rank 0 waits in ");
  EXPECT_CONTAINS(result, "rank 8 (not connected) and 4,087 more");
}

TEST(SharedFile, IsInaccessibleToOtherUsers) {
  const auto file = SharedFile::create(64);
  ASSERT_TRUE(file->publish("test-mode"));
  const auto mode = [](const std::filesystem::path& path) {
    return std::filesystem::status(path).permissions() & std::filesystem::perms::mask;
  };
  EXPECT_EQ(mode(shared_folder()), std::filesystem::perms::owner_all);
  EXPECT_EQ(mode(shared_folder() / "test-mode"),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST(SharedFile, IsRefusedIfOthersMayWriteToItOrIfItIsALink) {
  const auto file = SharedFile::create(64);
  ASSERT_TRUE(file->publish("test-open-to-others"));
  std::filesystem::permissions(shared_folder() / "test-open-to-others", std::filesystem::perms::others_write,
                               std::filesystem::perm_options::add);
  EXPECT_CONTAINS(message_of<Error>([] { SharedFile::open("test-open-to-others", 1); }),
                  "must belong to user");
  std::filesystem::create_symlink(shared_folder() / "test-open-to-others", shared_folder() / "test-link");
  EXPECT_CONTAINS(message_of<Error>([] { SharedFile::open("test-link", 1); }), "cannot open");
  std::filesystem::remove(shared_folder() / "test-link");
}

TEST(SharedFile, IsInTheFirstFolderWhoseNameNobodyElseHasTaken) {
  const TempFolder folder;
  const std::string first = (folder / "user").string();
  EXPECT_EQ(first_private_folder(first), first);
  std::filesystem::create_directory(first);
  std::filesystem::permissions(first, std::filesystem::perms::owner_all);
  EXPECT_EQ(first_private_folder(first), first);
  std::filesystem::permissions(first, std::filesystem::perms::all);
  EXPECT_EQ(first_private_folder(first), first + "-2");
  std::ofstream(first + "-2") << "a file";
  EXPECT_EQ(first_private_folder(first), first + "-3");
  std::filesystem::create_directory_symlink(folder.path(), first + "-3");
  EXPECT_EQ(first_private_folder(first), first + "-4");
  for (int number = 4; number <= 16; ++number) std::ofstream(format("{}-{}", first, number)) << "a file";
  EXPECT_CONTAINS(message_of<Error>([&] { first_private_folder(first); }), "comm.backend=gloo");
}

TEST(SharedFile, DoesNotTakeTheNameOfAnotherFile) {
  const auto first = SharedFile::create(64);
  const auto second = SharedFile::create(64);
  ASSERT_TRUE(first->publish("test-name"));
  EXPECT_FALSE(second->publish("test-name"));
  first->unpublish();
  EXPECT_TRUE(second->publish("test-name"));
}

TEST(SharedFile, TooManyBytesAreAnErrorThatNamesTheFolder) {
  EXPECT_CONTAINS(message_of<Error>([] { SharedFile::create(std::size_t{1} << 50); }), "/dev/shm");
}

}  // namespace
}  // namespace stepforge::testing
