// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/flat_layout.h"
#include "stepforge/modelspec/slot_layout.h"
#include "stepforge/step/effects.h"
#include "stepforge/step/exchange_cost.h"
#include "stepforge/step/passes.h"

namespace stepforge {

namespace {

constexpr int64_t kMasterBytes = 4;      // masters that are trained, gradients and optimizer state are fp32
constexpr int64_t kFactorBytes = 4;      // of a factor of weights that are codes
constexpr int64_t kPartialSumBytes = 8;  // fp64; one per rank, or per kUnitAlignment elements in ordered mode
constexpr int64_t kTallyBytes = 8;       // fp64; one per expert
// The weight of the labels, their number, the number of tokens, how many ranks must stop or lack rows, and the labels of
// the better answers of pairs.
constexpr int64_t kLabelCountBytes = 48;
constexpr int64_t kTokenBytes = 4;  // int32; a batch has the tokens further ahead too, for the embedding
constexpr int64_t kAheadWeightBytes = 8;  // the weight of the labels of one depth of multi-token prediction
constexpr int64_t kLossBytes = 8;         // fp64; one per micro-batch, and the mean of each rank

/// The number of elements of a unit in the shard of this rank, in all shards, and in a gathered copy.
struct UnitElements {
  int64_t shard = 0;
  int64_t all_shards = 0;
  int64_t gathered = 0;
  int64_t optimizer_bytes = 0;
};

class BufferWriter {
 public:
  BufferWriter(StepProgram& program, const ModelSpec& model, const RankLayout& layout,
               const StepOptions& options)
      : program_(program), model_(model), layout_(layout), options_(options) {
    for (std::size_t u = 0; u < model.units.size(); ++u) {
      const UnitLayout& unit = layout.units[u];
      const ShardLayout shards(model.units[u], unit.partition, layout.size_of(unit.shard_group));
      const UnitSpec& spec = model.units[u];
      const SlotLayout slots(
          shards, spec, options.optimizer_slots.empty() ? adamw_slots(spec) : options.optimizer_slots.at(u));
      units_.push_back({shards.shard_size(), shards.joined_size(), shards.gathered().size, slots.bytes()});
      program.units[u].gathered_bytes = units_[u].all_shards * dtype_bytes(unit.gather);
      program.units[u].reduced_bytes = units_[u].all_shards * dtype_bytes(unit.reduce);
    }
    for (std::size_t b = 0; b < model.blocks.size(); ++b)
      costs_.push_back(cost_of(model.blocks[b], program.blocks[b]));
    reads_gradient_.resize(program.values.size(), false);
    splits_backward_.resize(program.blocks.size(), false);
    for (const Operation& operation : program.operations) {
      if (operation.block < 0) continue;
      if (operation.kind == OpKind::backward_input) element(splits_backward_, operation.block) = true;
      const ProgramBlock& block = element(program.blocks, operation.block);
      if (reads_output_gradient(operation.kind))
        for (const int value : block.outputs) element(reads_gradient_, value) = true;
      if (operation.kind == OpKind::send_gradient)
        for (const int value : block.arriving) element(reads_gradient_, value) = true;
      if (operation.kind == OpKind::combine_gradient)
        for (const int value : block.returned) element(reads_gradient_, value) = true;
      if (operation.kind == OpKind::dispatch_gradient)
        for (const int value : block.inputs) element(reads_gradient_, value) = true;
    }
  }

  void write() {
    add_persistent();
    ProgramEffects effects(program_);
    for (Operation& operation : program_.operations) {
      int64_t allocated = 0;
      for (const auto& [effect, instance] : effects.own(operation)) {
        const int kind = resource_info(instance.resource).buffer;
        if (kind == kNoBuffer || effect.access == Access::bar || effects.is_persistent(instance)) continue;
        const Key key{static_cast<BufferKind>(kind), instance.owner, instance.number};
        if (!makes(effect.access, live_.contains(key)))
          read(operation, key);
        else if (is_allocated(operation, instance))
          allocated += allocate(operation, key);
      }
      if (operation.block >= 0)
        set_cost_of_block(operation, allocated);
      else
        set_cost(operation);
    }
  }

