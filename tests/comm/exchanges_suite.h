// SPDX-License-Identifier: Apache-2.0
// The results of all-to-all and of paired calls, on any engine. Includes the suite of the other collectives
// and runs wherever that runs.
#pragma once

#include <algorithm>
#include <random>

#include "tests/comm/collectives_suite.h"

namespace stepforge::testing {
namespace {

using SizeTable = std::vector<std::vector<std::size_t>>;  ///< [from][to]

/// Random sizes, a third of them 0; the same on every rank.
SizeTable random_sizes(int size, std::size_t most, uint32_t seed) {
  std::mt19937 random(seed);
  SizeTable sizes(static_cast<std::size_t>(size), std::vector<std::size_t>(static_cast<std::size_t>(size)));
  for (auto& row : sizes) {
    for (std::size_t& bytes : row) bytes = random() % 3 == 0 ? 0 : random() % (most + 1);
  }
  return sizes;
}

/// The bytes that one member sends to another: they differ between pairs.
std::vector<std::byte> message(int from, int to, std::size_t bytes) {
  return test_bytes(from * 17 + to + 1, bytes);
}

void append(std::vector<std::byte>& bytes, const std::vector<std::byte>& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

/// "" or what is wrong with an all-to-all of these sizes.
std::string all_to_all_of(Communicator& group, const SizeTable& sizes) {
  const int own = group.rank();
  std::vector<std::byte> outgoing;
  std::vector<std::byte> expected;
  std::vector<std::size_t> incoming_sizes;
  for (int member = 0; member < group.size(); ++member) {
    const auto [row, i] = std::pair{static_cast<std::size_t>(own), static_cast<std::size_t>(member)};
    append(outgoing, message(own, member, sizes[row][i]));
    append(expected, message(member, own, sizes[i][row]));
    incoming_sizes.push_back(sizes[i][row]);
  }
  std::vector<std::byte> incoming(expected.size());
  group.all_to_all(outgoing, sizes[static_cast<std::size_t>(own)], incoming, incoming_sizes);
  return incoming == expected ? "" : format("wrong bytes among {}", incoming.size());
}

TEST_P(Collectives, AllToAllGivesEachRankThePartsForItInRankOrder) {
  expect_empty([](Communicator& group) -> std::string {
    for (const std::size_t most : {0U, 1U, 70U, 1000U, 5000U, 20011U}) {
      for (uint32_t seed = 0; seed < 4; ++seed) {
        const std::string wrong =
            all_to_all_of(group, random_sizes(group.size(), most, seed * 100 + static_cast<uint32_t>(most)));
        if (!wrong.empty()) return format("most {}, seed {}: {}", most, seed, wrong);
      }
    }
    return "";
  });
}

TEST_P(Collectives, AllToAllWorksIfOnlyOnePairHasData) {
  expect_empty([](Communicator& group) -> std::string {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{300007}}) {
      for (const std::size_t from : {0, group.size() - 1}) {
        SizeTable sizes = random_sizes(group.size(), 0, 1);
        sizes[from][static_cast<std::size_t>(group.size()) / 2] = bytes;
        const std::string wrong = all_to_all_of(group, sizes);
        if (!wrong.empty()) return format("{} bytes from {}: {}", bytes, from, wrong);
      }
    }
    return "";
  });
}

TEST_P(Collectives, AllToAllOfEqualPartsTransposes) {
  expect_empty([](Communicator& group) -> std::string {
    const auto size = static_cast<std::size_t>(group.size());
    std::vector<int32_t> outgoing(size);
    for (std::size_t i = 0; i < size; ++i) outgoing[i] = group.rank() * 100 + static_cast<int32_t>(i);
    std::vector<int32_t> incoming(size);
    const std::vector<std::size_t> sizes(size, sizeof(int32_t));
    group.all_to_all(bytes_of(outgoing), sizes, writable_bytes_of(incoming), sizes, 3);
    for (std::size_t i = 0; i < size; ++i) {
      if (incoming[i] != static_cast<int32_t>(i) * 100 + group.rank()) return format("part {}", i);
    }
    return "";
  });
}

/// Sends to the member `step` places on and receives from the one `step` places back; the sizes differ
/// between ranks. "" or what is wrong.
std::string ring(Communicator& group, int step, std::size_t bytes) {
  const int size = group.size();
  const int to = (group.rank() + step) % size;
  const int from = (group.rank() + size - step) % size;
  const auto size_from = [&](int member) { return bytes * static_cast<std::size_t>(member % 3 + 1); };
  std::vector<std::byte> incoming(size_from(from));
  group.send_receive(message(group.rank(), to, size_from(group.rank())), to, incoming, from);
  return incoming == message(from, group.rank(), incoming.size()) ? "" : format("ring {} of {}", step, bytes);
}

TEST_P(Collectives, ARingOfSendReceiveMovesEachMessageToTheNextRank) {
  expect_empty([](Communicator& group) -> std::string {
    for (const std::size_t length : lengths) {
      const std::string wrong = ring(group, 1 % group.size(), length);
      if (!wrong.empty()) return wrong;
    }
    return "";
  });
}

TEST_P(Collectives, ARingGoesByAnyStepAndInBothDirections) {
  expect_empty([](Communicator& group) -> std::string {
    for (int step = 0; step < group.size(); ++step) {
      for (const std::size_t length : {0U, 77U, 4096U}) {
        const std::string wrong = ring(group, step, length);
        if (!wrong.empty()) return wrong;
      }
    }
    return "";
  });
}

TEST_P(Collectives, MessagesOfAPairArriveInOrderWithAnySizes) {
  expect_empty([](Communicator& group) -> std::string {
    if (group.size() < 2) return "";
    const int last = group.size() - 1;
    for (int repeat = 0; repeat < 5; ++repeat) {
      for (const std::size_t length : lengths) {
        const std::vector<std::byte> expected = message(repeat, static_cast<int>(length), length);
        if (group.rank() == 0) group.send(expected, last);
        if (group.rank() != last) continue;
        std::vector<std::byte> bytes(length);
        group.receive(bytes, 0);
        if (bytes != expected) return format("message {} of {} bytes", repeat, length);
      }
    }
    return "";
  });
}

/// One message along all ranks, each of which adds its rank to the numbers.
std::string relay(Communicator& group, std::size_t count, bool is_forward) {
  const int last = group.size() - 1;
  const int place = is_forward ? group.rank() : last - group.rank();
  const int next = group.rank() + (is_forward ? 1 : -1);
  std::vector<int32_t> values(count, 5);
  int32_t expected = 5;
  for (int i = 0; i < place; ++i) expected += is_forward ? i : last - i;
  if (place > 0) group.receive(writable_bytes_of(values), 2 * group.rank() - next);
  if (values.front() != expected || values.back() != expected) return format("relay at {}", group.rank());
  for (int32_t& value : values) value += group.rank();
  if (place < last) group.send(bytes_of(values), next);
  return "";
}

TEST_P(Collectives, APipelineOfSendAndReceivePassesMessagesAlongAndBack) {
  expect_empty([](Communicator& group) -> std::string {
    for (const std::size_t count : {1U, 100U, 3000U}) {
      for (int batch = 0; batch < 4; ++batch) {
        const std::string wrong = relay(group, count, batch % 2 == 0);
        if (!wrong.empty()) return wrong;
      }
    }
    return "";
  });
}

/// What a stage of a one-forward-one-backward pipeline sends: it names batch, stage and direction.
std::vector<int32_t> activation(int batch, int stage, bool is_forward) {
  return std::vector<int32_t>(900, batch * 1000 + stage * 10 + (is_forward ? 1 : 2));
}

TEST_P(Collectives, OneForwardOneBackwardEndsWithSendReceiveBetweenNeighbors) {
  expect_empty([](Communicator& group) -> std::string {
    const int stage = group.rank();
    const int last = group.size() - 1;
    constexpr int batches = 11;  // more than stages
    const int ahead = last - stage;
    std::vector<int32_t> in(900);
    bool is_right = true;
    const auto expect = [&](int batch, int from, bool is_forward) {
      is_right = is_right && in == activation(batch, from, is_forward);
    };
    const auto receive_forward = [&](int batch) {
      if (stage == 0) return;
      group.receive(writable_bytes_of(in), stage - 1);
      expect(batch, stage - 1, true);
    };
    for (int batch = 0; batch < ahead; ++batch) {
      receive_forward(batch);
      group.send(bytes_of(activation(batch, stage, true)), stage + 1);
    }
    receive_forward(ahead);
    for (int batch = 0; batch < batches; ++batch) {
      const bool has_forward = batch + ahead < batches;
      if (stage < last && has_forward) {
        group.send_receive(bytes_of(activation(batch + ahead, stage, true)), stage + 1, writable_bytes_of(in),
                           stage + 1);
      } else if (stage < last) {
        group.receive(writable_bytes_of(in), stage + 1);
      }
      if (stage < last) expect(batch, stage + 1, false);
      const std::vector<int32_t> gradient = activation(batch, stage, false);
      if (stage > 0 && batch + ahead + 1 < batches) {
        group.send_receive(bytes_of(gradient), stage - 1, writable_bytes_of(in), stage - 1);
        expect(batch + ahead + 1, stage - 1, true);
      } else if (stage > 0) {
        group.send(bytes_of(gradient), stage - 1);
      }
    }
    return is_right ? "" : "wrong activations";
  });
}

TEST_P(Collectives, PairedCallsDoNotNeedTheOtherRanks) {
  expect_empty([](Communicator& group) -> std::string {
    const int peer = group.rank() ^ 1;
    std::string wrong;
    for (int i = 0; i < 50 && peer < group.size(); ++i) {  // each pair at its own pace
      const auto bytes = static_cast<std::size_t>(i * 61 % 2500);
      std::vector<std::byte> incoming(bytes);
      group.send_receive(message(group.rank(), i, bytes), peer, incoming, peer);
      if (incoming != message(peer, i, bytes)) wrong = format("message {}", i);
    }
    group.barrier();
    return wrong;
  });
}

TEST_P(Groups, ASendEndsOnlyWhenItsReceiverHasCome) {
  if (GetParam().may_end_early) GTEST_SKIP() << "small messages of this engine may end early";
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{8}, std::size_t{50000}}) {
    const Marks marks;
    const auto results = GetParam().run(2, [&](World& world) {
      const auto group = world.group("all", {0, 1});
      std::vector<std::byte> data(bytes);
      if (world.rank() == 1) {
        usleep(50000);
        marks.set("receiving");
        group->receive(data, 0);
      } else {
        group->send(data, 1);
        if (!marks.has("receiving")) return std::string("too early");
      }
      return std::string();
    });
    EXPECT_EQ(results, std::vector<std::string>(2)) << bytes;
  }
}

