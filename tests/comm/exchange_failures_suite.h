// SPDX-License-Identifier: Apache-2.0
// Failures of all-to-all and of paired calls, on any engine. Includes the suite of the other failures and
// runs wherever that runs.
#pragma once

#include "tests/comm/failures_suite.h"

namespace stepforge::testing {
namespace {

using Sizes = std::vector<std::size_t>;

/// An all-to-all with these sizes on this rank.
void all_to_all_with(Communicator& group, const Sizes& outgoing, const Sizes& incoming, int unit = kNoUnit) {
  std::vector<std::byte> sent(std::accumulate(outgoing.begin(), outgoing.end(), std::size_t{0}));
  std::vector<std::byte> received(std::accumulate(incoming.begin(), incoming.end(), std::size_t{0}));
  group.all_to_all(sent, outgoing, received, incoming, unit);
}

/// The calls in which rank 0 waits for rank 2, among three ranks.
struct WaitingCall {
  std::string name;
  std::function<void(Communicator&)> call;
};

std::vector<WaitingCall> waiting_calls(std::size_t bytes) {
  return {
      {"all_to_all", [=](Communicator& group) { all_to_all_with(group, Sizes(3, bytes), Sizes(3, bytes)); }},
      {"send", [=](Communicator& group) { group.send(std::vector<std::byte>(bytes), 2); }},
      {"receive",
       [=](Communicator& group) {
         std::vector<std::byte> incoming(bytes);
         group.receive(incoming, 2);
       }},
      {"send_receive", [=](Communicator& group) {
         std::vector<std::byte> incoming(bytes);
         group.send_receive(std::vector<std::byte>(bytes), 2, incoming, 2);
       }}};
}

TEST_P(Failures, AllToAllSizesThatDifferInAPairAreRefusedAndBothAreNamed) {
  for (const auto& [sent, expected] :
       {std::pair<std::size_t, std::size_t>{12, 16}, {16, 12}, {0, 1}, {1, 0}, {9000, 8999}, {100, 90000}}) {
    const auto results = run(3, [sent, expected](World&, Communicator& group) {
      Sizes outgoing = {4, 4, 4};
      Sizes incoming = {4, 4, 4};
      if (group.rank() == 1) outgoing[2] = sent;
      if (group.rank() == 2) incoming[1] = expected;
      all_to_all_with(group, outgoing, incoming);
      return std::string("went through");
    });
    expect_all_contain(results, {"PeerError", "all_to_all",
                                 format("rank 1 sends {} bytes, rank 2 expects {};", sent, expected)});
  }
}

TEST_P(Failures, AllToAllAndAnotherCallOrUnitAreRefusedAndBothAreNamed) {
  const auto kinds = run(3, [](World&, Communicator& group) {
    if (group.rank() == 1) {
      group.barrier();
    } else {
      all_to_all_with(group, {1, 2, 3}, {1, 2, 3});
    }
    return std::string("went through");
  });
  expect_all_contain(kinds, {"PeerError", "call 1", "rank 1 called barrier", "called all_to_all"});
  const auto units = run(2, [](World&, Communicator& group) {
    all_to_all_with(group, {8, 8}, {8, 8}, group.rank() + 4);
    return std::string("went through");
  });
  expect_all_contain(
      units, {"PeerError", "rank 0 called all_to_all for unit 4", "rank 1 called all_to_all for unit 5"});
}

TEST_P(Failures, MessageSizesThatDifferAreRefusedOnBothRanksAndNothingIsOverrun) {
  for (const auto& [sent, expected] :
       {std::pair<std::size_t, std::size_t>{12, 16}, {16, 12}, {0, 1}, {1, 0}, {9000, 3}, {3, 90000}}) {
    const auto results = run(2, [sent, expected](World&, Communicator& group) {
      std::vector<std::byte> buffer(expected + 10000);
      const std::string result = result_of([&] {
        if (group.rank() == 0) {
          group.send(std::vector<std::byte>(sent, std::byte{1}), 1);
        } else {
          group.receive(std::span(buffer).first(expected), 0);
        }
        return std::string("went through");
      });
      return buffer == std::vector<std::byte>(buffer.size()) ? result : "overrun";
    });
    expect_all_contain(results,
                       {"PeerError", format("rank 0 sends {} bytes, rank 1 expects {};", sent, expected)});
  }
}

TEST_P(Failures, ARingInWhichOneSizeIsWrongIsRefusedOnAllRanks) {
  const auto results = run(3, [](World&, Communicator& group) {
    const std::vector<std::byte> outgoing(5000);
    std::vector<std::byte> incoming(group.rank() == 2 ? 5001 : 5000);
    group.send_receive(outgoing, (group.rank() + 1) % 3, incoming, (group.rank() + 2) % 3);
    group.barrier();
    return std::string("went through");
  });
  expect_all_contain(results, {"PeerError", "rank 1 sends 5000 bytes, rank 2 expects 5001;"});
}

TEST_P(Failures, ARankThatFailsEndsTheWaitsInEachCallWithAllToAllOrPairs) {
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{50000}}) {
    for (const auto& [name, call] : waiting_calls(bytes)) {
      const auto results = run(3, [&waiting = call](World&, Communicator& group) {
        group.barrier();
        if (group.rank() == 0) waiting(group);
        if (group.rank() == 1) group.barrier();
        usleep(50000);
        group.abort("the disk is full");
        return std::string("aborted");
      });
      for (const std::size_t rank : {0U, 1U}) {
        EXPECT_CONTAINS(results[rank], "PeerError: rank 2: the disk is full");
      }
      EXPECT_CONTAINS(results[0], "(rank 0 stopped in " + name);
    }
  }
}

