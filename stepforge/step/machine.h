// SPDX-License-Identifier: Apache-2.0
// The machines of a job: how fast ranks compute, move memory and send, and how long an operation takes there.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "stepforge/step/measured_costs.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// A link from one rank to another.
struct Link {
  double bytes_per_second = 1e10;
  double seconds = 0;  ///< latency of a message
};

/// The rates of one rank. The defaults are not those of a real machine: they show the shape of a step, not
/// its duration.
struct MachineModel {
  std::string name = "model machine";
  double flops_per_second = 1e11;         ///< matrix products
  double memory_bytes_per_second = 2e10;  ///< gradient norm, updates, copies in memory
  double seconds_per_operation = 5e-6;    ///< overhead of any operation
  Link network = {};                      ///< to a rank of the same host
  Link between_hosts = {};                ///< to a rank of another host
  int ranks_per_host = 0;                 ///< rank r is on host r / ranks_per_host; 0: all are on one host
  /// Ranks of a host that can compute at the same time; more share them evenly. 0: all can.
  int cores = 0;
  /// Measured operations take these times instead.
  MeasuredCosts measured = {};

  int host_of(int rank) const { return ranks_per_host > 0 ? rank / ranks_per_host : 0; }
  /// The link between two ranks, and the slowest link between any two of `ranks`.
  const Link& link(int rank, int peer) const;
  const Link& slowest_link(std::span<const int> ranks) const;
};

/// Parses "2000", "2000,50" or "2000,50,10": GFLOP/s, memory GB/s, network GB/s. Throws UsageError for
/// anything else.
MachineModel parse_machine(const std::string& text);

/// Sets ranks_per_host and the links of `machine` from "8,50", "8,50,10" or "8,50,10,2": ranks of a host, GB/s of
/// each rank to other hosts, latency to other hosts and within a host in us. Throws UsageError for anything else.
void set_hosts(MachineModel& machine, const std::string& text);

/// "model machine: 100 GFLOP/s, memory 20 GB/s, network 10 GB/s, 5 us per operation"; then hosts, cores and measured
/// operations, if there are any.
std::string machine_text(const MachineModel& machine);

/// How long a collective of `ranks` takes in which each sends its part of `bytes` to all: an all-gather or a
/// reduce-scatter. `passes`: 2 for an all-reduce, which is both. In a ring of n ranks a rank sends n - 1 times a part
/// of bytes / n, and all are as slow as the slowest link. If several hosts have equally many of the ranks, at least
/// two each, the ranks may instead exchange their parts between hosts first and then within a host; the faster way counts.
double collective_seconds(const MachineModel& machine, std::span<const int> ranks, double bytes, int passes);

/// The bytes that a rank sends for a message or a collective; collectives count as rings.
double sent_bytes(const StepProgram& program, const Operation& operation);

/// How long an operation runs, on a rank that has a core for itself.
double operation_seconds(const StepProgram& program, const Operation& operation, const MachineModel& machine);

}  // namespace stepforge
