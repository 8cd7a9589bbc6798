// SPDX-License-Identifier: Apache-2.0
#include "tests/support/delayed_world.h"

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

namespace stepforge::testing {

namespace {

class DelayedCommunicator : public Communicator {
 public:
  DelayedCommunicator(std::unique_ptr<Communicator> inner, const DelayRule& rule, const Sleep& sleep,
                      std::mutex& link)
      : inner_(std::move(inner)), rule_(rule), sleep_(sleep), link_(link) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  void all_gather(std::span<const std::byte> part, std::span<std::byte> whole, int unit) override {
    run({CollectiveKind::all_gather, part.size(), DType::u8, 0, unit}, whole.size(),
        [&] { inner_->all_gather(part, whole, unit); });
  }
  void reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part, DType dtype,
                      int unit) override {
    run({CollectiveKind::reduce_scatter, whole.size(), dtype, 0, unit}, whole.size(),
        [&] { inner_->reduce_scatter(whole, part, dtype, unit); });
  }
  void all_reduce(std::span<std::byte> values, DType dtype, int unit) override {
    run({CollectiveKind::all_reduce, values.size(), dtype, 0, unit}, values.size(),
        [&] { inner_->all_reduce(values, dtype, unit); });
  }
  void broadcast(std::span<std::byte> bytes, int root) override {
    run({CollectiveKind::broadcast, bytes.size(), DType::u8, root}, bytes.size(),
        [&] { inner_->broadcast(bytes, root); });
  }
  void barrier() override {
    run({}, 0, [&] { inner_->barrier(); });
  }
  void all_to_all(std::span<const std::byte> outgoing, std::span<const std::size_t> outgoing_sizes,
                  std::span<std::byte> incoming, std::span<const std::size_t> incoming_sizes,
                  int unit) override {
    run({CollectiveKind::all_to_all, 0, DType::u8, 0, unit}, outgoing.size(),
        [&] { inner_->all_to_all(outgoing, outgoing_sizes, incoming, incoming_sizes, unit); });
  }
  void send(std::span<const std::byte> bytes, int peer) override {
    run({CollectiveKind::send, bytes.size(), DType::u8, peer}, bytes.size(),
        [&] { inner_->send(bytes, peer); });
  }
  void receive(std::span<std::byte> bytes, int peer) override {
    run({CollectiveKind::receive, bytes.size(), DType::u8, peer}, bytes.size(),
        [&] { inner_->receive(bytes, peer); });
  }
  void send_receive(std::span<const std::byte> outgoing, int to, std::span<std::byte> incoming,
                    int from) override {
    const std::size_t bytes = outgoing.size() + incoming.size();
    run({CollectiveKind::send_receive, bytes, DType::u8, to, kNoUnit, from}, bytes,
        [&] { inner_->send_receive(outgoing, to, incoming, from); });
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  template <typename Body>
  void run(const CollectiveCall& call, std::size_t bytes, const Body& body) {
    const Delay delay = rule_(call);
    if (delay.before > 0) sleep_(delay.before);
    body();
    if (delay.after > 0) sleep_(delay.after);
    if (delay.per_byte <= 0) return;
    const std::lock_guard turn(link_);
    sleep_(delay.per_byte * static_cast<double>(bytes));
  }

  std::unique_ptr<Communicator> inner_;
  const DelayRule& rule_;
  const Sleep& sleep_;
  std::mutex& link_;
};

class DelayedWorld : public World {
 public:
  DelayedWorld(std::unique_ptr<World> inner, DelayRule rule, Sleep sleep)
      : inner_(std::move(inner)), rule_(std::move(rule)), sleep_(std::move(sleep)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string transport() const override { return inner_->transport(); }
  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    auto group = inner_->group(name, ranks);
    if (ranks.size() == 1) return group;
    return std::make_unique<DelayedCommunicator>(std::move(group), rule_, sleep_, link_);
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  std::unique_ptr<World> inner_;
  DelayRule rule_;
  Sleep sleep_;
  std::mutex link_;
};

}  // namespace

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

DelayRule link_delay(double latency_seconds, double bytes_per_second) {
  return [=](const CollectiveCall&) {
    return Delay{.before = latency_seconds, .per_byte = 1.0 / bytes_per_second};
  };
}

std::unique_ptr<World> delayed_world(std::unique_ptr<World> inner, DelayRule rule, Sleep sleep) {
  return std::make_unique<DelayedWorld>(std::move(inner), std::move(rule), std::move(sleep));
}

}  // namespace stepforge::testing
