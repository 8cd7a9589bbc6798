// SPDX-License-Identifier: Apache-2.0
// Failures of collectives and groups, on any engine: which ranks throw, and the error texts.
#pragma once

#include <atomic>
#include <csignal>
#include <filesystem>
#include <set>

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/rank_threads.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

class Failures : public ::testing::TestWithParam<RankRunner> {
 protected:
  /// `deadline`: seconds for each wait of a collective.
  static std::vector<std::string> run(int size, const std::function<std::string(World&, Communicator&)>& body,
                                      double deadline = 60) {
    return GetParam().run(
        size, [&](World& world) { return body(world, *world.group("all", all_ranks(world.size()))); },
        {60, deadline});
  }

  static void expect_all_contain(const std::vector<std::string>& results,
                                 const std::vector<std::string>& parts) {
    for (const std::string& result : results) {
      for (const std::string& part : parts) EXPECT_CONTAINS(result, part);
    }
  }
};

TEST_P(Failures, DifferentCallsAreRefusedOnEveryRankAndBothAreNamed) {
  const auto results = run(3, [](World&, Communicator& group) {
    group.barrier();
    std::vector<float> values(4);
    if (group.rank() == 1) {
      group.all_reduce(writable_bytes_of(values), DType::f32);
    } else {
      group.broadcast(writable_bytes_of(values), 2);
    }
    return std::string("went through");
  });
  expect_all_contain(results, {"PeerError", "\"all\"", "call 2", "rank 1 called all_reduce of 16 bytes fp32",
                               "broadcast of 16 bytes from member 2"});
}

TEST_P(Failures, CallsThatDifferInSizeTypeRootOrUnitAreRefused) {
  const auto sizes = run(2, [](World&, Communicator& group) {
    std::vector<float> values(group.rank() == 0 ? 10 : 5000);  // one round, many rounds
    group.all_reduce(writable_bytes_of(values), DType::f32);
    return std::string("went through");
  });
  expect_all_contain(sizes, {"PeerError", "all_reduce of 40 bytes fp32", "all_reduce of 20000 bytes fp32"});
  const auto units = run(2, [](World&, Communicator& group) {
    std::vector<float> part(10);
    std::vector<float> whole(20);
    if (group.rank() == 0) {
      group.all_gather(bytes_of(part), writable_bytes_of(whole), 70000);
    } else {
      group.all_gather(bytes_of(part), writable_bytes_of(whole));
    }
    return std::string("went through");
  });
  expect_all_contain(units, {"PeerError", "rank 0 called all_gather of 40 bytes for unit 70000",
                             "rank 1 called all_gather of 40 bytes"});
  const auto types = run(2, [](World&, Communicator& group) {
    std::vector<float> values(10);
    group.all_reduce(writable_bytes_of(values), group.rank() == 0 ? DType::f32 : DType::i32);
    return std::string("went through");
  });
  expect_all_contain(types, {"PeerError", "40 bytes fp32", "40 bytes int32"});
  const auto roots = run(2, [](World&, Communicator& group) {
    std::vector<float> values(10);
    group.broadcast(writable_bytes_of(values), group.rank());
    return std::string("went through");
  });
  expect_all_contain(roots, {"PeerError", "from member 0", "from member 1"});
}

TEST_P(Failures, ATimeoutNamesTheMissingRankAndItsLastCall) {
  const Marks marks;
  const auto results = run(
      3,
      [&](World&, Communicator& group) {
        std::vector<float> values(3000);
        group.barrier();
        if (group.rank() == 2) {
          marks.wait_for("0");
          marks.wait_for("1");
        }
        const std::string result = result_of([&] {
          group.all_reduce(writable_bytes_of(values), DType::f32);
          return std::string("went through");
        });
        marks.set(std::to_string(group.rank()));
        return result;
      },
      0.5);
  expect_all_contain(results,
                     {"PeerError", "0.5 s", "all_reduce of 12000 bytes fp32, call 2 of group \"all\"",
                      "for rank 2 (last reached barrier, its call 1)"});
}

