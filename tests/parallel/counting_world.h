// A world that counts what its communicators are asked for.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/collective.h"
#include "comm/communicator.h"

namespace stepforge::testing {

/// One call, as its group was asked for it.
struct CountedCall {
  std::string group;
  CollectiveCall call;
};

class CallLog {
 public:
  void add(const std::string& group, const CollectiveCall& call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back({group, call});
  }
  std::vector<CountedCall> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  int64_t count(CollectiveKind kind) const {
    const auto all = calls();
    return std::count_if(all.begin(), all.end(), [&](const auto& entry) { return entry.call.kind == kind; });
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    calls_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<CountedCall> calls_;
};

/// Another world with a log.
class CountingWorld : public World {
 public:
  explicit CountingWorld(World& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    return std::make_unique<Member>(inner_.group(name, ranks), name, log);
  }
  void abort(const std::string& reason) override { inner_.abort(reason); }

  CallLog log;

 private:
  class Member : public Communicator {
   public:
    Member(std::unique_ptr<Communicator> inner, std::string name, CallLog& log)
        : inner_(std::move(inner)), name_(std::move(name)), log_(log) {}
    int rank() const override { return inner_->rank(); }
    int size() const override { return inner_->size(); }
    void all_gather(std::span<const std::byte> part, std::span<std::byte> whole) override {
      log_.add(name_, {CollectiveKind::all_gather, part.size()});
      inner_->all_gather(part, whole);
    }
    void reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part, DType dtype) override {
      log_.add(name_, {CollectiveKind::reduce_scatter, whole.size(), dtype});
      inner_->reduce_scatter(whole, part, dtype);
    }
    void all_reduce(std::span<std::byte> values, DType dtype) override {
      log_.add(name_, {CollectiveKind::all_reduce, values.size(), dtype});
      inner_->all_reduce(values, dtype);
    }
    void broadcast(std::span<std::byte> bytes, int root) override {
      log_.add(name_, {CollectiveKind::broadcast, bytes.size(), DType::u8, root});
      inner_->broadcast(bytes, root);
    }
    void barrier() override { inner_->barrier(); }
    void abort(const std::string& reason) override { inner_->abort(reason); }

   private:
    std::unique_ptr<Communicator> inner_;
    std::string name_;
    CallLog& log_;
  };

  World& inner_;
};

}  // namespace stepforge::testing
