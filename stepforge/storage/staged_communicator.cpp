// SPDX-License-Identifier: Apache-2.0
#include "stepforge/storage/staged_communicator.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "stepforge/storage/tensor_parts.h"

namespace stepforge {

namespace {

/// How many enqueued calls have not ended.
class Pending {
 public:
  void begin() {
    const std::lock_guard lock(mutex_);
    ++calls_;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    --calls_;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return calls_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int calls_ = 0;
};

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

class StagedCommunicator : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> engine, ComputeDevice device,
                     std::shared_ptr<CallFailure> failure)
      : engine_(std::move(engine)), device_(std::move(device)), failure_(std::move(failure)) {}
  ~StagedCommunicator() override { pending_.wait(); }

  int rank() const override { return engine_->rank(); }
  int size() const override { return engine_->size(); }

  void all_gather(ConstBytes part, Bytes whole, int unit) override {
    call("all_gather", part, whole,
         [=, this](ConstBytes sent, Bytes received) { engine_->all_gather(sent, received, unit); });
  }
  void reduce_scatter(ConstBytes whole, Bytes part, DType dtype, int unit) override {
    call("reduce_scatter", whole, part, [=, this](ConstBytes sent, Bytes received) {
      engine_->reduce_scatter(sent, received, dtype, unit);
    });
  }
  void all_reduce(Bytes values, DType dtype, int unit) override {
    in_place("all_reduce", values, [=, this](Bytes bytes) { engine_->all_reduce(bytes, dtype, unit); });
  }
  void broadcast(Bytes bytes, int root) override {
    in_place("broadcast", bytes, [=, this](Bytes staged) { engine_->broadcast(staged, root); });
  }
  void barrier() override {
    wait_for_enqueued();
    engine_->barrier();
  }
  void all_to_all(ConstBytes outgoing, std::span<const std::size_t> outgoing_sizes, Bytes incoming,
                  std::span<const std::size_t> incoming_sizes, int unit) override {
    call("all_to_all", outgoing, incoming,
         [this, unit, out = std::vector(outgoing_sizes.begin(), outgoing_sizes.end()),
          in = std::vector(incoming_sizes.begin(), incoming_sizes.end())](ConstBytes sent, Bytes received) {
           engine_->all_to_all(sent, out, received, in, unit);
         });
  }
  void send(ConstBytes bytes, int peer) override {
    call("send", bytes, {}, [=, this](ConstBytes sent, Bytes) { engine_->send(sent, peer); });
  }
  void receive(Bytes bytes, int peer) override {
    call("receive", {}, bytes, [=, this](ConstBytes, Bytes received) { engine_->receive(received, peer); });
  }
  void send_receive(ConstBytes outgoing, int to, Bytes incoming, int from) override {
    call("send_receive", outgoing, incoming,
         [=, this](ConstBytes sent, Bytes received) { engine_->send_receive(sent, to, received, from); });
  }
  void abort(const std::string& reason) override { engine_->abort(reason); }

 private:
  at::Tensor on_device(const std::byte* begin, std::size_t size) const {
    return at::for_blob(const_cast<std::byte*>(begin), {static_cast<int64_t>(size)})
        .options(at::device(device_.device).dtype(at::kByte))
        .target_device(device_.device)
        .make_tensor();
  }
  at::Tensor pinned(std::size_t size) const {
    return at::empty({static_cast<int64_t>(size)},
                     at::device(at::kCPU).dtype(at::kByte).pinned_memory(size > 0));
  }

  void wait_for_enqueued() {
    pending_.wait();
    failure_->rethrow();
  }

  template <typename Function>
  void call(const char* name, ConstBytes outgoing, Bytes incoming, Function function) {
    failure_->rethrow();
    // Without bytes nothing tells where they would be: a rank that has no rows for its experts.
    const bool owned = (outgoing.empty() && incoming.empty()) || device_.backend->owns(outgoing.data()) ||
                       device_.backend->owns(incoming.data());
    if (!owned) {
      wait_for_enqueued();
      return function(outgoing, incoming);
    }
    const at::Tensor sent = pinned(outgoing.size());
    const at::Tensor received = pinned(incoming.size());
    if (!outgoing.empty()) sent.copy_(on_device(outgoing.data(), outgoing.size()), /*non_blocking=*/true);
    enqueue(name, sent, received, std::move(function));
    if (!incoming.empty()) on_device(incoming.data(), incoming.size()).copy_(received, /*non_blocking=*/true);
  }

  template <typename Function>
  void in_place(const char* name, Bytes values, Function function) {
    failure_->rethrow();
    if (!device_.backend->owns(values.data())) {
      wait_for_enqueued();
      return function(values);
    }
    const at::Tensor staged = pinned(values.size());
    const at::Tensor of_device = on_device(values.data(), values.size());
    staged.copy_(of_device, /*non_blocking=*/true);
    enqueue(name, pinned(0), staged,
            [function = std::move(function)](ConstBytes, Bytes given) { function(given); });
    of_device.copy_(staged, /*non_blocking=*/true);
  }

  /// The call keeps its buffers, and counts as ended when it is destroyed, even if it never ran.
  template <typename Function>
  void enqueue(const char* name, const at::Tensor& sent, const at::Tensor& received, Function function) {
    HostCall host{.name = name, .reads = {}, .writes = {}, .run = {}};
    if (sent.numel() > 0) host.reads.push_back(bytes_of(sent));
    if (received.numel() > 0) host.writes.push_back(bytes_of(received));
    const auto in_call = [backend = device_.backend](const at::Tensor& buffer) {
      const Bytes bytes = bytes_of(buffer);
      return bytes.empty() ? bytes : Bytes(backend->in_host_call(bytes.data()), bytes.size());
    };
    pending_.begin();
    const std::shared_ptr<void> ended(nullptr, [this](void*) { pending_.end(); });
    host.run = [this, ended, sent, received, in_call, function = std::move(function)] {
      try {
        function(in_call(sent), in_call(received));
      } catch (const std::exception& failure) {
        failure_->set(std::current_exception(), failure.what());
      }
    };
    device_.backend->enqueue_host_call(std::move(host));
  }

  std::unique_ptr<Communicator> engine_;
  ComputeDevice device_;
  std::shared_ptr<CallFailure> failure_;
  Pending pending_;
};

}  // namespace

std::unique_ptr<Communicator> staged(std::unique_ptr<Communicator> engine, const ComputeDevice& device,
                                     std::shared_ptr<CallFailure> failure) {
  return std::make_unique<StagedCommunicator>(std::move(engine), device, std::move(failure));
}

}  // namespace stepforge
