// SPDX-License-Identifier: Apache-2.0
#include "stepforge/step/machine.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <optional>
#include <sstream>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr double kGiga = 1e9;
constexpr double kMicro = 1e-6;

/// The numbers of a list with commas, all positive and less than 1e12; nothing if there are others.
std::vector<double> positive_numbers(const std::string& text) {
  std::vector<double> numbers;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    char* end = nullptr;
    const double number = std::strtod(part.c_str(), &end);
    if (part.empty() || *end != '\0' || !(number > 0 && number < 1e12)) return {};
    numbers.push_back(number);
  }
  return numbers;
}

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
    const Link& link = machine.link(program.rank, operation.peer);
    return link.seconds + bytes / link.bytes_per_second;
  }
  if (operation.group >= 0) {
    return collective_seconds(machine, ranks_of(program, operation.group), bytes, passes_of(operation.kind));
  }
  return bytes / machine.memory_bytes_per_second;
}

}  // namespace

const Link& MachineModel::link(int rank, int peer) const {
  return host_of(rank) == host_of(peer) ? network : between_hosts;
}

const Link& MachineModel::slowest_link(std::span<const int> ranks) const {
  for (const int rank : ranks)
    if (host_of(rank) != host_of(ranks.front())) return between_hosts;
  return network;
}

MachineModel parse_machine(const std::string& text) {
  const std::vector<double> rates = positive_numbers(text);
  constexpr std::size_t kMost = 3;
  if (rates.empty() || rates.size() > kMost) {
    throw UsageError(
        format("machine rates \"{}\": expected one to three positive numbers, GFLOP/s[,memory GB/s[,network "
               "GB/s]], such as 2000,50,10",
               text));
  }
  MachineModel machine;
  machine.name = "given machine";
  machine.flops_per_second = rates[0] * kGiga;
  if (rates.size() > 1) machine.memory_bytes_per_second = rates[1] * kGiga;
  if (rates.size() > 2) machine.network.bytes_per_second = rates[2] * kGiga;
  return machine;
}

void set_hosts(MachineModel& machine, const std::string& text) {
  const std::vector<double> numbers = positive_numbers(text);
  constexpr std::size_t kFewest = 2;
  constexpr std::size_t kMost = 4;
  constexpr double kMostRanks = 1e6;
  if (numbers.size() < kFewest || numbers.size() > kMost || numbers[0] != std::floor(numbers[0]) ||
      numbers[0] > kMostRanks) {
    throw UsageError(
        format("hosts \"{}\": expected two to four positive numbers, ranks per host,GB/s between hosts[,us "
               "between hosts[,us within a host]], such as 8,50,10,2",
               text));
  }
  machine.ranks_per_host = static_cast<int>(numbers[0]);
  machine.between_hosts.bytes_per_second = numbers[1] * kGiga;
  if (numbers.size() > 2) machine.between_hosts.seconds = numbers[2] * kMicro;
  if (numbers.size() > 3) machine.network.seconds = numbers[3] * kMicro;
}

std::string machine_text(const MachineModel& machine) {
  std::string text =
      format("{}: {:.4g} GFLOP/s, memory {:.4g} GB/s, network {:.4g} GB/s, {:.3g} us per operation",
             machine.name, machine.flops_per_second / kGiga, machine.memory_bytes_per_second / kGiga,
             machine.network.bytes_per_second / kGiga, machine.seconds_per_operation / kMicro);
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
                                    ring_seconds(machine.network, near, bytes));
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
