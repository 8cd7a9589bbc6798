// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/metered_communicator.h"

#include <utility>

namespace stepforge {

namespace {

class MeteredCommunicator : public Communicator {
 public:
  MeteredCommunicator(std::unique_ptr<Communicator> group, GroupMeter& meter, bool waits)
      : group_(std::move(group)), meter_(meter), waits_(waits) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  void all_gather(std::span<const std::byte> part, std::span<std::byte> whole, int unit) override {
    measure(whole.size(), [&] { group_->all_gather(part, whole, unit); });
  }
  void reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part, DType dtype,
                      int unit) override {
    measure(whole.size(), [&] { group_->reduce_scatter(whole, part, dtype, unit); });
  }
  void all_reduce(std::span<std::byte> values, DType dtype, int unit) override {
    measure(values.size(), [&] { group_->all_reduce(values, dtype, unit); });
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    measure(bytes.size(), [&] { group_->broadcast(bytes, root); });
  }
  void barrier() override {
    measure(0, [&] { group_->barrier(); });
  }
  void all_to_all(std::span<const std::byte> outgoing, std::span<const std::size_t> outgoing_sizes,
                  std::span<std::byte> incoming, std::span<const std::size_t> incoming_sizes,
                  int unit) override {
    measure(outgoing.size(),
            [&] { group_->all_to_all(outgoing, outgoing_sizes, incoming, incoming_sizes, unit); });
  }
  void send(std::span<const std::byte> bytes, int peer) override {
    measure(bytes.size(), [&] { group_->send(bytes, peer); });
  }
  void receive(std::span<std::byte> bytes, int peer) override {
    measure(0, [&] { group_->receive(bytes, peer); });
  }
  void send_receive(std::span<const std::byte> outgoing, int to, std::span<std::byte> incoming,
                    int from) override {
    measure(outgoing.size(), [&] { group_->send_receive(outgoing, to, incoming, from); });
  }
  void abort(const std::string& reason) override { group_->abort(reason); }

 private:
  template <typename Call>
  void measure(std::size_t bytes, const Call& call) {
    meter_.add_bytes(bytes);
    const auto began = GroupMeter::Clock::now();
    call();
    const auto time = GroupMeter::Clock::now() - began;
    meter_.add_call(time);
    if (waits_) meter_.add_wait(time);
  }

  std::unique_ptr<Communicator> group_;
  GroupMeter& meter_;
  bool waits_;
};

}  // namespace

std::unique_ptr<Communicator> metered(std::unique_ptr<Communicator> group, GroupMeter& meter, bool waits) {
  return std::make_unique<MeteredCommunicator>(std::move(group), meter, waits);
}

}  // namespace stepforge
