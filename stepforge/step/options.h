// SPDX-License-Identifier: Apache-2.0
// What a step is to be: the options from which build_step() writes the program of one rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/base/dtype.h"
#include "stepforge/comm/parallel_dims.h"
#include "stepforge/modelspec/cost.h"
#include "stepforge/modelspec/flat_layout.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// What runs again in backward instead of being kept. The head never runs again: its gradients come from its
/// forward.
struct RecomputePolicy {
  enum class Mode : uint8_t {
    none,
    full,     ///< every transformer layer
    every_n,  ///< layers 0, n, 2n, ...
    blocks,   ///< the blocks named
    regions,  ///< the regions named, in every block that has them
  };
  Mode mode = Mode::none;
  int n = 1;
  std::vector<std::string> blocks;
  std::vector<std::string> regions;
};

/// What is gathered while a unit computes, instead of what the prefetch distances give. An empty list leaves
/// the distance.
struct PrefetchList {
  std::string unit;
  std::vector<std::string> forward;   ///< units whose next gather starts with the forward of this one
  std::vector<std::string> backward;  ///< ... or with its backward
};

/// Which gathers run ahead of the computation that needs them.
struct PrefetchPolicy {
  PrefetchPolicy() = default;
  /// The same distance in both directions.
  PrefetchPolicy(int distance) : forward(distance), backward(distance) {}

  int forward = 0;   ///< how many gathers, beyond its own, start with the forward of a unit
  int backward = 0;  ///< ... or with its backward; loss_forward_backward of the head is a backward
  std::vector<PrefetchList> lists;
};

/// When a unit that is not resident is gathered. A unit is resident if its gather dtype is that of the
/// masters (fp32) and it is whole on this rank.
struct GatherPolicy {
  enum class Reshard : uint8_t {
    never,    ///< gathered before its first use in the step, released after its last
    always,   ///< gathered before and released after each run of consecutive uses
    every_n,  ///< units 0, n, 2n, ... always, the others never
  };
  DType dtype = DType::f32;
  Reshard reshard = Reshard::never;
  PrefetchPolicy prefetch;
  int n = 1;  ///< of every_n
};

/// How gradients of sharded units are reduced.
struct ReducePolicy {
  int in_flight = 1;  ///< the most whole gradients whose reduction has started and not ended
  bool each_micro_batch =
      false;                 ///< reduced after each micro-batch, summed in the shards; not in ordered mode
  DType dtype = DType::f32;  ///< in which gradients are sent
};

/// Whether the state of units (masters, gradients, optimizer) lives in the memory of the host. Then it is
/// copied to the device for as long as a gather, a reduction or an update needs it.
struct OffloadPolicy {
  bool state = false;
  int prefetch = 1;  ///< the number of units whose state is copied to the device while another is updated
};

/// The groups with more than one rank, as a program has them.
std::vector<ProgramGroup> groups_of(const DataParallel& data_parallel);

struct StepOptions {
  ProgramKind kind = ProgramKind::train;
  int micro_batches = 1;
  bool ordered = false;  ///< gradients of micro-batches are summed by one fixed binary tree
  CostContext cost;      ///< of one micro-batch
  RecomputePolicy recompute;
  GatherPolicy gather;
  ReducePolicy reduce;
  OffloadPolicy offload;
  DataParallel data_parallel;
  Partition partition = {};                 ///< of each unit over the ranks of a shard group; flat if ordered
  int64_t optimizer_bytes_per_element = 8;  ///< AdamW: two fp32 moments
  int64_t batch_bytes_per_token = 24;       ///< tokens, labels, positions
  int64_t kv_cache_tokens = 0;              ///< generation: capacity over all sequences
  int64_t sequences = 1;                    ///< generation: rows of logits
};

}  // namespace stepforge
