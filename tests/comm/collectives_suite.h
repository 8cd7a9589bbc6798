// SPDX-License-Identifier: Apache-2.0
// The results of collectives, on any engine: each engine's test includes this file and instantiates the
// suites.
#pragma once

#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/comm/tree_sum.h"
#include "tests/support/rank_threads.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

/// Byte `i` of a rank's test data: it differs between ranks and between neighbors.
std::byte test_byte(int rank, std::size_t i) {
  return static_cast<std::byte>((static_cast<std::size_t>(rank) * 131 + i * 7 + i / 251) & 0xFF);
}

std::vector<std::byte> test_bytes(int rank, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = test_byte(rank, i);
  return bytes;
}

class Collectives : public ::testing::TestWithParam<std::tuple<RankRunner, int>> {
 protected:
  static int size() { return std::get<1>(GetParam()); }

  /// Runs the body on every rank with a communicator of all ranks; it returns "" or what is wrong.
  static void expect_empty(const std::function<std::string(Communicator&)>& body) {
    const auto results = std::get<0>(GetParam()).run(size(), [&](World& world) {
      return body(*world.group("all", all_ranks(world.size())));
    });
    for (const std::string& result : results) EXPECT_EQ(result, "");
  }
};

const std::vector<std::size_t> lengths = {0, 1, 3, 64, 1000, 1024, 1025, 2048, 5000, 20011};

TEST_P(Collectives, AllGatherReturnsThePartsOfAllRanksInOrder) {
  expect_empty([](Communicator& group) -> std::string {
    for (const std::size_t length : lengths) {
      const std::vector<std::byte> part = test_bytes(group.rank(), length);
      std::vector<std::byte> whole(length * static_cast<std::size_t>(group.size()));
      group.all_gather(part, whole);
      for (int rank = 0; rank < group.size(); ++rank) {
        for (std::size_t i = 0; i < length; ++i) {
          if (whole[static_cast<std::size_t>(rank) * length + i] != test_byte(rank, i))
            return format("{} at {}", length, i);
        }
      }
    }
    return "";
  });
}

TEST_P(Collectives, AllGatherWorksInPlace) {
  expect_empty([](Communicator& group) -> std::string {
    constexpr std::size_t length = 3000;
    std::vector<std::byte> whole(length * static_cast<std::size_t>(group.size()));
    const auto own = std::span(whole).subspan(length * static_cast<std::size_t>(group.rank()), length);
    for (std::size_t i = 0; i < length; ++i) own[i] = test_byte(group.rank(), i);
    group.all_gather(own, whole);
    for (int rank = 0; rank < group.size(); ++rank) {
      if (whole[static_cast<std::size_t>(rank) * length + 2999] != test_byte(rank, 2999)) return "wrong";
    }
    return "";
  });
}

TEST_P(Collectives, ReduceScatterGivesEachRankItsSliceOfTheSum) {
  expect_empty([](Communicator& group) -> std::string {
    const auto size = static_cast<std::size_t>(group.size());
    for (const std::size_t length : lengths) {
      std::vector<int32_t> whole(length * size);
      for (std::size_t i = 0; i < whole.size(); ++i)
        whole[i] = static_cast<int32_t>(i * 5 + 1) * (group.rank() + 1);
      std::vector<int32_t> part(length);
      group.reduce_scatter(bytes_of(whole), writable_bytes_of(part), DType::i32);
      const auto factor = static_cast<int32_t>(size * (size + 1) / 2);
      for (std::size_t i = 0; i < length; ++i) {
        const std::size_t index = static_cast<std::size_t>(group.rank()) * length + i;
        if (part[i] != static_cast<int32_t>(index * 5 + 1) * factor) return format("{} at {}", length, i);
      }
    }
    return "";
  });
}

TEST_P(Collectives, AllReduceReturnsTheSumOnEveryRank) {
  expect_empty([](Communicator& group) -> std::string {
    const int64_t factor = group.size() * (group.size() + 1) / 2;
    for (const std::size_t length : lengths) {
      std::vector<int64_t> values(length);
      for (std::size_t i = 0; i < length; ++i) values[i] = static_cast<int64_t>(i + 2) * (group.rank() + 1);
      group.all_reduce(writable_bytes_of(values), DType::i64);
      for (std::size_t i = 0; i < length; ++i) {
        if (values[i] != static_cast<int64_t>(i + 2) * factor) return format("{} at {}", length, i);
      }
    }
    return "";
  });
}

TEST_P(Collectives, BroadcastCopiesTheRootsBytes) {
  expect_empty([](Communicator& group) -> std::string {
    for (int root = 0; root < group.size(); ++root) {
      for (const std::size_t length : lengths) {
        std::vector<std::byte> bytes = test_bytes(group.rank() + 1, length);
        group.broadcast(bytes, root);
        if (bytes != test_bytes(root + 1, length)) return format("{} bytes from {}", length, root);
      }
    }
    return "";
  });
}

/// fp32 numbers of very different sizes, so that their sum depends on the order of additions.
std::vector<float> order_sensitive(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const uint32_t word =
        static_cast<uint32_t>(i * 2654435761U) ^ static_cast<uint32_t>(rank) * 40503U * 65537U;
    values[i] = static_cast<float>(static_cast<int32_t>(word)) * (word % 3 == 0 ? 1e-6F : 1.0F);
  }
  return values;
}