/// A collective or ring chosen by `choice`. "" or what is wrong.
std::string any_call(Communicator& group, uint32_t choice) {
  const std::size_t count = choice / 8 % 900 + 1;
  std::vector<int32_t> values(count, group.rank() + 1);
  switch (choice % 6) {
    case 0:
      return all_to_all_of(group, random_sizes(group.size(), count * 4, choice));
    case 1:
      return ring(group, static_cast<int>(choice / 8 % static_cast<uint32_t>(group.size())), count * 2);
    case 2:
      return relay(group, count, choice / 8 % 2 == 0);
    case 3:
      group.all_reduce(writable_bytes_of(values), DType::i32);
      return values.back() == group.size() * (group.size() + 1) / 2 ? "" : "all_reduce";
    case 4: {
      const int root = static_cast<int>(choice % static_cast<uint32_t>(group.size()));
      group.broadcast(writable_bytes_of(values), root);
      return values.back() == root + 1 ? "" : "broadcast";
    }
    default: {
      std::vector<int32_t> whole(count * static_cast<std::size_t>(group.size()));
      group.all_gather(bytes_of(values), writable_bytes_of(whole));
      return whole.front() == 1 && whole.back() == group.size() ? "" : "all_gather";
    }
  }
}

TEST_P(Collectives, AllToAllAndPairedCallsCanBeMixedWithCollectives) {
  expect_empty([](Communicator& group) -> std::string {
    std::mt19937 random(42);
    for (int i = 0; i < 150; ++i) {
      const std::string wrong = any_call(group, static_cast<uint32_t>(random()));
      if (!wrong.empty()) return format("call {}: {}", i, wrong);
    }
    return "";
  });
}

}  // namespace
}  // namespace stepforge::testing
