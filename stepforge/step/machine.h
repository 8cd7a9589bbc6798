// SPDX-License-Identifier: Apache-2.0
// The machines of a job: how fast ranks compute, move memory and send, and how long an operation takes there.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "stepforge/step/measured_costs.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// A link from one rank to another.
struct Link {
  double bytes_per_second = 1e10;  ///< infinite: no message of the job takes it
  double seconds = 0;              ///< latency of a message
};

/// The rates of one rank. The defaults are not those of a real machine: they show the shape of a step, not
/// its duration. machine_model() (step/machine_spec.h) makes those of a real one.
struct MachineModel {
  std::string name = "model machine";
  double flops_per_second = 1e11;         ///< matrix products
  double memory_bytes_per_second = 2e10;  ///< gradient norm, updates, copies in memory
  double seconds_per_operation = 5e-6;    ///< overhead of any operation
  Link network = {};                      ///< to the ranks of the same host
  /// Each rank of a host is reached by an equal part of the rate of `network`; 1: each by all of it.
  int links_in_host = 1;
  Link between_hosts = {};  ///< to a rank of another host
  int ranks_per_host = 0;   ///< rank r is on host r / ranks_per_host; 0: all are on one host
  /// Ranks of a host that can compute at the same time; more share them evenly. 0: all can.
  int cores = 0;
  /// Measured operations take these times instead.
  MeasuredCosts measured = {};

  int host_of(int rank) const { return ranks_per_host > 0 ? rank / ranks_per_host : 0; }
  /// The link between two ranks, and the slowest link of a rank to all the others of `ranks`.
  Link link(int rank, int peer) const;
  Link slowest_link(std::span<const int> ranks) const;
  /// From a rank to some others of its host, at the same time.
  Link in_host(std::size_t others) const;
};

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
