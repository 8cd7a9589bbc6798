// SPDX-License-Identifier: Apache-2.0
#include "stepforge/engines/world.h"

#include <functional>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/comm/hierarchical_world.h"
#include "stepforge/comm/message_world.h"
#include "stepforge/comm/shared_memory.h"
#include "stepforge/engines/c10d_store.h"
#include "stepforge/engines/gloo_links.h"
#include "stepforge/launch/tcp_socket.h"

namespace stepforge {

namespace {

CommDeadlines deadlines_of(const CommConfig& comm) {
  return {comm.init_timeout, comm.train_timeout};
}

bool is_one_host(const RankEnvironment& ranks) {
  return ranks.local_world_size == ranks.world_size;
}

/// The address of the ranks' store. Throws UsageError if the environment does not state it.
TcpAddress rendezvous_address(const RankEnvironment& ranks) {
  if (ranks.master_port == 0 || (ranks.master_address.empty() && !is_one_host(ranks))) {
    throw UsageError(format(
        "{} ranks, {} of them on this host, need a rendezvous address: set MASTER_ADDR to the host of rank "
        "0 and MASTER_PORT to a free port there, the same on all ranks",
        ranks.world_size, ranks.local_world_size));
  }
  return {ranks.master_address.empty() ? "127.0.0.1" : ranks.master_address, ranks.master_port};
}

/// The address at which other ranks connect to this one. Throws UsageError if other hosts cannot reach it.
GlooAddress own_address(const RankEnvironment& ranks, const TcpAddress& rendezvous, const CommConfig& comm) {
  if (!comm.interface.empty()) return {comm.interface, ""};
  std::string failure;
  const std::string own = source_address(rendezvous, failure);
  if (own.empty()) throw UsageError(format("MASTER_ADDR: {}", failure));
  // Many systems resolve their own name to an address such as 127.0.1.1.
  if (!is_one_host(ranks) && is_loopback(own) && !is_literal(rendezvous)) {
    throw UsageError(
        format("MASTER_ADDR = \"{}\" resolves to {} on this host, where ranks of other hosts cannot connect: "
               "set comm.interface to the network interface that they can reach, "
               "such as comm.interface=eth0, on all ranks",
               rendezvous.host, own));
  }
  return {"", own};
}

std::unique_ptr<World> gloo_world(const RankEnvironment& ranks, const CommConfig& comm,
                                  std::function<void(const std::string&)> on_failure) {
  const TcpAddress address = rendezvous_address(ranks);
  const bool holds_store = ranks.rank == 0 && !ranks.launcher_holds_store;
  auto store = tcp_store(address, holds_store, deadlines_of(comm), ranks.store_listener);
  LinksFactory links = gloo_links(*store, own_address(ranks, address, comm), comm.init_timeout);
  MessageWorldOptions options;
  options.run_id = ranks.run_id;
  options.rank = ranks.rank;
  options.size = ranks.world_size;
  options.deadlines = deadlines_of(comm);
  options.rank_zero_holds_store = !ranks.launcher_holds_store;
  options.transport = "Gloo";
  options.on_failure = std::move(on_failure);
  return message_world(std::move(options), std::move(store), std::move(links));
}

std::unique_ptr<World> shared_memory_world(const RankEnvironment& ranks, const CommConfig& comm) {
  if (!is_one_host(ranks)) {
    throw UsageError(
        format("comm.backend = shared_memory: {} started {} ranks, {} of them on this host: set comm.backend "
               "to auto or gloo for several hosts",
               launcher_name(ranks.launcher), ranks.world_size, ranks.local_world_size));
  }
  return process_world(ranks.run_id, ranks.rank, ranks.world_size, deadlines_of(comm));
}

}  // namespace

std::unique_ptr<World> make_world(const RankEnvironment& environment, const CommConfig& comm) {
  if (environment.world_size == 1) return single_world();
  if (comm.backend == CommBackend::gloo) return gloo_world(environment, comm, {});
  if (comm.backend == CommBackend::shared_memory || is_one_host(environment)) {
    return shared_memory_world(environment, comm);
  }
  const auto make_global = [&](std::function<void(const std::string&)> on_failure) {
    return gloo_world(environment, comm, std::move(on_failure));
  };
  return hierarchical_world(environment.run_id, host_identity(), make_global, deadlines_of(comm));
}

}  // namespace stepforge
