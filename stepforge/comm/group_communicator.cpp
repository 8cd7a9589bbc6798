// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/group_communicator.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/comm/tree_sum.h"

namespace stepforge {

Membership member_of(const std::string& name, const std::vector<int>& ranks, int rank, int size) {
  const bool ascend = std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  if (ranks.empty() || !ascend || ranks.front() < 0 || ranks.back() >= size) {
    throw Error(format("group \"{}\": its {} ranks must ascend and belong to a world of {}", name,
                       ranks.size(), size));
  }
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end()) {
    throw Error(
        format("group \"{}\": rank {} creates it but is not one of its {} ranks", name, rank, ranks.size()));
  }
  return {name, ranks, static_cast<int>(found - ranks.begin())};
}

void check_parts(std::size_t part_bytes, std::size_t whole_bytes, int size) {
  if (part_bytes * static_cast<std::size_t>(size) != whole_bytes) {
    throw Error(format("{} parts of {} bytes do not add up to {} bytes", size, part_bytes, whole_bytes));
  }
}

void check_root(int root, int size) {
  if (root < 0 || root >= size) {
    throw Error(format("root {} of a broadcast is outside a group of {} ranks", root, size));
  }
}

std::string creation_text(const std::string& group) {
  return format("the creation of group \"{}\"", group);
}

std::string disagreement_text(const std::string& group, uint64_t number, int rank, const CollectiveCall& call,
                              int other_rank, const CollectiveCall& other_call) {
  return format("the ranks of group \"{}\" disagree on call {}: rank {} called {}, rank {} called {}", group,
                number, rank, collective_text(call), other_rank, collective_text(other_call));
}

GroupCommunicator::GroupCommunicator(Membership membership)
    : name_(std::move(membership.name)),
      ranks_(std::move(membership.ranks)),
      rank_(membership.rank),
      size_(static_cast<int>(ranks_.size())) {}

template <typename Check>
void GroupCommunicator::begin(const CollectiveCall& call, const Check& check) {
  check_arguments(*this, check);
  call_ = call;
  ++calls_;
  check_failures();
}

void GroupCommunicator::all_gather(std::span<const std::byte> part, std::span<std::byte> whole, int unit) {
  begin({CollectiveKind::all_gather, part.size(), DType::u8, 0, unit},
        [&] { check_parts(part.size(), whole.size(), size_); });
  do_all_gather(part, whole);
}

void GroupCommunicator::reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part,
                                       DType dtype, int unit) {
  begin({CollectiveKind::reduce_scatter, whole.size(), dtype, 0, unit}, [&] {
    check_parts(part.size(), whole.size(), size_);
    check_sum(part.size(), dtype);
  });
  do_reduce_scatter(whole, part);
}

void GroupCommunicator::all_reduce(std::span<std::byte> values, DType dtype, int unit) {
  begin({CollectiveKind::all_reduce, values.size(), dtype, 0, unit},
        [&] { check_sum(values.size(), dtype); });
  do_all_reduce(values);
}

void GroupCommunicator::broadcast(std::span<std::byte> bytes, int root) {
  begin({CollectiveKind::broadcast, bytes.size(), DType::u8, root}, [&] { check_root(root, size_); });
  do_broadcast(bytes, root);
}

void GroupCommunicator::barrier() {
  begin({}, [] {});
  do_barrier();
}

void GroupCommunicator::fail(const std::string& reason) {
  throw PeerError(end_group(reason));
}

void GroupCommunicator::compare(int member, const CollectiveCall& theirs) {
  if (theirs == call_) return;
  fail(disagreement_text(name_, calls_, world_rank(), call_, world_rank(member), theirs));
}

void GroupCommunicator::fail_at_loss(const std::string& loss) {
  fail(format("{}; rank {} waited for it in {}", loss, world_rank(), here_text()));
}

void GroupCommunicator::fail_at_deadline(const std::vector<int>& missing_members, double seconds) {
  std::vector<std::string> missing;
  for (const int member : missing_members) {
    missing.push_back(format("rank {} ({})", world_rank(member), last_call_text(member)));
  }
  fail(format("no answer within {} s: rank {} waits in {} for {}", seconds, world_rank(), here_text(),
              join(missing, ", ")));
}

std::string GroupCommunicator::call_text(uint64_t number, const CollectiveCall& call) {
  if (number == 0) return "has called nothing yet";
  return format("last reached {}, its call {}", collective_text(call), number);
}

std::string GroupCommunicator::here_text() const {
  if (calls_ == 0) return creation_text(name_);
  return format("{}, call {} of group \"{}\"", collective_text(call_), calls_, name_);
}

}  // namespace stepforge
