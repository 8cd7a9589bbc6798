// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/machine.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr double kGiga = 1e9;
constexpr double kMicro = 1e-6;

std::span<const int> ranks_of(const StepProgram& program, int group) {
  return element(program.groups, group).ranks;
}

/// How often the parts of a collective's message go to all ranks.
int passes_of(OpKind kind) {
  const bool once =
      kind == OpKind::gather_start || kind == OpKind::reduce_start || has_trait(kind, kDispatches);
  return once ? 1 : 2;
}

double ring_seconds(const Link& link, double ranks, double bytes) {
  return (ranks - 1) * (bytes / ranks / link.bytes_per_second + link.seconds);
}

/// The ranks of each host, if they are equally many on several hosts; otherwise 0.
std::size_t even_ranks_per_host(const MachineModel& machine, std::span<const int> ranks) {
  std::map<int, std::size_t> counts;
  for (const int rank : ranks) ++counts[machine.host_of(rank)];
  const std::size_t first = counts.begin()->second;
  const bool even = std::ranges::all_of(counts, [&](const auto& host) { return host.second == first; });
  return counts.size() > 1 && even ? first : 0;
}

/// What a block exchanges while it computes. Its bytes are those that a rank sends.
struct ExchangeTime {
  double all = 0;     ///< seconds
  double beside = 0;  ///< the part of exchanges that a computation can hide
};

ExchangeTime exchange_time(const StepProgram& program, const Operation& operation,
                           const MachineModel& machine) {
  ExchangeTime time;
  double slowest = 0;  // seconds per byte
  for (const GroupExchange& exchange : operation.exchanges) {
    if (exchange.group < 0) continue;
    const double per_byte = 1 / machine.slowest_link(ranks_of(program, exchange.group)).bytes_per_second;
    time.all += static_cast<double>(exchange.bytes) * per_byte;
    slowest = std::max(slowest, per_byte);
  }
  time.beside = std::min(time.all, static_cast<double>(operation.beside) * slowest);
  return time;
}

/// The time of its message or collective, or of the bytes that it moves in memory.
double moving_seconds(const StepProgram& program, const Operation& operation, const MachineModel& machine) {
  const auto bytes = static_cast<double>(operation.bytes);
  if (operation.peer >= 0) {
    const Link link = machine.link(program.rank, operation.peer);
    return link.seconds + bytes / link.bytes_per_second;
  }
  if (operation.group >= 0) {
    return collective_seconds(machine, ranks_of(program, operation.group), bytes, passes_of(operation.kind));
  }
  return bytes / machine.memory_bytes_per_second;
}

}  // namespace

Link MachineModel::link(int rank, int peer) const {
  return host_of(rank) == host_of(peer) ? in_host(1) : between_hosts;
}

Link MachineModel::slowest_link(std::span<const int> ranks) const {
  for (const int rank : ranks)
    if (host_of(rank) != host_of(ranks.front())) return between_hosts;
  return in_host(ranks.size() - 1);
}

Link MachineModel::in_host(std::size_t others) const {
  const auto links = static_cast<double>(links_in_host);
  const double used = std::clamp(static_cast<double>(others), 1.0, links);
  return {.bytes_per_second = network.bytes_per_second * used / links, .seconds = network.seconds};
}

std::string machine_text(const MachineModel& machine) {
  constexpr double kTera = 1e12;
  const bool tera = machine.flops_per_second >= kTera;
  std::string text = format("{}: {:.4g} {}FLOP/s, memory {:.4g} GB/s", machine.name,
                            machine.flops_per_second / (tera ? kTera : kGiga), tera ? "T" : "G",
                            machine.memory_bytes_per_second / kGiga);
  if (std::isfinite(machine.network.bytes_per_second))
    text += format(", network {:.4g} GB/s", machine.network.bytes_per_second / kGiga);
  text += format(", {:.3g} us per operation", machine.seconds_per_operation / kMicro);
  if (machine.ranks_per_host > 0) {
    text += format("; hosts of {} ranks, {:.4g} GB/s between them, latency {:.3g} us ({:.3g} us within)",
                   machine.ranks_per_host, machine.between_hosts.bytes_per_second / kGiga,
                   machine.between_hosts.seconds / kMicro, machine.network.seconds / kMicro);
  }
  if (machine.cores > 0) text += format("; {} core{} per host", machine.cores, machine.cores == 1 ? "" : "s");
  if (!machine.measured.empty()) text += "; measured times of operations";
  return text;
}

double collective_seconds(const MachineModel& machine, std::span<const int> ranks, double bytes, int passes) {
  if (ranks.empty()) return 0;
  const auto count = static_cast<double>(ranks.size());
  double seconds = ring_seconds(machine.slowest_link(ranks), count, bytes);
  if (const std::size_t on_host = even_ranks_per_host(machine, ranks); on_host > 0) {
    const auto near = static_cast<double>(on_host);
    seconds = std::min(seconds, ring_seconds(machine.between_hosts, count / near, bytes / near) +
                                    ring_seconds(machine.in_host(on_host - 1), near, bytes));
  }
  return passes * seconds;
}

double sent_bytes(const StepProgram& program, const Operation& operation) {
  const auto bytes = static_cast<double>(operation.bytes);
  if (operation.peer >= 0) return bytes;
  const auto ranks = static_cast<double>(ranks_of(program, operation.group).size());
  return passes_of(operation.kind) * bytes * (ranks - 1) / ranks;
}

double operation_seconds(const StepProgram& program, const Operation& operation,
                         const MachineModel& machine) {
  const auto [exchanging, beside] = exchange_time(program, operation, machine);
  const std::optional<double> measured = machine.measured.seconds(program, operation);
  const double computing = measured.value_or(operation.flops / machine.flops_per_second);
  const double other =
      measured ? 0 : machine.seconds_per_operation + moving_seconds(program, operation, machine);
  return std::max(computing, beside) + (exchanging - beside) + other;
}

}  // namespace stepforge
