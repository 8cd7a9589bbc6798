#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "stepforge/base/format.h"
#include "stepforge/modelspec/flat_layout.h"
#include "stepforge/step/passes.h"

namespace stepforge {

namespace {

constexpr int64_t kMasterBytes = 4;       // masters and gradients are fp32
constexpr int64_t kPartialSumBytes = 8;   // fp64, of each rank, or of each kUnitBorder elements if ordered
constexpr int64_t kLabelCountBytes = 16;  // labels, and whether a rank was told to stop
constexpr int64_t kLossBytes = 8;         // fp64, of each micro-batch; and each rank's mean

class BufferWriter {
 public:
  BufferWriter(StepProgram& program, const ModelSpec& model, const StepOptions& options)
      : program_(program), model_(model), options_(options) {
    const auto shards = static_cast<int>(options.data_parallel.shard_ranks.size());
    for (const UnitSpec& unit : model.units) {
      const ShardLayout layout(unit, options.partition, shards);
      shard_elements_.push_back(layout.shard_size());
      joined_elements_.push_back(layout.joined_size());
      gathered_elements_.push_back(layout.gathered().size);
    }
    for (std::size_t u = 0; u < program.units.size(); ++u) {
      program.units[u].gathered_bytes = joined_elements_[u] * dtype_bytes(options.gather.dtype);
      program.units[u].reduced_bytes = joined_elements_[u] * dtype_bytes(options.reduce.dtype);
    }
    for (std::size_t b = 0; b < model.blocks.size(); ++b) {
      costs_.push_back(
          block_cost(model.blocks[b].regions, options.cost, program.blocks[b].recomputed_regions));
    }
    has_backward_.resize(model.blocks.size(), false);
    for (const Operation& operation : program.operations)
      if (operation.kind == OpKind::backward) has_backward_[at(operation.block)] = true;
  }

  void write() {
    add_persistent();
    for (Operation& operation : program_.operations) assign(operation);
  }

 private:
  /// What a buffer is for: (kind, block or unit, micro-batch or level).
  using Key = std::tuple<BufferKind, int, int>;

  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  void add_persistent() {
    const auto add = [this](BufferKind kind, const std::string& owner, int64_t bytes) {
      program_.buffers.push_back({.name = format("{} {}", buffer_kind_name(kind), owner),
                                  .kind = kind,
                                  .bytes = bytes,
                                  .persistent = true});
    };
    for (std::size_t u = 0; u < model_.units.size(); ++u) {
      const bool trains = program_.kind == ProgramKind::train && model_.units[u].trainable;
      const StateParts parts{.weights = true, .gradients = trains, .optimizer = trains};
      if (program_.units[u].offloaded) {
        add(BufferKind::host, model_.units[u].name, state_bytes(u, parts));
        continue;
      }
      for (const BufferKind kind : kinds_of(parts)) add(kind, model_.units[u].name, state_bytes(u, kind));
    }
    if (program_.kind == ProgramKind::generate && options_.kv_cache_tokens > 0) {
      add(BufferKind::kv_cache, model_.family,
          2 * model_.layers * model_.kv_heads * model_.head_dim * options_.kv_cache_tokens *
              dtype_bytes(options_.cost.compute));
    }
  }

  /// Of this rank's part of the unit's state.
  int64_t state_bytes(std::size_t unit, BufferKind kind) const {
    return shard_elements_[unit] *
           (kind == BufferKind::optimizer ? options_.optimizer_bytes_per_element : kMasterBytes);
  }
  int64_t state_bytes(std::size_t unit, const StateParts& parts) const {
    int64_t bytes = 0;
    for (const BufferKind kind : kinds_of(parts)) bytes += state_bytes(unit, kind);
    return bytes;
  }

  /// A buffer that starts at `operation`. Returns its bytes.
  int64_t allocate(Operation& operation, const Key& key, const std::string& name, int64_t bytes) {
    const BufferKind kind = std::get<0>(key);
    live_[key] = static_cast<int>(program_.buffers.size());
    operation.allocates.push_back(live_[key]);
    program_.buffers.push_back(
        {.name = format("{} {}", buffer_kind_name(kind), name), .kind = kind, .bytes = bytes});
    return bytes;
  }

  void read(Operation& operation, const Key& key) const {
    if (const auto found = live_.find(key); found != live_.end()) operation.reads.push_back(found->second);
  }

  std::string place(int block, int micro_batch) const {
    return format("{} m{}", program_.blocks[at(block)].name, micro_batch);
  }