 private:
  /// Kind; block, value or unit; micro-batch or level.
  using Key = std::tuple<BufferKind, int, int>;

  BlockCost cost_of(const BlockSpec& block, ProgramBlock& planned) const {
    const BlockCost cost = block_cost(block, options_.cost, planned.recomputed_regions);
    if (!planned.recomputed_regions.empty()) {
      const BlockCost kept = block_cost(block, options_.cost);
      planned.recomputed_bytes = kept.saved_bytes - cost.saved_bytes;
      planned.recomputed_flops = cost.backward_flops - kept.backward_flops;
    }
    return cost;
  }

  static bool reads_output_gradient(OpKind kind) {
    return kind == OpKind::backward || kind == OpKind::backward_input;
  }

  /// Whether this program needs the buffer of a resource that the operation makes. See build_step().
  bool is_allocated(const Operation& operation, const Instance& instance) const {
    switch (instance.resource) {
      case Resource::weight_inputs:
        return element(splits_backward_, operation.block);
      case Resource::value_gradient:
        return element(reads_gradient_, instance.owner) || operation.kind == OpKind::receive_gradient;
      case Resource::gradient:
        return element(program_.units, instance.owner).reduces();
      default:
        return true;
    }
  }

  void add_persistent() {
    const auto add = [this](BufferKind kind, const std::string& owner, int64_t bytes) {
      program_.buffers.push_back({.name = format("{} {}", buffer_kind_name(kind), owner),
                                  .kind = kind,
                                  .bytes = bytes,
                                  .persistent = true});
    };
    for (int u = 0; u < std::ssize(model_.units); ++u) {
      const std::string& name = element(model_.units, u).name;
      const bool trains = program_.kind == ProgramKind::train && element(model_.units, u).trainable;
      const StateParts parts{.weights = true, .gradients = trains, .optimizer = trains};
      if (element(program_.units, u).offloaded) {
        add(BufferKind::host, name, state_bytes(u, parts));
        continue;
      }
      for (const BufferKind kind : kinds_of(parts)) add(kind, name, state_bytes(u, kind));
    }
    if (program_.kind == ProgramKind::generate && options_.kv_cache_tokens > 0) {
      add(BufferKind::kv_cache, model_.family,
          model_.layers * model_.kv_heads * (model_.head_dim + model_.value_dim) * options_.kv_cache_tokens *
              dtype_bytes(options_.cost.compute));
    }
  }

  /// Bytes of this rank's shard of a master, gradient or optimizer state.
  int64_t state_bytes(int unit, BufferKind kind) const {
    const UnitElements& elements = element(units_, unit);
    if (kind == BufferKind::weights) return element(model_.units, unit).stored_bytes(elements.shard);
    return kind == BufferKind::optimizer ? elements.optimizer_bytes : kMasterBytes * elements.shard;
  }
  int64_t state_bytes(int unit, const StateParts& parts) const {
    int64_t bytes = 0;
    for (const BufferKind kind : kinds_of(parts)) bytes += state_bytes(unit, kind);
    return bytes;
  }

