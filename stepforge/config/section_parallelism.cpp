// SPDX-License-Identifier: Apache-2.0
// Sections [parallelism] and [comm].
#include "stepforge/config/sections.h"

namespace stepforge {

namespace {

SchemaOf<PrefetchListConfig> prefetch_list_table() {
  SchemaOf<PrefetchListConfig> schema;
  schema
      .field("unit", &PrefetchListConfig::unit,
             {.doc = "The unit that computes: embedding, layers.0 and so on, or head.", .non_empty = true})
      .field("forward", &PrefetchListConfig::forward,
             {.doc = "Units whose next gather starts when its forward does."})
      .field("backward", &PrefetchListConfig::backward,
             {.doc = "Units whose next gather starts when its backward does."});
  return schema;
}

}  // namespace

SchemaOf<ParallelismConfig> parallelism_section() {
  SchemaOf<ParallelismConfig> schema;
  schema
      .field("data_parallel_replicate_degree", &ParallelismConfig::data_parallel_replicate_degree,
             {.doc = "Copies of the model that read different rows; -1 = as many as there are ranks left.",
              .unit = "ranks",
              .min = 1,
              .max = 1 << 24,
              .special = -1})
      .field(
          "data_parallel_shard_degree", &ParallelismConfig::data_parallel_shard_degree,
          {.doc =
               "Ranks that read different rows and among which weights, gradients and moments of one copy of "
               "the model are cut; -1 = as many as there are ranks left.",
           .unit = "ranks",
           .min = 1,
           .max = 1 << 24,
           .special = -1})
      .field("fsdp_reshard_after_forward", &ParallelismConfig::fsdp_reshard_after_forward,
             {.doc = "When gathered weights are given back: after each use (always, default), after each use "
                     "of one unit in "
                     "fsdp_reshard_every_n (every_n), or after the last use of the step (never)."})
      .field("fsdp_reshard_every_n", &ParallelismConfig::fsdp_reshard_every_n,
             {.doc = "With fsdp_reshard_after_forward every_n: one unit in so many is given back.",
              .unit = "units",
              .min = 1,
              .max = 10000})
      .field("fsdp_partition", &ParallelismConfig::fsdp_partition,
             {.doc = "How a unit is sharded: equal intervals of all its elements (flat), whole tensors "
                     "(by_tensor), "
                     "or equal slices of the rows of each tensor (by_dim)."})
      .field("fsdp_forward_prefetch", &ParallelismConfig::fsdp_forward_prefetch,
             {.doc = "Gathers of sharded weights that run ahead of the forward.",
              .unit = "units",
              .min = 0,
              .max = 10000})
      .field("fsdp_backward_prefetch", &ParallelismConfig::fsdp_backward_prefetch,
             {.doc = "Gathers of sharded weights that run ahead of the backward.",
              .unit = "units",
              .min = 0,
              .max = 10000})
      .tables("fsdp_prefetch_lists", &ParallelismConfig::fsdp_prefetch_lists, prefetch_list_table(),
              "What is gathered while a unit computes, instead of the next ones: one table {unit, forward, "
              "backward} per unit; an empty list leaves the distance.")
      .field("fsdp_reduce_in_flight", &ParallelismConfig::fsdp_reduce_in_flight,
             {.doc = "Whole gradients of sharded weights that are in memory for their reduction while the "
                     "computation goes on.",
              .unit = "units",
              .min = 1,
              .max = 10000})
      .field(
          "fsdp_reduce_each_micro_batch", &ParallelismConfig::fsdp_reduce_each_micro_batch,
          {.doc = "Whether gradients of sharded weights are reduced after each micro-batch, which takes less "
                  "memory and more traffic than after the last one."})
      .field("fsdp_cpu_offload", &ParallelismConfig::fsdp_cpu_offload,
             {.doc = "Whether weights, gradients and moments live in the memory of the host, and are on the "
                     "device only while they are gathered, reduced or updated."});
  return schema;
}

SchemaOf<CommConfig> comm_section() {
  SchemaOf<CommConfig> schema;
  schema
      .field(
          "backend", &CommConfig::backend,
          {.doc = "What carries the traffic: shared memory among ranks of one host, gloo (TCP) among hosts, "
                  "nccl among GPUs; auto takes shared memory for groups on one host and gloo for others."})
      .field(
          "interface", &CommConfig::interface,
          {.doc = "Network interface for gloo, as in \"eth0\"; \"\" = the one that leads to rank 0's host."})
      .field("init_timeout", &CommConfig::init_timeout,
             {.doc = "Longest wait for the other ranks at the start.",
              .unit = "seconds",
              .max = 1e6,
              .above = 0})
      .field("train_timeout", &CommConfig::train_timeout,
             {.doc = "Longest wait for another rank in one collective of a step.",
              .unit = "seconds",
              .max = 1e6,
              .above = 0});
  return schema;
}

}  // namespace stepforge