  int64_t bundle_bytes(int block) const {
    int64_t width = 0;
    for (const BundleEntry& entry : model_.blocks[at(block)].outputs) width += entry.width;
    return options_.cost.tokens * width * dtype_bytes(options_.cost.compute);
  }

  int64_t allocate_bundle(Operation& operation) {
    const int b = operation.block;
    const int m = operation.micro_batch;
    return allocate(operation, {BufferKind::bundle, b, m}, place(b, m), bundle_bytes(b));
  }

  int64_t allocate_graph(Operation& operation) {
    const int b = operation.block;
    const int m = operation.micro_batch;
    return allocate(operation, {BufferKind::graph, b, m}, place(b, m), costs_[at(b)].saved_bytes);
  }

  /// The gradient of the block's input, if a block below wants it.
  int64_t allocate_input_gradient(Operation& operation) {
    const int below = operation.block - 1;
    if (below < 0 || !has_backward_[at(below)]) return 0;
    const int m = operation.micro_batch;
    return allocate(operation, {BufferKind::bundle_gradient, below, m}, place(below, m), bundle_bytes(below));
  }

  void assign(Operation& operation) {
    if (operation.kind == OpKind::load_batch) {
      const int m = operation.micro_batch;
      allocate(operation, {BufferKind::batch, -1, m}, format("m{}", m),
               options_.cost.tokens * options_.batch_bytes_per_token);
    } else if (operation.block >= 0) {
      assign_compute(operation);
    } else if (operation.unit >= 0) {
      assign_unit(operation);
    } else {
      assign_whole_step(operation);
    }
  }

  void assign_whole_step(Operation& operation) {
    const DataParallel& place = options_.data_parallel;
    switch (operation.kind) {
      case OpKind::count_labels:
        operation.bytes = kLabelCountBytes;
        break;
      case OpKind::reduce_loss:
        operation.bytes =
            static_cast<int64_t>(place.loss_ranks.size()) * (program_.micro_batches + 1) * kLossBytes;
        break;
      case OpKind::gradient_norm:
        if (operation.group < 0) {
          operation.bytes = trainable_sum(shard_elements_) * kMasterBytes;
        } else {
          const auto ranks = static_cast<int64_t>(place.shard_ranks.size());
          operation.bytes =
              kPartialSumBytes * (options_.ordered ? trainable_sum(joined_elements_) / kUnitBorder : ranks);
          operation.workspace = operation.bytes;
        }
        break;
      default:
        break;
    }
  }

  int64_t trainable_sum(const std::vector<int64_t>& unit_elements) const {
    int64_t sum = 0;
    for (std::size_t u = 0; u < unit_elements.size(); ++u)
      sum += program_.units[u].trainable ? unit_elements[u] : 0;
    return sum;
  }

