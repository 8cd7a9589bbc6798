// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/single_communicator.h"

#include <cstring>
#include <utility>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

void copy_bytes(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty()) std::memmove(to.data(), from.data(), from.size());
}

class SingleCommunicator : public GroupCommunicator {
 public:
  SingleCommunicator(Membership membership, std::shared_ptr<const FailureNote> world_failure)
      : GroupCommunicator(std::move(membership)), world_failure_(std::move(world_failure)) {}

  void abort(const std::string& reason) override {
    failure_.set(format("rank {}: {}", world_rank(), reason));
  }

 private:
  void do_all_gather(std::span<const std::byte> part, std::span<std::byte> whole) override {
    copy_bytes(part, whole);
  }
  void do_reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part) override {
    copy_bytes(whole, part);
  }
  void do_all_reduce(std::span<std::byte> /*values*/) override {}
  void do_broadcast(std::span<std::byte> /*bytes*/, int /*root*/) override {}
  void do_barrier() override {}
  void do_all_to_all(const Parts<const std::byte>& /*outgoing*/,
                     const Parts<std::byte>& /*incoming*/) override {}
  /// A group of one has no other member.
  void do_send_receive(Transfer<const std::byte> /*outgoing*/, Transfer<std::byte> /*incoming*/) override {}
  void check_failures() override {
    for (const FailureNote* note : {&std::as_const(failure_), world_failure_.get()}) {
      if (note->is_set()) throw PeerError(*note->text());
    }
  }
  std::string end_group(const std::string& reason) override {
    failure_.set(reason);
    return reason;
  }
  std::string last_call_text(int /*member*/) const override { return call_text(calls_, call_); }

  std::shared_ptr<const FailureNote> world_failure_;
  FailureNote failure_;
};

class SingleWorld : public World {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string transport() const override { return "one rank"; }

  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    if (failure_->is_set()) throw PeerError(*failure_->text());
    return single_communicator(member_of(name, ranks, 0, 1), failure_);
  }
  void abort(const std::string& reason) override { failure_->set(format("rank 0: {}", reason)); }

 private:
  std::shared_ptr<FailureNote> failure_ = std::make_shared<FailureNote>();
};

}  // namespace

std::unique_ptr<Communicator> single_communicator(Membership membership,
                                                  std::shared_ptr<const FailureNote> world_failure) {
  return std::make_unique<SingleCommunicator>(std::move(membership), std::move(world_failure));
}

std::unique_ptr<World> single_world() {
  return std::make_unique<SingleWorld>();
}

}  // namespace stepforge
