// SPDX-License-Identifier: Apache-2.0
#include "stepforge/comm/hierarchical_world.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "stepforge/base/files.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

/// The world of this host's ranks. A failure of the global world may be reported before it exists.
class LocalWorldHolder {
 public:
  void set(std::unique_ptr<LocalWorld> world) {
    const std::lock_guard lock(mutex_);
    world_ = std::move(world);
    if (!failure_.empty()) world_->fail(failure_);
  }
  void fail(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    failure_ = reason;
    if (world_ != nullptr) world_->fail(reason);
  }
  LocalWorld* world() const { return world_.get(); }

 private:
  std::mutex mutex_;
  std::unique_ptr<LocalWorld> world_;
  std::string failure_;
};

class HierarchicalWorld : public World {
 public:
  HierarchicalWorld(const std::string& run_id, const std::string& identity, const WorldMaker& make_global,
                    CommDeadlines deadlines)
      : global_(make_global([local = local_](const std::string& reason) { local->fail(reason); })) {
    host_.rank = global_->rank();
    host_.world_size = global_->size();
    const std::string own = content_hash(identity);
    std::vector<int> all(static_cast<std::size_t>(size()));
    std::iota(all.begin(), all.end(), 0);
    std::string identities(own.size() * all.size(), ' ');
    const auto group = global_->group("hosts", all);
    group->all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(identities)));
    for (const int rank : all) {
      if (identities.compare(own.size() * static_cast<std::size_t>(rank), own.size(), own) == 0) {
        host_.ranks.push_back(rank);
      }
    }
    if (host_.ranks.size() > 1) {
      local_->set(local_world(format("{} {}", run_id, host_.ranks[0]), host_, deadlines));
    }
    group->barrier();  // fails if a host could not share its memory
  }

  int rank() const override { return host_.rank; }
  int size() const override { return host_.world_size; }
  std::string transport() const override {
    return local_->world() == nullptr
               ? global_->transport()
               : format("{} between hosts, shared memory within", global_->transport());
  }

  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) override {
    const bool is_local = local_->world() != nullptr &&
                          std::includes(host_.ranks.begin(), host_.ranks.end(), ranks.begin(), ranks.end());
    return is_local ? local_->world()->group(name, ranks) : global_->group(name, ranks);
  }

  void abort(const std::string& reason) override {
    global_->abort(reason);
    local_->fail(format("rank {}: {}", rank(), reason));
  }

 private:
  std::shared_ptr<LocalWorldHolder> local_ = std::make_shared<LocalWorldHolder>();
  std::unique_ptr<World> global_;
  LocalRanks host_;
};

}  // namespace

std::string host_identity() {
  struct stat shared_memory{};
  const bool exists = stat("/dev/shm", &shared_memory) == 0;
  return format("{} {}", read_file("/proc/sys/kernel/random/boot_id"), exists ? shared_memory.st_dev : 0);
}

std::unique_ptr<World> hierarchical_world(const std::string& run_id, const std::string& identity,
                                          const WorldMaker& make_global, CommDeadlines deadlines) {
  return std::make_unique<HierarchicalWorld>(run_id, identity, make_global, deadlines);
}

}  // namespace stepforge
