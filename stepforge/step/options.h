// SPDX-License-Identifier: Apache-2.0
// The options from which build_step() writes the program of one rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stepforge/base/choices.h"
#include "stepforge/modelspec/cost.h"
#include "stepforge/modelspec/model_spec.h"
#include "stepforge/modelspec/slot_layout.h"
#include "stepforge/schedule/schedule.h"
#include "stepforge/step/program.h"

namespace stepforge {

/// Activation checkpointing: what runs again in the backward pass instead of being kept. The head is never
/// recomputed, because its gradients are computed in its forward.
struct RecomputePolicy {
  RecomputeMode mode = RecomputeMode::none;
  int n = 1;
  std::vector<std::string> blocks;
  std::vector<std::string> regions;
  std::vector<std::string> calls;
  double budget = 1;  ///< of recomputation_within()
};

/// The units to gather while a unit computes, instead of those within the prefetch distance. An empty list
/// leaves the distance in force.
struct PrefetchList {
  std::string unit;
  std::vector<std::string> forward;   ///< units whose next gather starts with the forward pass of this one
  std::vector<std::string> backward;  ///< units whose next gather starts with its backward pass
};

/// Which gathers start before the computation that needs them.
struct PrefetchPolicy {
  PrefetchPolicy() = default;
  /// The same distance in both directions.
  PrefetchPolicy(int distance) : forward(distance), backward(distance) {}

  int forward = 0;   ///< the number of gathers, beyond its own, that start with the forward pass of a unit
  int backward = 0;  ///< the same for its backward pass; loss_forward_backward of the head counts as one
  std::vector<PrefetchList> lists;
};

/// When a unit that is not resident is gathered. A unit is resident if its gather dtype is that of
/// the masters, and it is neither sharded nor offloaded.
struct GatherPolicy {
  ReshardMode reshard = ReshardMode::never;
  PrefetchPolicy prefetch;
  int n = 1;                               ///< for every_n
  std::vector<std::string> kept = {};      ///< units for which it is "never", whatever `reshard` says
  std::vector<std::string> released = {};  ///< units for which it is "always": those stored as codes
};

/// How gradients of sharded units are reduced.
struct ReducePolicy {
  int in_flight = 1;  ///< maximum number of reductions that have started and not ended
  /// Reduce after each micro-batch and accumulate in the shards. Not in ordered mode.
  bool each_micro_batch = false;
};

/// How the state of offloaded units (masters, gradients, optimizer) is copied to the device: only while a
/// gather, a reduction or an update needs it.
struct OffloadPolicy {
  int prefetch = 1;  ///< number of units whose state is copied to the device while another unit is updated
};

/// The pipeline that the ranks of RankLayout::pipeline_group form.
struct PipelineOptions {
  /// What each rank computes, in order. If it has no ranks: one stage; every micro-batch forward, then backward.
  Schedule schedule;
  int first_trained_stage = 0;  ///< the stages before it have frozen units only and run no backward
  /// Messages to one neighbour that may be under way when the computation of the next one starts.
  int sends_in_flight = 2;
  /// Two micro-batches take turns, so that one computes while rows of the other pass between ranks: without stages their
  /// forwards, then their backwards; in a pipeline a backward and the next forward.
  bool overlap_exchanges = false;
};

struct StepOptions {
  ProgramKind kind = ProgramKind::train;
  int micro_batches = 1;
  bool ordered = false;       ///< sum the gradients of micro-batches in one fixed binary tree
  bool update_state = false;  ///< change the units of state by the tallies of the step
  CostContext cost;           ///< of one micro-batch
  RecomputePolicy recompute;
  GatherPolicy gather;
  ReducePolicy reduce;
  OffloadPolicy offload;
  PipelineOptions pipeline;
  std::vector<UnitSlots> optimizer_slots;  ///< of each unit; if there are none given, adamw_slots()
  std::vector<int64_t> update_workspace;   ///< of each unit: bytes; if there are none given, 0
  int64_t batch_bytes_per_token = 24;      ///< tokens, labels, positions
  int64_t kv_cache_tokens = 0;             ///< generation: capacity over all sequences
  int64_t sequences = 1;                   ///< generation: rows of logits
};

}  // namespace stepforge
