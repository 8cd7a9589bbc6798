// SPDX-License-Identifier: Apache-2.0
// Sections [parallelism] and [comm].
#include "stepforge/config/sections.h"

namespace stepforge {

namespace {

SchemaOf<PrefetchListConfig> prefetch_list_table() {
  return SchemaOf<PrefetchListConfig>()
      .field("unit", &PrefetchListConfig::unit,
             "Unit whose computation starts the prefetch: embedding, layers.0, layers.1, ..., or head.",
             {.non_empty = true})
      .field("forward", &PrefetchListConfig::forward, "Units to gather when the unit's forward pass starts.")
      .field("backward", &PrefetchListConfig::backward,
             "Units to gather when the unit's backward pass starts.");
}

SchemaOf<TensorPlanRule> tensor_plan_table() {
  return SchemaOf<TensorPlanRule>()
      .field("pattern", &TensorPlanRule::pattern,
             "Regular expression searched for in parameter names; the first rule that matches counts.",
             {.non_empty = true})
      .field("style", &TensorPlanRule::style,
             "How the matching parameters are divided: not at all (replicate), by the outputs of a layer "
             "(colwise) or by its inputs (rowwise).");
}

SchemaOf<StageConfig> stage_table() {
  return SchemaOf<StageConfig>().field(
      "blocks", &StageConfig::blocks,
      "Blocks of the stage, in the order of the model: embedding, layers.0, layers.1, ..., head.",
      {.non_empty = true});
}

}  // namespace

SchemaOf<ParallelismConfig> parallelism_section() {
  return SchemaOf<ParallelismConfig>()
      .field("data_parallel_replicate_degree", &ParallelismConfig::data_parallel_replicate_degree,
             "Number of replicas of the model (DDP, HSDP), each of which processes different rows; -1 means "
             "all remaining ranks.",
             {.unit = "ranks", .min = 1, .max = 1 << 24, .special = -1})
      .field("data_parallel_shard_degree", &ParallelismConfig::data_parallel_shard_degree,
             "Number of ranks over which the weights, gradients and moments of a replica are sharded (FSDP), "
             "each of which processes different rows; -1 means all remaining ranks.",
             {.unit = "ranks", .min = 1, .max = 1 << 24, .special = -1})
      .field("tensor_parallel_degree", &ParallelismConfig::tensor_parallel_degree,
             "Number of ranks over which every matrix is divided (attention by heads, MLPs by hidden units, "
             "embedding and head by tokens), a divisor of model.n_heads and model.n_kv_heads.",
             {.unit = "ranks", .min = 1, .max = 1 << 24})
      .field("enable_sequence_parallel", &ParallelismConfig::enable_sequence_parallel,
             "With tensor parallelism: whether norms, dropout and residuals work on a slice of the tokens of "
             "each rank, which saves memory, instead of on all tokens on every rank.")
      .field("enable_async_tensor_parallel", &ParallelismConfig::enable_async_tensor_parallel,
             "With sequence parallelism: whether slices of tokens are sent between ranks one at a time, "
             "overlapped with the matrix products of the slices at hand, instead of all at once before or "
             "after the product.")
      .field("disable_loss_parallel", &ParallelismConfig::disable_loss_parallel,
             "With tensor parallelism: whether every rank computes the loss from the logits of "
             "the whole vocabulary, which needs more memory and communication, instead of from its "
             "part of the logits.")
      .field("plan", &ParallelismConfig::plan,
             "How tensor parallelism divides the layers and which units FSDP keeps gathered: "
             "by the plan of the program (builtin), or by the parallel plan of this name in a plug-in.",
             {.choices = {kBuiltinPlan}, .open_to = "parallel plan"})
      .tables("tensor_parallel_plan", &ParallelismConfig::tensor_parallel_plan, tensor_plan_table(),
              "With tensor parallelism: rules that replace parts of the plan, as {pattern, style} "
              "tables; a layer whose parameters are replicated is computed whole on every rank.")
      .field("context_parallel_degree", &ParallelismConfig::context_parallel_degree,
             "Number of ranks over which the tokens of each row are divided, for sequences too long for one "
             "rank; weights are sharded over these ranks too.",
             {.unit = "ranks", .min = 1, .max = 1 << 24})
      .field("context_parallel_method", &ParallelismConfig::context_parallel_method,
             "How attention sees the other tokens of a row: gather all keys and values (allgather), "
             "pass them from rank to rank during attention (ring), exchange tokens for heads (ulysses), "
             "which needs a head for each rank, or ulysses within groups of ulysses_degree ranks and a "
             "ring across the groups (hybrid).")
      .field("ulysses_degree", &ParallelismConfig::ulysses_degree,
             "With context_parallel_method hybrid: number of neighbouring ranks that exchange tokens for "
             "heads, a divisor of context_parallel_degree.",
             {.unit = "ranks", .min = 2, .max = 1 << 24})
      .field("context_parallel_load_balance", &ParallelismConfig::context_parallel_load_balance,
             "Which tokens a rank has: a chunk from each half of the row, so that all ranks have the same "
             "work (head_tail), or one contiguous range (none).")
      .field("expert_parallel_degree", &ParallelismConfig::expert_parallel_degree,
             "Number of ranks over which the experts of each layer are spread, a divisor of the product of "
             "data_parallel_shard_degree, context_parallel_degree and tensor_parallel_degree.",
             {.unit = "ranks", .min = 1, .max = 1 << 24})
      .field("expert_tensor_parallel_degree", &ParallelismConfig::expert_tensor_parallel_degree,
             "Number of ranks over which the hidden units of each expert are divided: "
             "1 or tensor_parallel_degree; in the latter case expert_parallel_degree must divide "
             "data_parallel_shard_degree times context_parallel_degree.",
             {.unit = "ranks", .min = 1, .max = 1 << 24})
      .field(
          "expert_parallel_dispatcher", &ParallelismConfig::expert_parallel_dispatcher,
          "With expert parallelism: how tokens reach the ranks of their experts: "
          "each rank sends one row per chosen expert to the rank that has it (alltoall), or all ranks of "
          "the group gather all tokens, compute the rows of their own experts, and reduce-scatter the sums "
          "(allgather), which moves less if a token takes more experts than the group has ranks.")
      .field("expert_parallel_overlap", &ParallelismConfig::expert_parallel_overlap,
             "With expert parallelism: whether two micro-batches take turns, so that one computes while "
             "tokens of the other are on their way; needs memory for the activations of both, and two "
             "micro-batches per step or a pipeline.")
      .field("pipeline_parallel_degree", &ParallelismConfig::pipeline_parallel_degree,
             "Number of ranks over which the layers of the model are divided into pipeline stages.",
             {.unit = "ranks", .min = 1, .max = 1 << 24})
      .field("pipeline_parallel_schedule", &ParallelismConfig::pipeline_parallel_schedule,
             "Order in which a rank of the pipeline computes micro-batches; Interleaved1F1B, "
             "InterleavedZeroBubble, ZBVZeroBubble and DualPipeV have several stages on each rank.",
             {.choices = {"GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble",
                          "ZBVZeroBubble", "DualPipeV"},
              .open_to = "pipeline schedule"})
      .field("pipeline_parallel_schedule_csv", &ParallelismConfig::pipeline_parallel_schedule_csv,
             "File with a custom schedule instead, in PyTorch's format of actions: "
             "one line per rank, such as 0F0,0F1,0B0,0B1.")
      .field("pipeline_parallel_microbatch_size", &ParallelismConfig::pipeline_parallel_microbatch_size,
             "With a pipeline: number of rows of a micro-batch, a divisor of training.local_batch_size; "
             "0 means the largest one that gives a step two micro-batches per rank of the pipeline, "
             "or else 1; with a schedule file it means local_batch_size.",
             {.unit = "rows", .min = 0, .max = 1 << 24})
      .field("pipeline_parallel_layers_per_stage", &ParallelismConfig::pipeline_parallel_layers_per_stage,
             "Number of layers in a stage, which sets the number of stages; 0 means the fewest stages that "
             "the schedule takes, balanced by computation.",
             {.unit = "layers", .min = 0, .max = 1 << 20})
      .field("pipeline_parallel_first_stage_less_layers",
             &ParallelismConfig::pipeline_parallel_first_stage_less_layers,
             "Number of layers that the embedding counts for when layers are spread evenly over stages; -1 "
             "means that stages are balanced by computation.",
             {.unit = "layers", .min = 0, .max = 1 << 20, .special = -1})
      .field("pipeline_parallel_last_stage_less_layers",
             &ParallelismConfig::pipeline_parallel_last_stage_less_layers,
             "Number of layers that the head counts for when layers are spread evenly over stages; -1 means "
             "that stages are balanced by computation.",
             {.unit = "layers", .min = 0, .max = 1 << 20, .special = -1})
      .tables("pipeline_parallel_stages", &ParallelismConfig::pipeline_parallel_stages, stage_table(),
              "Custom stages in order, one table {blocks} per stage, instead of balanced ones.")
      .field("fsdp_reshard_after_forward", &ParallelismConfig::fsdp_reshard_after_forward,
             "When gathered weights are freed: after each use (always, default), after each use but only of "
             "every n-th unit (every_n), or after their last use in the step (never).")
      .field("fsdp_reshard_every_n", &ParallelismConfig::fsdp_reshard_every_n,
             "With fsdp_reshard_after_forward every_n: interval between resharded units; "
             "2 means every second unit.",
             {.unit = "units", .min = 1, .max = 10000})
      .field("fsdp_partition", &ParallelismConfig::fsdp_partition,
             "How a unit is sharded: equal intervals of its flat buffer (flat), whole tensors (by_tensor), "
             "or equal slices of each tensor along its first dimension (by_dim).")
      .field("fsdp_forward_prefetch", &ParallelismConfig::fsdp_forward_prefetch,
             "Number of units that are gathered ahead of the forward pass.",
             {.unit = "units", .min = 0, .max = 10000})
      .field("fsdp_backward_prefetch", &ParallelismConfig::fsdp_backward_prefetch,
             "Number of units that are gathered ahead of the backward pass.",
             {.unit = "units", .min = 0, .max = 10000})
      .tables("fsdp_prefetch_lists", &ParallelismConfig::fsdp_prefetch_lists, prefetch_list_table(),
              "Units to prefetch while a given unit computes, instead of the next ones: one table {unit, "
              "forward, backward} per unit, where an empty list keeps the default.")
      .field("fsdp_reduce_in_flight", &ParallelismConfig::fsdp_reduce_in_flight,
             "Maximum number of units whose unsharded gradients are kept while their reduction overlaps "
             "with computation.",
             {.unit = "units", .min = 1, .max = 10000})
      .field("fsdp_reduce_each_micro_batch", &ParallelismConfig::fsdp_reduce_each_micro_batch,
             "Whether to reduce gradients after every micro-batch instead of once per step, which needs less "
             "memory and more communication.")
      .field("fsdp_cpu_offload", &ParallelismConfig::fsdp_cpu_offload,
             "Whether to keep sharded weights, gradients and moments in host memory and copy them to the "
             "device only while they are gathered, reduced or updated.");
}

SchemaOf<CommConfig> comm_section() {
  return SchemaOf<CommConfig>()
      .field("backend", &CommConfig::backend,
             "Communication backend: shared_memory between ranks of one host, gloo (TCP) between hosts, nccl "
             "between GPUs; auto uses shared memory for groups on one host and gloo for all others.")
      .field(
          "interface", &CommConfig::interface,
          "Network interface for gloo, such as eth0; empty means the interface that reaches rank 0's host.")
      .field("init_timeout", &CommConfig::init_timeout,
             "Maximum time to wait for all ranks to connect at the start.",
             {.unit = "seconds", .max = 1e6, .above = 0})
      .field("train_timeout", &CommConfig::train_timeout,
             "Maximum time to wait for other ranks in a collective during training.",
             {.unit = "seconds", .max = 1e6, .above = 0});
}

}  // namespace stepforge
