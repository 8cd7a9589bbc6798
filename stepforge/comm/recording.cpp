// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/recording.h"

#include <algorithm>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/comm/group_communicator.h"

namespace stepforge {

class RecordingWorld::Member : public Communicator {
 public:
  Member(std::string name, int rank, int size, std::unique_ptr<Communicator> alone, Log& log)
      : name_(std::move(name)), rank_(rank), size_(size), alone_(std::move(alone)), log_(log) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_gather(std::span<const std::byte> part, std::span<std::byte> whole, int unit) override {
    check_parts(part.size(), whole.size(), size_);
    for (int member = 0; member < size_; ++member) alone_->all_gather(part, slice(whole, member), unit);
    count(CollectiveKind::all_gather, whole.size());
  }
  void reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part, DType dtype,
                      int unit) override {
    check_parts(part.size(), whole.size(), size_);
    alone_->reduce_scatter(slice(whole, rank_), part, dtype, unit);
    count(CollectiveKind::reduce_scatter, whole.size());
  }
  void all_reduce(std::span<std::byte> values, DType dtype, int unit) override {
    alone_->all_reduce(values, dtype, unit);
    count(CollectiveKind::all_reduce, values.size());
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    check_root(root, size_);
    alone_->broadcast(bytes, 0);
    count(CollectiveKind::broadcast, bytes.size());
  }
  void barrier() override {
    alone_->barrier();
    count(CollectiveKind::barrier, 0);
  }
  void all_to_all(std::span<const std::byte> outgoing, std::span<const std::size_t> outgoing_sizes,
                  std::span<std::byte> incoming, std::span<const std::size_t> incoming_sizes,
                  int /*unit*/) override {
    check_all_to_all(outgoing.size(), outgoing_sizes, incoming.size(), incoming_sizes, rank_, size_);
    alone_->barrier();  // throws after an abort
    const Parts sent(outgoing, outgoing_sizes);
    const Parts received(incoming, incoming_sizes);
    for (int member = 0; member < size_; ++member) fill(sent.of(member), received.of(member));
    count(CollectiveKind::all_to_all, outgoing.size());
  }
  void send(std::span<const std::byte> bytes, int peer) override {
    check_peer(CollectiveKind::send, peer, rank_, size_);
    alone_->barrier();
    count(CollectiveKind::send, bytes.size());
  }
  void receive(std::span<std::byte> bytes, int peer) override {
    check_peer(CollectiveKind::receive, peer, rank_, size_);
    alone_->barrier();
    fill({}, bytes);
    count(CollectiveKind::receive, bytes.size());
  }
  void send_receive(std::span<const std::byte> outgoing, int to, std::span<std::byte> incoming,
                    int from) override {
    check_send_receive(outgoing.size(), to, incoming.size(), from, rank_, size_);
    alone_->barrier();
    fill(outgoing, incoming);
    count(CollectiveKind::send_receive, outgoing.size() + incoming.size());
  }
  void abort(const std::string& reason) override { alone_->abort(reason); }

 private:
  template <typename Byte>
  std::span<Byte> slice(std::span<Byte> whole, int member) const {
    const std::size_t bytes = whole.size() / static_cast<std::size_t>(size_);
    return whole.subspan(bytes * static_cast<std::size_t>(member), bytes);
  }
  /// Copies as much as fits and fills the rest with zeros.
  static void fill(std::span<const std::byte> from, std::span<std::byte> to) {
    const std::size_t bytes = std::min(from.size(), to.size());
    std::ranges::copy(from.first(bytes), to.begin());
    std::ranges::fill(to.subspan(bytes), std::byte{0});
  }
  void count(CollectiveKind kind, std::size_t bytes) {
    const std::lock_guard lock(log_.mutex);
    Traffic& traffic = log_.traffic.try_emplace({name_, kind}, Traffic{name_, kind}).first->second;
    ++traffic.calls;
    traffic.bytes += static_cast<int64_t>(bytes);
  }

  std::string name_;
  int rank_;
  int size_;
  std::unique_ptr<Communicator> alone_;
  Log& log_;
};

RecordingWorld::RecordingWorld(int rank, int size) : rank_(rank), size_(size), alone_(single_world()) {
  if (rank < 0 || rank >= size) throw Error(format("rank {} is outside a world of {} ranks", rank, size));
}

RecordingWorld::~RecordingWorld() = default;

std::unique_ptr<Communicator> RecordingWorld::group(const std::string& name, const std::vector<int>& ranks) {
  const Membership membership = member_of(name, ranks, rank_, size_);
  auto alone = alone_->group(name, {0});
  if (ranks.size() == 1) return alone;
  return std::make_unique<Member>(name, membership.rank, static_cast<int>(ranks.size()), std::move(alone),
                                  log_);
}

void RecordingWorld::abort(const std::string& reason) {
  alone_->abort(reason);
}

std::vector<Traffic> RecordingWorld::traffic() const {
  const std::lock_guard lock(log_.mutex);
  std::vector<Traffic> list;
  for (const auto& [key, traffic] : log_.traffic) list.push_back(traffic);
  return list;
}

void RecordingWorld::reset_traffic() {
  const std::lock_guard lock(log_.mutex);
  log_.traffic.clear();
}

}  // namespace stepforge