  int64_t bytes_of(BufferKind kind, int owner) const {
    switch (kind) {
      case BufferKind::batch:
        return options_.cost.tokens *
               (options_.batch_bytes_per_token * (1 + program_.ahead) + kTokenBytes * program_.ahead);
      case BufferKind::bundle:
      case BufferKind::bundle_gradient:
        return element(program_.values, owner).bytes();
      case BufferKind::graph:
        return element(costs_, owner).saved_bytes - kept_bytes(owner) -
               (element(splits_backward_, owner) ? element(costs_, owner).queued_saved_bytes : 0);
      case BufferKind::weight_inputs:
        return element(costs_, owner).queued_saved_bytes;
      case BufferKind::weight_queue:
        return element(costs_, owner).queued_bytes - element(costs_, owner).queued_saved_bytes;
      case BufferKind::routes:
        return routes_bytes(program_, element(program_.blocks, owner));
      case BufferKind::gather_slot:
        return element(units_, owner).gathered * dtype_bytes(element(layout_.units, owner).gather);
      case BufferKind::whole_gradient:
      case BufferKind::gradient_level:
        return element(units_, owner).gathered * kMasterBytes;
      default:
        return state_bytes(owner, kind);
    }
  }

  /// The part of what the graph of a block keeps that other blocks hold as values.
  int64_t kept_bytes(int block) const {
    int64_t bytes = 0;
    for (const int value : element(program_.blocks, block).kept)
      bytes += element(program_.values, value).bytes();
    return bytes;
  }

  /// "graph layers.2 m0", "gather_slot layers.2", "gradient_level layers.2 level 1", "batch m0"
  std::string name_of(const Operation& operation, const Key& key) const {
    const auto [kind, owner, number] = key;
    std::string name(buffer_kind_name(kind));
    if (kind == BufferKind::bundle || kind == BufferKind::bundle_gradient)
      return format("{} {} m{}", name, element(program_.values, owner).name, number);
    if (operation.block >= 0) return format("{} {} m{}", name, element(program_.blocks, owner).name, number);
    if (operation.unit < 0) return format("{} m{}", name, number);
    name += " " + element(program_.units, owner).name;
    return kind == BufferKind::gradient_level ? format("{} level {}", name, number) : name;
  }

  /// A buffer whose life begins with `operation`. Returns its bytes.
  int64_t allocate(Operation& operation, const Key& key) {
    const auto [kind, owner, number] = key;
    const int64_t bytes = bytes_of(kind, owner);
    live_[key] = static_cast<int>(program_.buffers.size());
    operation.allocates.push_back(live_[key]);
    const bool gathered = kind == BufferKind::gather_slot;
    const bool passed = kind == BufferKind::bundle || kind == BufferKind::bundle_gradient;
    program_.buffers.push_back({.name = name_of(operation, key),
                                .kind = kind,
                                .bytes = bytes,
                                .dtype = gathered                      ? element(layout_.units, owner).gather
                                         : kind == BufferKind::weights ? element(model_.units, owner).master
                                                                       : DType::f32,
                                .value = passed ? owner : -1});
    return bytes;
  }

  void read(Operation& operation, const Key& key) const {
    if (const auto found = live_.find(key); found != live_.end()) operation.reads.push_back(found->second);
  }

  int64_t trainable_sum(int64_t UnitElements::* elements) const {
    int64_t sum = 0;
    for (std::size_t u = 0; u < units_.size(); ++u)
      sum += program_.units[u].trainable ? units_[u].*elements : 0;
    return sum;
  }

  /// Sets what a block with divided layers exchanges while it computes.
  void set_exchanges(Operation& operation, const BlockCost& cost) const {
    const auto& groups = element(program_.blocks, operation.block).groups;
    const bool loss = operation.kind == OpKind::loss_forward_backward;
    const bool backward = reads_output_gradient(operation.kind) || loss;
    const bool forward = loss || !backward;
    for (std::size_t axis = 0; axis < kBlockAxes; ++axis) {
      if (groups.at(axis) < 0) continue;
      int64_t bytes =
          (forward ? cost.forward_exchange.at(axis) : 0) + (backward ? cost.backward_exchange.at(axis) : 0);
      if (operation.kind == OpKind::logits) bytes = options_.sequences * model_.vocab_size * 4;
      operation.exchanges.at(axis) = {groups.at(axis), bytes};
    }
    if (operation.kind != OpKind::logits)
      operation.beside = (forward ? cost.forward_beside : 0) + (backward ? cost.backward_beside : 0);
  }

