// SPDX-License-Identifier: Apache-2.0
// A world that records the collectives of its communicators.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "stepforge/comm/collective.h"
#include "stepforge/comm/communicator.h"

namespace stepforge::testing {

class CallLog {
 public:
  void add(const CollectiveCall& call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(call);
  }
  std::vector<CollectiveCall> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  int64_t count(CollectiveKind kind) const {
    const auto all = calls();
    return std::count_if(all.begin(), all.end(), [&](const auto& call) { return call.kind == kind; });
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    calls_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<CollectiveCall> calls_;
};

/// Wraps a world and logs its collectives.
class CountingWorld : public World {
 public:
  explicit CountingWorld(World& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string transport() const override { return inner_.transport(); }
  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    return std::make_unique<Member>(inner_.group(name, ranks), log);
  }
  void abort(const std::string& reason) override { inner_.abort(reason); }

  CallLog log;

 private:
  class Member : public Communicator {
   public:
    Member(std::unique_ptr<Communicator> inner, CallLog& log) : inner_(std::move(inner)), log_(log) {}
    int rank() const override { return inner_->rank(); }
    int size() const override { return inner_->size(); }
    void all_gather(std::span<const std::byte> part, std::span<std::byte> whole, int unit) override {
      log_.add({CollectiveKind::all_gather, part.size(), DType::u8, 0, unit});
      inner_->all_gather(part, whole, unit);
    }
    void reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part, DType dtype,
                        int unit) override {
      log_.add({CollectiveKind::reduce_scatter, whole.size(), dtype, 0, unit});
      inner_->reduce_scatter(whole, part, dtype, unit);
    }
    void all_reduce(std::span<std::byte> values, DType dtype, int unit) override {
      log_.add({CollectiveKind::all_reduce, values.size(), dtype, 0, unit});
      inner_->all_reduce(values, dtype, unit);
    }
    void broadcast(std::span<std::byte> bytes, int root) override {
      log_.add({CollectiveKind::broadcast, bytes.size(), DType::u8, root});
      inner_->broadcast(bytes, root);
    }
    void barrier() override { inner_->barrier(); }
    void all_to_all(std::span<const std::byte> outgoing, std::span<const std::size_t> outgoing_sizes,
                    std::span<std::byte> incoming, std::span<const std::size_t> incoming_sizes,
                    int unit) override {
      log_.add({CollectiveKind::all_to_all, 0, DType::u8, 0, unit});
      inner_->all_to_all(outgoing, outgoing_sizes, incoming, incoming_sizes, unit);
    }
    void send(std::span<const std::byte> bytes, int peer) override {
      log_.add({CollectiveKind::send, bytes.size(), DType::u8, peer});
      inner_->send(bytes, peer);
    }
    void receive(std::span<std::byte> bytes, int peer) override {
      log_.add({CollectiveKind::receive, bytes.size(), DType::u8, peer});
      inner_->receive(bytes, peer);
    }
    void send_receive(std::span<const std::byte> outgoing, int to, std::span<std::byte> incoming,
                      int from) override {
      const std::size_t bytes = outgoing.size() + incoming.size();
      log_.add({CollectiveKind::send_receive, bytes, DType::u8, to, kNoUnit, from});
      inner_->send_receive(outgoing, to, incoming, from);
    }
    void abort(const std::string& reason) override { inner_->abort(reason); }

   private:
    std::unique_ptr<Communicator> inner_;
    CallLog& log_;
  };

  World& inner_;
};

}  // namespace stepforge::testing