  void assign_compute(Operation& operation) {
    const int b = operation.block;
    const int m = operation.micro_batch;
    const BlockCost& cost = costs_[at(b)];
    read(operation, {BufferKind::batch, -1, m});
    read(operation, {BufferKind::bundle, b - 1, m});
    int64_t peak = 0;       // of everything that comes to life while it runs
    int64_t allocated = 0;  // of that, what has a buffer of its own
    operation.flops = cost.forward_flops;
    switch (operation.kind) {
      case OpKind::forward:
        peak = operation.keep_graph ? cost.forward_peak_bytes : cost.inference_peak_bytes;
        allocated = allocate_bundle(operation) + (operation.keep_graph ? allocate_graph(operation) : 0);
        break;
      case OpKind::recompute:
        peak = cost.forward_peak_bytes;
        allocated = allocate_graph(operation);
        break;
      case OpKind::backward:
        read(operation, {BufferKind::graph, b, m});
        read(operation, {BufferKind::bundle_gradient, b, m});
        peak = cost.backward_peak_bytes;
        operation.flops = cost.backward_flops;
        allocated = allocate_input_gradient(operation);
        break;
      case OpKind::loss_forward_backward:
        operation.flops = cost.forward_flops + cost.backward_flops;
        peak = cost.forward_peak_bytes + cost.backward_peak_bytes;  // chunk by chunk, both at once
        allocated = allocate_input_gradient(operation);
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

  /// The copies of an offloaded unit's state on the device.
  void assign_state(Operation& operation) {
    const int u = operation.unit;
    const auto use = [&](BufferKind kind, bool begins) {
      if (begins)
        allocate(operation, {kind, u, -1}, program_.units[at(u)].name, state_bytes(at(u), kind));
      else
        read(operation, {kind, u, -1});
    };
    switch (operation.kind) {
      case OpKind::reload_start:
      case OpKind::offload_start:
        for (const BufferKind kind : kinds_of(operation.parts))
          use(kind, operation.kind == OpKind::reload_start);
        operation.bytes = state_bytes(at(u), operation.parts);
        return;
      case OpKind::gather_start:
        use(BufferKind::weights, false);
        return;
      case OpKind::reduce_start:
        use(BufferKind::gradients, !operation.accumulate);
        return;
      case OpKind::all_reduce_start:
        use(BufferKind::gradients, false);
        return;
      case OpKind::update:
        use(BufferKind::weights, false);
        use(BufferKind::gradients, false);
        use(BufferKind::optimizer, false);
        return;
      default:
        return;
    }
  }

  void assign_unit(Operation& operation) {
    if (program_.units[at(operation.unit)].offloaded) assign_state(operation);
    const int u = operation.unit;
    const std::string& name = program_.units[at(u)].name;
    const int64_t shard = shard_elements_[at(u)];
    const int64_t joined = joined_elements_[at(u)];
    const int64_t elements = gathered_elements_[at(u)];
    const bool copied = options_.partition.kind == Partition::Kind::by_dim && joined > shard;
    const int64_t sent_bytes = dtype_bytes(options_.reduce.dtype);
    const bool rounded = options_.reduce.dtype != DType::f32;
    const Key slot{BufferKind::gather_slot, u, -1};
    const Key level{BufferKind::gradient_level, u, operation.level};
    const Key whole{BufferKind::whole_gradient, u, -1};
    switch (operation.kind) {
      case OpKind::gather_start:
        allocate(operation, slot, name, elements * dtype_bytes(options_.gather.dtype));
        operation.bytes = program_.units[at(u)].gathered_bytes;
        operation.workspace = copied ? operation.bytes : 0;
        break;
      case OpKind::gather_wait:
      case OpKind::release:
        read(operation, slot);
        break;
      case OpKind::start_gradient:
        if (program_.units[at(u)].reduces()) allocate(operation, whole, name, elements * kMasterBytes);
        break;
      case OpKind::reduce_start:
        read(operation, whole);
        operation.bytes = program_.units[at(u)].reduced_bytes;
        if (joined == shard) break;  // one rank: nothing travels
        if (copied || rounded) operation.workspace += operation.bytes;
        if (copied || rounded || operation.accumulate) operation.workspace += shard * kMasterBytes;
        if (rounded) operation.workspace += shard * sent_bytes;
        break;
      case OpKind::reduce_wait:
        read(operation, whole);
        break;
      case OpKind::all_reduce_start:
        operation.bytes = shard * sent_bytes;
        operation.workspace = rounded ? operation.bytes : 0;
        break;
      case OpKind::stash_gradient:
        read(operation, whole);
        allocate(operation, level, format("{} level {}", name, operation.level), elements * kMasterBytes);
        operation.bytes = 2 * elements * kMasterBytes;
        break;
      case OpKind::add_gradient:
        operation.bytes = 3 * elements * kMasterBytes;
        read(operation, level);
        break;
      case OpKind::update:  // reads masters, gradient and state, writes masters and state
        operation.bytes = shard * (3 * kMasterBytes + 2 * options_.optimizer_bytes_per_element);
        break;
      default:
        break;
    }
  }

  StepProgram& program_;
  const ModelSpec& model_;
  const StepOptions& options_;
  std::vector<int64_t> shard_elements_;     // of each unit
  std::vector<int64_t> joined_elements_;    // of all its shards
  std::vector<int64_t> gathered_elements_;  // of a gathered copy
  std::vector<BlockCost> costs_;
  std::vector<bool> has_backward_;
  std::map<Key, int> live_;
};

}  // namespace

void free_after_last_use(StepProgram& program) {
  std::vector<int> last_use(program.buffers.size(), -1);
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    for (const int buffer : program.operations[i].allocates)
      last_use[static_cast<std::size_t>(buffer)] = static_cast<int>(i);
    for (const int buffer : program.operations[i].reads)
      last_use[static_cast<std::size_t>(buffer)] = static_cast<int>(i);
  }
  for (std::size_t buffer = 0; buffer < last_use.size(); ++buffer) {
    if (last_use[buffer] >= 0 && !program.buffers[buffer].persistent) {
      program.operations[static_cast<std::size_t>(last_use[buffer])].frees.push_back(
          static_cast<int>(buffer));
    }
  }
}

void buffer_pass(StepProgram& program, const ModelSpec& model, const StepOptions& options) {
  BufferWriter(program, model, options).write();
  free_after_last_use(program);
}

}  // namespace stepforge