TEST_P(Failures, WaitingInAPairedCallForARankThatLeftTheGroupFails) {
  for (const auto& [name, call] : waiting_calls(5000)) {
    const auto results = GetParam().run(3, [&waiting = call](World& world) {
      auto group = world.group("all", {0, 1, 2});
      group->barrier();
      if (world.rank() == 0) waiting(*group);
      group.reset();
      usleep(300000);
      return std::string("left");
    });
    EXPECT_CONTAINS(results[0], "PeerError: rank ", " has left the group; rank 0 waited for it in " + name);
  }
}

TEST_P(Failures, ADeadlineNamesThePairedCallAndItsPartner) {
  const std::vector<std::string> texts = {"", "send of 5000 bytes to member 2",
                                          "receive of 5000 bytes from member 2",
                                          "send_receive of 10000 bytes to member 2 and from member 2"};
  const auto calls = waiting_calls(5000);
  for (const auto& [i, with_barrier] :
       std::vector<std::pair<std::size_t, bool>>{{1, true}, {2, true}, {3, true}, {2, false}}) {
    const Marks marks;
    const auto results = run(
        3,
        [&, i = i, with_barrier = with_barrier](World&, Communicator& group) {
          if (with_barrier) group.barrier();
          if (group.rank() != 0) {
            marks.wait_for("0");
            return std::string("stayed away");
          }
          const std::string result = result_of([&] {
            calls[i].call(group);
            return std::string("went through");
          });
          marks.set("0");
          return result;
        },
        0.3);
    EXPECT_CONTAINS(results[0], "PeerError: no answer within 0.3 s: rank 0 waits in " + texts[i],
                    with_barrier ? " for rank 2 (last reached barrier, its call 1)" : " for rank 2");
    EXPECT_EQ(results[0].find("called nothing"), std::string::npos) << results[0];
  }
}

TEST_P(Failures, WrongArgumentsOfAllToAllOrPairedCallsEndTheGroup) {
  std::vector<std::byte> four(4);
  const std::vector<std::pair<std::string, std::function<void(Communicator&)>>> wrong = {
      {"2 outgoing sizes for a group of 3 ranks",
       [&](Communicator& group) { group.all_to_all(four, Sizes{2, 2}, four, Sizes{2, 0, 2}); }},
      {"the incoming sizes do not add up to the buffer's 4 bytes",
       [&](Communicator& group) { group.all_to_all(four, Sizes{2, 0, 2}, four, Sizes{2, 0, 1}); }},
      {"the outgoing sizes do not add up to the buffer's 4 bytes",
       [&](Communicator& group) { group.all_to_all(four, Sizes{SIZE_MAX, 5, 0}, four, Sizes{4, 0, 0}); }},
      {"member 0 sends itself 4 bytes but expects 0",
       [&](Communicator& group) { group.all_to_all(four, Sizes{4, 0, 0}, four, Sizes{0, 4, 0}); }},
      {"member 3 of a send is outside a group of 3 ranks", [&](Communicator& group) { group.send(four, 3); }},
      {"member -1 of a receive is outside", [&](Communicator& group) { group.receive(four, -1); }},
      {"send: member 0 would wait for itself", [&](Communicator& group) { group.send(four, 0); }},
      {"receive: member 0 would wait for itself", [&](Communicator& group) { group.receive(four, 0); }},
      {"member 0 sends to member 0 but receives from member 1",
       [&](Communicator& group) { group.send_receive({}, 0, four, 1); }},
      {"member 0 sends itself 0 bytes but expects 4",
       [&](Communicator& group) { group.send_receive({}, 0, four, 0); }}};
  for (const auto& [text, call] : wrong) {
    const auto results = run(3, [&wrong_call = call](World&, Communicator& group) {
      if (group.rank() == 0) wrong_call(group);
      group.barrier();
      return std::string("went through");
    });
    EXPECT_CONTAINS(results[0], "Error: ", text);
    for (const std::size_t rank : {1U, 2U}) EXPECT_CONTAINS(results[rank], "PeerError: rank 0: ", text);
  }
}

}  // namespace
}  // namespace stepforge::testing
