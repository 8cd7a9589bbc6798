// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/group_communicator.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/comm/tree_sum.h"

namespace stepforge {

namespace {

void check_member_index(CollectiveKind kind, int peer, int size) {
  if (peer < 0 || peer >= size) {
    throw Error(
        format("member {} of a {} is outside a group of {} ranks", peer, collective_name(kind), size));
  }
}

}  // namespace

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

void check_sizes(const char* buffer, std::size_t bytes, std::span<const std::size_t> sizes, int size) {
  if (sizes.size() != static_cast<std::size_t>(size)) {
    throw Error(format("all_to_all: {} {} sizes for a group of {} ranks; give one for each", sizes.size(),
                       buffer, size));
  }
  std::size_t rest = bytes;  // so that no sum overflows
  bool fits = true;
  for (const std::size_t part : sizes) {
    fits = fits && part <= rest;
    rest -= fits ? part : 0;
  }
  if (!fits || rest != 0) {
    throw Error(format("all_to_all: the {} sizes do not add up to the buffer's {} bytes", buffer, bytes));
  }
}

void check_all_to_all(std::size_t outgoing_bytes, std::span<const std::size_t> outgoing_sizes,
                      std::size_t incoming_bytes, std::span<const std::size_t> incoming_sizes, int rank,
                      int size) {
  check_sizes("outgoing", outgoing_bytes, outgoing_sizes, size);
  check_sizes("incoming", incoming_bytes, incoming_sizes, size);
  const auto own = static_cast<std::size_t>(rank);
  if (outgoing_sizes[own] != incoming_sizes[own]) {
    throw Error(format("all_to_all: member {} sends itself {} bytes but expects {}", rank,
                       outgoing_sizes[own], incoming_sizes[own]));
  }
}

void check_peer(CollectiveKind kind, int peer, int rank, int size) {
  check_member_index(kind, peer, size);
  if (peer == rank) {
    throw Error(format("{}: member {} would wait for itself; use send_receive", collective_name(kind), rank));
  }
}

void check_send_receive(std::size_t outgoing_bytes, int to, std::size_t incoming_bytes, int from, int rank,
                        int size) {
  check_member_index(CollectiveKind::send_receive, to, size);
  check_member_index(CollectiveKind::send_receive, from, size);
  if ((to == rank) != (from == rank)) {
    throw Error(
        format("send_receive: member {} sends to member {} but receives from member {}; it can reach "
               "itself only in both directions",
               rank, to, from));
  }
  if (to == rank && outgoing_bytes != incoming_bytes) {
    throw Error(format("send_receive: member {} sends itself {} bytes but expects {}", rank, outgoing_bytes,
                       incoming_bytes));
  }
}

std::string creation_text(const std::string& group) {
  return format("the creation of group \"{}\"", group);
}

std::string named_ranks_text(const std::vector<std::string>& named, int64_t count) {
  const int64_t rest = count - std::ssize(named);
  const std::string text = join(named, ", ");
  return rest <= 0 ? text : format("{} and {} more", text, with_thousands(rest));
}

std::string disagreement_text(const std::string& group, uint64_t number, int rank, const CollectiveCall& call,
                              int other_rank, const CollectiveCall& other_call) {
  return format("the ranks of group \"{}\" disagree on call {}: rank {} called {}, rank {} called {}", group,
                number, rank, collective_text(call), other_rank, collective_text(other_call));
}

std::string size_disagreement_text(const std::string& group, const CollectiveCall& call, int sender,
                                   uint64_t sent_bytes, int receiver, uint64_t expected_bytes) {
  return format(
      "the ranks of group \"{}\" disagree on the size of a message of {}: rank {} sends {} bytes, rank {} "
      "expects {}; both must give the same size",
      group, collective_name(call.kind), sender, sent_bytes, receiver, expected_bytes);
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
  if (!is_paired(call.kind)) ++calls_;
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

void GroupCommunicator::all_to_all(std::span<const std::byte> outgoing,
                                   std::span<const std::size_t> outgoing_sizes, std::span<std::byte> incoming,
                                   std::span<const std::size_t> incoming_sizes, int unit) {
  begin({CollectiveKind::all_to_all, 0, DType::u8, 0, unit}, [&] {
    check_all_to_all(outgoing.size(), outgoing_sizes, incoming.size(), incoming_sizes, rank_, size_);
  });
  const Parts parts(outgoing, outgoing_sizes);
  const Parts places(incoming, incoming_sizes);
  std::ranges::copy(parts.of(rank_), places.of(rank_).begin());
  do_all_to_all(parts, places);
}

void GroupCommunicator::send(std::span<const std::byte> bytes, int peer) {
  constexpr CollectiveKind kind = CollectiveKind::send;
  begin({kind, bytes.size(), DType::u8, peer}, [&] { check_peer(kind, peer, rank_, size_); });
  do_send_receive({bytes, peer}, {});
}

void GroupCommunicator::receive(std::span<std::byte> bytes, int peer) {
  constexpr CollectiveKind kind = CollectiveKind::receive;
  begin({kind, bytes.size(), DType::u8, peer}, [&] { check_peer(kind, peer, rank_, size_); });
  do_send_receive({}, {bytes, peer});
}

void GroupCommunicator::send_receive(std::span<const std::byte> outgoing, int to,
                                     std::span<std::byte> incoming, int from) {
  begin({CollectiveKind::send_receive, outgoing.size() + incoming.size(), DType::u8, to, kNoUnit, from},
        [&] { check_send_receive(outgoing.size(), to, incoming.size(), from, rank_, size_); });
  if (to == rank_) {
    std::ranges::copy(outgoing, incoming.begin());
  } else {
    do_send_receive({outgoing, to}, {incoming, from});
  }
}

void GroupCommunicator::fail(const std::string& reason) {
  throw PeerError(end_group(reason));
}

void GroupCommunicator::compare(int member, const CollectiveCall& theirs) {
  if (theirs == call_) return;
  fail(disagreement_text(name_, calls_, world_rank(), call_, world_rank(member), theirs));
}

void GroupCommunicator::check_transfer(int sender, uint64_t sent_bytes, int receiver,
                                       uint64_t expected_bytes) {
  if (sent_bytes == expected_bytes) return;
  fail(size_disagreement_text(name_, call_, world_rank(sender), sent_bytes, world_rank(receiver),
                              expected_bytes));
}

void GroupCommunicator::fail_at_loss(const std::string& loss) {
  fail(format("{}; rank {} waited for it in {}", loss, world_rank(), here_text()));
}

void GroupCommunicator::fail_at_deadline(const std::vector<int>& missing_members, double seconds) {
  std::vector<std::string> missing;
  for (const int member : missing_members) {
    if (missing.size() == kMostNamedRanks) break;
    const std::string last = last_call_text(member);
    missing.push_back(format("rank {}{}", world_rank(member), last.empty() ? "" : format(" ({})", last)));
  }
  fail(format("no answer within {} s: rank {} waits in {} for {}", seconds, world_rank(), here_text(),
              named_ranks_text(missing, std::ssize(missing_members))));
}

std::string GroupCommunicator::call_text(uint64_t number, const CollectiveCall& call) const {
  if (number == 0) return is_paired(call_.kind) ? "" : "has called nothing yet";
  return format("last reached {}, its call {}", collective_text(call), number);
}

std::string GroupCommunicator::here_text() const {
  if (is_paired(call_.kind)) return format("{} in group \"{}\"", collective_text(call_), name_);
  if (calls_ == 0) return creation_text(name_);
  return format("{}, call {} of group \"{}\"", collective_text(call_), calls_, name_);
}

}  // namespace stepforge
