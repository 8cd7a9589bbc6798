// SPDX-License-Identifier: Apache-2.0
// What is published or measured about a machine: its devices, how a host joins them, and the network between hosts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/base/dtype.h"
#include "stepforge/step/machine.h"

namespace stepforge {

// In all of these structs 0 means that the number is not known: not published, or there is no such thing. Nothing is
// computed from a number that is not known, except that a latency counts as 0.

/// Peak rates of matrix products in TFLOP/s, without sparsity, by the type of the factors.
struct PeakTflops {
  double fp32 = 0;
  double tf32 = 0;
  double bf16 = 0;
  double fp16 = 0;
  double fp8 = 0;
  double fp4 = 0;

  /// Of products in a type of precision.compute; 0 for other types.
  double of(DType dtype) const;
  bool operator==(const PeakTflops&) const = default;
};

struct DeviceSpec {
  int64_t memory_mib = 0;           ///< all of it, as the driver reports it
  double memory_gb_per_second = 0;  ///< 1 GB is 1e9 bytes
  int64_t runtime_mib = 0;          ///< of the memory, what the driver, its context and libraries take
  double link_gb_per_second = 0;  ///< of all its own links (NVLink, Infinity Fabric, HCCS), in each direction
  double pcie_gb_per_second = 0;  ///< in each direction
  int64_t multiprocessors = 0;    ///< or compute units
  double boost_mhz = 0;           ///< of products
  double l2_mib = 0;
  double power_watts = 0;  ///< its limit
  PeakTflops peak_tflops;

  /// What is left for a training step.
  int64_t usable_bytes() const { return (memory_mib - runtime_mib) << 20; }
  bool operator==(const DeviceSpec&) const = default;
};

/// How the devices of a host reach each other.
enum class DeviceConnection : uint8_t {
  none,      ///< not known
  switched,  ///< their own links lead to a switch: any two exchange at the rate of all links
  mesh,      ///< their own links lead to each of the others: any two have an equal part
  pcie
};

struct HostSpec {
  int64_t devices = 1;  ///< in one domain of DeviceConnection: of a rack that is one NVLink domain, all
  DeviceConnection connection = DeviceConnection::none;
  double latency_us = 0;  ///< of a message between two devices
  int64_t adapters = 0;   ///< to the network, which all devices share evenly

  bool operator==(const HostSpec&) const = default;
};

struct NetworkSpec {
  double adapter_gbit_per_second = 0;  ///< of one adapter, in each direction
  double latency_us = 0;               ///< of a message between two hosts

  bool operator==(const NetworkSpec&) const = default;
};

/// A machine file (plan/machine_file.h) with all that it uses, or a part of a machine.
struct MachineSpec {
  std::string name;               ///< of the file that is shipped, or the path of a user's own
  std::vector<std::string> uses;  ///< the files that it completes
  DeviceSpec device;
  HostSpec host;
  NetworkSpec network;

  /// Whether it has no device, and only completes machines that have.
  bool is_part() const { return device == DeviceSpec{}; }
  bool operator==(const MachineSpec&) const = default;
};

/// The rates of one rank on each device of `machine`, which computes in `compute`: those of the data sheets, which no real step
/// reaches. Throws UsageError, naming the missing number, if it is not known how fast a device computes or moves memory, or
/// how those of the job's `ranks` reach each other.
MachineModel machine_model(const MachineSpec& machine, DType compute, int ranks);

}  // namespace stepforge
