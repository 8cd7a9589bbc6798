#include "stepforge/comm/single_communicator.h"

#include <cstring>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/comm/group_rules.h"
#include "stepforge/comm/tree_sum.h"

namespace stepforge {

namespace {

void copy_bytes(std::span<const std::byte> from, std::span<std::byte> to) {
  if (!from.empty()) std::memmove(to.data(), from.data(), from.size());
}

class SingleCommunicator : public Communicator {
 public:
  SingleCommunicator(int global_rank, std::shared_ptr<const FailureNote> world_failure)
      : global_rank_(global_rank), world_failure_(std::move(world_failure)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }

  void all_gather(std::span<const std::byte> part, std::span<std::byte> whole, int /*unit*/) override {
    check_open();
    check_parts(part.size(), whole.size(), 1);
    copy_bytes(part, whole);
  }
  void reduce_scatter(std::span<const std::byte> whole, std::span<std::byte> part, DType dtype,
                      int /*unit*/) override {
    check_open();
    check_parts(part.size(), whole.size(), 1);
    check_sum(whole.size(), dtype);
    copy_bytes(whole, part);
  }
  void all_reduce(std::span<std::byte> values, DType dtype, int /*unit*/) override {
    check_open();
    check_sum(values.size(), dtype);
  }
  void broadcast(std::span<std::byte> /*bytes*/, int root) override {
    check_open();
    check_root(root, 1);
  }
  void barrier() override { check_open(); }
  void abort(const std::string& reason) override {
    failure_.set(format("rank {}: {}", global_rank_, reason));
  }

 private:
  void check_open() const {
    if (failure_.is_set()) throw PeerError(*failure_.text());
    if (world_failure_->is_set()) throw PeerError(*world_failure_->text());
  }

  int global_rank_;
  std::shared_ptr<const FailureNote> world_failure_;
  FailureNote failure_;
};

class SingleWorld : public World {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    member_number(name, ranks, 0, 1);
    if (failure_->is_set()) throw PeerError(*failure_->text());
    return single_communicator(0, failure_);
  }
  void abort(const std::string& reason) override { failure_->set(format("rank 0: {}", reason)); }

 private:
  std::shared_ptr<FailureNote> failure_ = std::make_shared<FailureNote>();
};

}  // namespace

std::unique_ptr<Communicator> single_communicator(int global_rank,
                                                  std::shared_ptr<const FailureNote> world_failure) {
  return std::make_unique<SingleCommunicator>(global_rank, std::move(world_failure));
}

std::unique_ptr<World> single_world() {
  return std::make_unique<SingleWorld>();
}

}  // namespace stepforge
