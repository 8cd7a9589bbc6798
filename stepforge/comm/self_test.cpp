// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/self_test.h"

#include <cstdint>
#include <span>
#include <vector>

#include "stepforge/base/dtype.h"
#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr int64_t kValues = 3;  // of each rank

/// Value i of a rank, different from those of all others.
int64_t value_of(int rank, int64_t i) {
  return (rank + 1) * int64_t{1000} + i;
}

class SelfTest {
 public:
  SelfTest(Communicator& group, std::string_view name) : group_(group), name_(name) {}

  void expect(std::string_view collective, int64_t result, int64_t expected) const {
    if (result == expected) return;
    throw Error(
        format("the test of {} over group {} failed: rank {} of {} of the group got {} instead of {}; "
               "its transport moves or sums wrong data: try another comm.backend",
               collective, name_, group_.rank(), group_.size(), result, expected));
  }

  std::vector<int64_t> own() const {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < kValues; ++i) values.push_back(value_of(group_.rank(), i));
    return values;
  }

  /// The sum of value i over all ranks.
  int64_t sum(int64_t i) const {
    const int64_t ranks = group_.size();
    return ranks * (ranks + 1) / 2 * 1000 + ranks * i;
  }

 private:
  Communicator& group_;
  std::string_view name_;
};

}  // namespace

void test_collectives(Communicator& group, std::string_view name) {
  const SelfTest test(group, name);
  std::vector<int64_t> part = test.own();
  std::vector<int64_t> whole(static_cast<std::size_t>(kValues * group.size()));
  group.all_gather(std::as_bytes(std::span(part)), std::as_writable_bytes(std::span(whole)));
  for (int rank = 0; rank < group.size(); ++rank)
    for (int64_t i = 0; i < kValues; ++i)
      test.expect("all_gather", whole[static_cast<std::size_t>(rank * kValues + i)], value_of(rank, i));

  // Every rank gives rank r the value r, plus its own.
  for (int rank = 0; rank < group.size(); ++rank)
    for (int64_t i = 0; i < kValues; ++i)
      whole[static_cast<std::size_t>(rank * kValues + i)] = value_of(group.rank(), i) + rank;
  group.reduce_scatter(std::as_bytes(std::span(whole)), std::as_writable_bytes(std::span(part)), DType::i64);
  for (int64_t i = 0; i < kValues; ++i)
    test.expect("reduce_scatter", part[static_cast<std::size_t>(i)],
                test.sum(i) + int64_t{group.size()} * group.rank());

  part = test.own();
  group.all_reduce(std::as_writable_bytes(std::span(part)), DType::i64);
  for (int64_t i = 0; i < kValues; ++i)
    test.expect("all_reduce", part[static_cast<std::size_t>(i)], test.sum(i));
}

void test_messages(Communicator& group, std::string_view name) {
  const SelfTest test(group, name);
  const std::vector<int64_t> outgoing = test.own();
  std::vector<int64_t> incoming(outgoing.size());
  const int size = group.size();
  const int before = (group.rank() + size - 1) % size;
  group.send_receive(std::as_bytes(std::span(outgoing)), (group.rank() + 1) % size,
                     std::as_writable_bytes(std::span(incoming)), before);
  for (int64_t i = 0; i < kValues; ++i)
    test.expect("send_receive", incoming[static_cast<std::size_t>(i)], value_of(before, i));
}

}  // namespace stepforge