TEST_P(Failures, AbortFromAnotherThreadEndsAllWaitsAndFurtherCalls) {
  const auto results = run(3, [](World&, Communicator& group) {
    std::thread other;
    if (group.rank() == 1) {
      other = std::thread([&] {
        usleep(100000);
        group.abort("the disk is full");
      });
    }
    std::string text;
    try {
      if (group.rank() != 2) group.barrier();
    } catch (const PeerError& error) {
      text = error.what();
    }
    if (other.joinable()) other.join();
    if (group.rank() == 2) usleep(300000);
    try {
      group.barrier();
    } catch (const PeerError& error) {
      return text + " | " + error.what();
    }
    return std::string("went through");
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const auto [first, second] = std::pair{results[rank].substr(0, results[rank].find(" | ")),
                                           results[rank].substr(results[rank].find(" | ") + 3)};
    if (rank != 2) {
      EXPECT_CONTAINS(first, "rank 1: the disk is full");
    }
    EXPECT_CONTAINS(second, "rank 1: the disk is full");
  }
}

TEST_P(Failures, AbortWakesRanksThatWaitForAnIdleRank) {
  constexpr double kNoDeadline = 1e5;  // only the abort can wake them
  const Marks marks;
  const auto results = run(
      3,
      [&](World&, Communicator& group) {
        if (group.rank() == 2) {
          marks.wait_for("0");
          marks.wait_for("1");
          return std::string("did nothing");
        }
        std::thread other([&] {
          if (group.rank() != 1) return;
          usleep(100000);
          group.abort("the disk is full");
        });
        const std::string result = result_of([&] {
          group.barrier();
          return std::string("went through");
        });
        other.join();
        marks.set(std::to_string(group.rank()));
        return result;
      },
      kNoDeadline);
  for (const std::size_t rank : {0U, 1U}) {
    EXPECT_CONTAINS(results[rank], "PeerError: rank 1: the disk is full");
  }
}

TEST_P(Failures, AbortOfTheWorldReachesAllGroupsAndThoseBeingCreated) {
  const auto results = run(3, [](World& world, Communicator& group) {
    if (world.rank() == 0) {
      usleep(100000);
      world.abort("out of memory");
      return std::string("aborted");
    }
    if (world.rank() == 1) {
      world.group("another", {0, 1});
    } else {
      group.barrier();
    }
    return std::string("went through");
  });
  EXPECT_CONTAINS(results[1], "PeerError: rank 0: out of memory");
  EXPECT_CONTAINS(results[1], "the creation of group \"another\"");
  EXPECT_CONTAINS(results[2], "PeerError: rank 0: out of memory");
}

TEST_P(Failures, WaitingForARankThatLeftTheGroupFails) {
  const auto results = GetParam().run(3, [](World& world) {
    auto group = world.group("all", {0, 1, 2});
    group->barrier();
    std::string result = "left";
    if (world.rank() == 0) {
      group.reset();
    } else {
      result = result_of([&] {
        group->barrier();
        return std::string("went through");
      });
    }
    world.group("end", {0, 1, 2});  // rank 0 stays until the others know
    return result;
  });
  for (const std::size_t rank : {1U, 2U}) {
    EXPECT_CONTAINS(results[rank], "PeerError: rank 0 has left the group");
  }
}

TEST_P(Failures, WrongArgumentsOnOneRankEndTheCallOnAllRanks) {
  const auto results = run(2, [](World&, Communicator& group) {
    std::vector<float> values(3);
    std::vector<float> whole(group.rank() == 0 ? 6 : 7);
    group.all_gather(bytes_of(values), writable_bytes_of(whole));
    return std::string("went through");
  });
  EXPECT_CONTAINS(results[1], "Error: 2 parts of 12 bytes do not add up to 28 bytes");
  EXPECT_CONTAINS(results[0], "PeerError: rank 1: 2 parts of 12 bytes");
}

TEST_P(Failures, CreatingAGroupTimesOutAndNamesTheMissingRank) {
  const Marks marks;
  const auto results = GetParam().run(3,
                                      [&](World& world) {
                                        if (world.rank() == 1) {
                                          marks.wait_for("0");
                                          marks.wait_for("2");
                                          return std::string("stayed away");
                                        }
                                        const std::string result = result_of([&] {
                                          world.group("all", {0, 1, 2});
                                          return std::string("went through");
                                        });
                                        // No rank ends before both have seen the failure.
                                        marks.set(std::to_string(world.rank()));
                                        marks.wait_for("0");
                                        marks.wait_for("2");
                                        return result;
                                      },
                                      {1, 60});
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_CONTAINS(results[rank], "PeerError: no answer within 1 s");
    EXPECT_CONTAINS(results[rank], "in the creation of group \"all\" for rank 1 (not connected)");
  }
}

}  // namespace
}  // namespace stepforge::testing