std::vector<float> tree_of(int size, std::size_t count) {
  std::vector<std::vector<float>> sources;
  std::vector<const std::byte*> pointers;
  for (int rank = 0; rank < size; ++rank) sources.push_back(order_sensitive(rank, count));
  for (const auto& source : sources) pointers.push_back(bytes_of(source).data());
  std::vector<float> sum(count);
  tree_sum(pointers, writable_bytes_of(sum).data(), count * 4, DType::f32);
  return sum;
}

TEST_P(Collectives, SumsHaveTheBitsOfTreeSumOnEveryRank) {
  expect_empty([](Communicator& group) -> std::string {
    const auto size = static_cast<std::size_t>(group.size());
    for (const std::size_t count : {5U, 700U, 9000U}) {
      const std::vector<float> expected = tree_of(group.size(), count * size);
      std::vector<float> values = order_sensitive(group.rank(), count * size);
      std::vector<float> part(count);
      group.reduce_scatter(bytes_of(values), writable_bytes_of(part), DType::f32);
      const float* slice = expected.data() + count * static_cast<std::size_t>(group.rank());
      if (std::memcmp(part.data(), slice, count * 4) != 0) return format("reduce_scatter of {}", count);
      group.all_reduce(writable_bytes_of(values), DType::f32);
      if (std::memcmp(values.data(), expected.data(), values.size() * 4) != 0)
        return format("all_reduce of {}", count);
    }
    return "";
  });
}

TEST_P(Collectives, ReduceScatterWorksInPlace) {
  expect_empty([](Communicator& group) -> std::string {
    constexpr std::size_t count = 2000;
    const std::vector<float> expected = tree_of(group.size(), count * static_cast<std::size_t>(group.size()));
    std::vector<float> values = order_sensitive(group.rank(), expected.size());
    const std::size_t first = count * static_cast<std::size_t>(group.rank());
    group.reduce_scatter(bytes_of(values), std::as_writable_bytes(std::span(values).subspan(first, count)),
                         DType::f32);
    return std::memcmp(values.data() + first, expected.data() + first, count * 4) == 0 ? "" : "wrong";
  });
}

TEST_P(Collectives, DifferentCollectivesCanBeMixed) {
  expect_empty([](Communicator& group) -> std::string {
    for (int i = 0; i < 200; ++i) {
      std::vector<int32_t> values(static_cast<std::size_t>(i * 37 % 900) + 1, group.rank() + i);
      const int32_t sum = group.size() * (group.size() - 1) / 2 + group.size() * i;
      group.all_reduce(writable_bytes_of(values), DType::i32);
      if (values.front() != sum || values.back() != sum) return format("all_reduce {}", i);
      if (i % 3 == 0) group.barrier();
      values.assign(1, group.rank() * i);
      const int root = i % group.size();
      group.broadcast(writable_bytes_of(values), root);
      if (values[0] != root * i) return format("broadcast {}", i);
      std::vector<int32_t> whole(static_cast<std::size_t>(group.size()));
      values.assign(1, group.rank() + 3 * i);
      group.all_gather(bytes_of(values), writable_bytes_of(whole));
      if (whole.back() != group.size() - 1 + 3 * i) return format("all_gather {}", i);
    }
    return "";
  });
}

class Groups : public ::testing::TestWithParam<RankRunner> {};

TEST_P(Groups, OverlappingGroupsWorkTogether) {
  const auto results = GetParam().run(4, [](World& world) {
    const int row = world.rank() / 2 * 2;
    const int column = world.rank() % 2;
    const auto rows = world.group("rows", {row, row + 1});
    const auto columns = world.group("columns", {column, column + 2});
    const auto alone = world.group("alone", {world.rank()});
    std::vector<int32_t> values = {1 << world.rank()};
    rows->all_reduce(writable_bytes_of(values), DType::i32);
    columns->all_reduce(writable_bytes_of(values), DType::i32);
    alone->all_reduce(writable_bytes_of(values), DType::i32);
    return format("{} {} {}", rows->rank(), columns->rank(), values[0]);
  });
  EXPECT_EQ(results, (std::vector<std::string>{"0 0 15", "1 0 15", "0 1 15", "1 1 15"}));
}

TEST_P(Groups, GroupsOfTheSameRanksRunConcurrently) {
  const auto results = GetParam().run(3, [](World& world) {
    const auto first = world.group("first", {0, 1, 2});
    const auto second = world.group("second", {0, 1, 2});
    const auto sums = [&](Communicator& group, int32_t start) {
      for (int32_t i = 0; i < 100; ++i) {
        std::vector<int32_t> values(9000, start + i + group.rank());
        group.all_reduce(writable_bytes_of(values), DType::i32);
        if (values.front() != 3 * (start + i) + 3 || values.back() != values.front()) return false;
      }
      return true;
    };
    bool second_is_right = false;
    std::thread other([&] { second_is_right = sums(*second, 5000); });
    const bool first_is_right = sums(*first, 0);
    other.join();
    return format("{} {}", first_is_right, second_is_right);
  });
  for (const std::string& result : results) EXPECT_EQ(result, "true true");
}

/// "Threads3"
inline std::string collectives_name(const ::testing::TestParamInfo<std::tuple<RankRunner, int>>& info) {
  return std::get<0>(info.param).name + std::to_string(std::get<1>(info.param));
}

}  // namespace
}  // namespace stepforge::testing