  /// The bytes of the norms that a rank sends: one norm, or in a pipeline one for each unit of the model.
  int64_t norm_bytes() const {
    return kPartialSumBytes * (layout_.pipeline_group >= 0 ? layout_.model_units : 1);
  }

  void set_message(Operation& operation, const std::vector<int>& values) const {
    for (const int value : values) operation.bytes += element(program_.values, value).bytes();
  }

  /// `allocated`: bytes of the buffers that it allocates, which are part of the measured peaks.
  void set_cost_of_block(Operation& operation, int64_t allocated) const {
    const BlockCost& cost = element(costs_, operation.block);
    if (has_trait(operation.kind, kUsesUnits)) set_exchanges(operation, cost);
    if (has_trait(operation.kind, kDispatches)) {
      const ExchangeCost exchange = exchange_cost(program_, operation);
      operation.bytes = exchange.bytes;
      operation.workspace = exchange.workspace;
      return;
    }
    int64_t peak = 0;  // bytes, buffers included
    operation.flops = cost.forward_flops;
    switch (operation.kind) {
      case OpKind::send:
      case OpKind::receive_gradient:
        return set_message(operation, element(program_.blocks, operation.block).leaving);
      case OpKind::receive:
      case OpKind::send_gradient:
        return set_message(operation, element(program_.blocks, operation.block).arriving);
      case OpKind::backward_input:
        peak = cost.backward_input_peak_bytes;
        operation.flops = cost.backward_input_flops;
        break;
      case OpKind::backward_weight:
        peak = cost.backward_weight_peak_bytes;
        operation.flops = cost.backward_weight_flops;
        break;
      case OpKind::forward:
        peak = operation.keep_graph ? cost.forward_peak_bytes : cost.inference_peak_bytes;
        break;
      case OpKind::recompute:
        peak = cost.forward_peak_bytes;
        break;
      case OpKind::backward:
        peak = cost.backward_peak_bytes;
        operation.flops = cost.backward_flops;
        break;
      case OpKind::loss_forward_backward:
        operation.flops = cost.forward_flops + cost.backward_flops;
        peak = cost.forward_peak_bytes + cost.backward_peak_bytes;  // interleaved, chunk by chunk
        break;
      case OpKind::loss:
        peak = cost.inference_peak_bytes;
        break;
      case OpKind::logits:
        peak =
            options_.sequences * (model_.vocab_size * 4 + model_.width * dtype_bytes(options_.cost.compute));
        break;
      default:
        break;
    }
    operation.workspace = std::max<int64_t>(0, peak - allocated);
  }

