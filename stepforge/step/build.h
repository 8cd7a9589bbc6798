// Writes the step program of one rank from a model's specification: a base list, then small passes over it
// (step/passes.h).
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

/// What runs again in backward instead of being kept. The head never does: its gradients come from its
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

/// What is gathered while a unit computes, instead of what the distances say. An empty list leaves the
/// distance.
struct PrefetchList {
  std::string unit;
  std::vector<std::string> forward;   ///< units whose next gather starts when this one's forward does
  std::vector<std::string> backward;  ///< ... or its backward
};

/// Which gathers run ahead of the computation that needs them.
struct PrefetchPolicy {
  PrefetchPolicy() = default;
  /// The same distance in both directions.
  PrefetchPolicy(int distance) : forward(distance), backward(distance) {}

  int forward = 0;   ///< how many gathers start when the forward of a unit does, beyond its own
  int backward = 0;  ///< ... or the backward; the head's loss_forward_backward counts as that
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
  int in_flight = 1;              ///< at most so many whole gradients wait for their reduction to end
  bool each_micro_batch = false;  ///< reduced after each micro-batch, added up in the shards; not if ordered
  DType dtype = DType::f32;       ///< in which they travel
};

/// Whether the state of units (masters, gradients, optimizer) lives in the memory of the host. Then it is
/// copied to the device for as long as a gather, a reduction or an update needs it.
struct OffloadPolicy {
  bool state = false;
  int prefetch = 1;  ///< how many units' state is on its way to the device while another is updated
};

/// The groups with more than one rank, as a program carries them.
std::vector<ProgramGroup> groups_of(const DataParallel& place);

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
  Partition partition = {};  ///< of each unit over the ranks of a shard group; an interval if ordered
  int64_t optimizer_bytes_per_element = 8;  ///< AdamW: two fp32 moments
  int64_t batch_bytes_per_token = 24;       ///< tokens, labels, positions
  int64_t kv_cache_tokens = 0;              ///< generation: capacity over all sequences
  int64_t sequences = 1;                    ///< generation: rows of logits
};

/// The program's blocks and units have the model's indices; its buffers begin with the persistent ones.
///
/// Which buffers the operations carry (m: micro-batch, b: block):
///   load_batch m           allocates batch(m)
///   forward b,m            reads batch(m), bundle(b-1,m); allocates bundle(b,m), and graph(b,m) if
///   keep_graph recompute b,m          reads batch(m), bundle(b-1,m); allocates graph(b,m)
///   loss_forward_backward  reads batch(m), bundle(b-1,m); allocates bundle_gradient(b-1,m)
///   loss, logits           reads batch(m), bundle(b-1,m)
///   backward b,m           reads batch(m), bundle(b-1,m), graph(b,m), bundle_gradient(b,m); allocates
///                          bundle_gradient(b-1,m)
///   gather_start u         allocates u's gather_slot; gather_wait and release read it, release frees it
///   stash_gradient u,l     allocates u's gradient_level l; add_gradient u,l reads and frees it
///   start_gradient u       of a sharded or offloaded unit allocates its whole_gradient; stash_gradient reads
///                          and frees it, or reduce_start reads it and reduce_wait reads and frees it
///   reload_start u         allocates weights, gradients or optimizer of u, which offload_start reads; an
///                          offloaded unit's reduce_start allocates its gradients, gather_start reads its
///                          weights
/// and every buffer is freed by its last reader: so backward b frees graph(b,m), bundle_gradient(b,m) and,
/// since nothing below needs its input any more, bundle(b-1,m). bundle(b,m) is what block b returns,
/// bundle_gradient(b,m) the gradient of that. A graph is what autograd saved; it must not hold the block's
/// output or input, which are buffers of their own. Blocks below the lowest trainable unit run without graph
/// and have no backward.
///
/// Groups "dp_shard", "dp_replicate" and "loss" are there if they have more than one rank. Persistent buffers
/// are of this rank's shard; gather slots, whole gradients and levels of the whole unit, padded as the cut
/// wants it (ShardLayout::gathered).
///
/// Throws UsageError if the options do not fit the model: no micro-batch, nothing to train, unknown names.
StepProgram build_step(const ModelSpec& model, const StepOptions& options);

}  // namespace stepforge