  /// Bytes moved and workspace of operations on a unit or on the whole step.
  void set_cost(Operation& operation) const {
    const UnitElements unit = operation.unit < 0 ? UnitElements{} : element(units_, operation.unit);
    const UnitLayout whole;
    const UnitLayout& layout = operation.unit < 0 ? whole : element(layout_.units, operation.unit);
    const bool copied = layout.partition.kind == PartitionKind::by_dim && unit.all_shards > unit.shard;
    const bool rounded = layout.reduce != DType::f32;
    const int64_t sent_bytes = dtype_bytes(layout.reduce);
    switch (operation.kind) {
      case OpKind::count_labels:
        operation.bytes = kLabelCountBytes + program_.ahead * kAheadWeightBytes;
        break;
      case OpKind::share_loss:
        operation.bytes = kLossBytes * program_.micro_batches;
        break;
      case OpKind::share_logits:
        operation.bytes = options_.sequences * model_.vocab_size * 4;
        break;
      case OpKind::join_stage_norms:
        operation.bytes = norm_bytes() * layout_.size_of(operation.group);
        break;
      case OpKind::tie_reduce:
        operation.bytes = operation.workspace = unit.shard * kMasterBytes;
        break;
      case OpKind::tie_leaf:
        operation.bytes = operation.workspace = unit.gathered * kMasterBytes;
        break;
      case OpKind::reduce_loss:
        operation.bytes = kLossBytes * layout_.size_of(operation.group) * (program_.micro_batches + 1);
        break;
      case OpKind::gradient_norm:
        if (operation.group < 0) {
          operation.bytes = trainable_sum(&UnitElements::shard) * kMasterBytes;
        } else {
          const int64_t sums = options_.ordered ? trainable_sum(&UnitElements::all_shards) / kUnitAlignment
                                                : layout_.size_of(operation.group);
          operation.workspace = operation.bytes =
              options_.ordered ? kPartialSumBytes * sums : norm_bytes() * sums;
        }
        break;
      case OpKind::join_norm:
        operation.bytes = norm_bytes() * layout_.size_of(operation.group);
        break;
      case OpKind::gather_start:
        operation.bytes = element(program_.units, operation.unit).gathered_bytes;
        operation.workspace = copied ? operation.bytes : 0;
        if (element(model_.units, operation.unit).coded_factors)
          operation.workspace += unit.shard / kCodeBlock * kFactorBytes;
        break;
      case OpKind::reduce_start:
        operation.bytes = element(program_.units, operation.unit).reduced_bytes;
        if (unit.all_shards == unit.shard) break;  // one rank
        if (copied || rounded) operation.workspace += operation.bytes;
        if (copied || rounded || operation.accumulate) operation.workspace += unit.shard * kMasterBytes;
        if (rounded) operation.workspace += unit.shard * sent_bytes;
        break;
      case OpKind::all_reduce_start:
        operation.bytes = unit.shard * sent_bytes;
        operation.workspace = rounded ? operation.bytes : 0;
        break;
      case OpKind::stash_gradient:
        operation.bytes = 2 * unit.gathered * kMasterBytes;
        break;
      case OpKind::add_gradient:
        operation.bytes = 3 * unit.gathered * kMasterBytes;
        break;
      case OpKind::update_state:  // the tally of each rank, in fp64
        operation.workspace = element(model_.units, operation.unit).elements() * kTallyBytes;
        if (operation.group >= 0) operation.bytes = operation.workspace;
        break;
      case OpKind::update:  // reads masters, gradient and state, writes masters and state
        operation.bytes = kMasterBytes * 3 * unit.shard + 2 * unit.optimizer_bytes;
        if (!options_.update_workspace.empty())
          operation.workspace = element(options_.update_workspace, operation.unit);
        break;
      case OpKind::reload_start:
      case OpKind::offload_start:
        operation.bytes = state_bytes(operation.unit, operation.parts);
        break;
      default:
        break;
    }
  }

  StepProgram& program_;
  const ModelSpec& model_;
  const RankLayout& layout_;
  const StepOptions& options_;
  std::vector<UnitElements> units_;
  std::vector<BlockCost> costs_;
  std::vector<bool> splits_backward_;  // of each block: the gradients of its weights come later
  std::vector<bool> reads_gradient_;   // of each value: an operation reads its gradient
  std::map<Key, int> live_;
};

}  // namespace

void free_after_last_use(StepProgram& program) {
  std::vector<int> last_use(program.buffers.size(), -1);
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    for (const int buffer : program.operations[i].allocates) element(last_use, buffer) = static_cast<int>(i);
    for (const int buffer : program.operations[i].reads) element(last_use, buffer) = static_cast<int>(i);
  }
  for (std::size_t buffer = 0; buffer < last_use.size(); ++buffer)
    if (last_use[buffer] >= 0 && !program.buffers[buffer].persistent)
      element(program.operations, last_use[buffer]).frees.push_back(static_cast<int>(buffer));
}

void buffer_pass(StepProgram& program, const ModelSpec& model, const RankLayout& layout,
                 const StepOptions& options) {
  BufferWriter(program, model, layout, options).write();
  free_after_last_use(program);
}

}  // namespace stepforge
