// SPDX-License-Identifier: Apache-2.0
// Choices that the configuration offers and lower rooms act on. Here, because those rooms and `config` do not include each
// other; the names in TOML are in config/config.h.
#pragma once

#include <cstdint>

namespace stepforge {

/// What runs again in the backward pass instead of being kept.
enum class RecomputeMode : uint8_t {
  none,
  full,     ///< every transformer layer
  every_n,  ///< layers 0, n, 2n, ...
  blocks,   ///< the named blocks
  regions,  ///< the named regions, in every block that has them
  calls,    ///< the named calls, or all of the named kinds (modelspec/call_budget.h)
  budget,   ///< in each layer the calls that cost least, within a budget
};

/// How long a unit that is not resident stays gathered.
enum class ReshardMode : uint8_t {
  by_default,  ///< "never" in a pipeline, where "always" would gather it once for each micro-batch; otherwise "always"
  always,   ///< gathered before and released after each run of consecutive uses
  never,    ///< gathered before its first use in the step, released after its last
  every_n,  ///< "always" for units 0, n, 2n, ..., "never" for the others
};

/// How the elements of a unit are partitioned over the ranks of its shard group.
enum class PartitionKind : uint8_t {
  flat,       ///< equal intervals of the flat unit; a tensor may span several ranks
  by_tensor,  ///< whole tensors: the largest first, each to the rank with the fewest elements so far
  by_dim,     ///< equal parts of every tensor along one dimension, rounded up to whole rows
};

/// How attention reads the tokens of other context-parallel ranks.
enum class ContextMethod : uint8_t {
  allgather,  ///< keys and values of the whole rows are gathered (Llama 3, arXiv:2407.21783, section 3.3.2)
  ring,       ///< keys and values pass from rank to rank; partial results are merged (arXiv:2310.01889)
  ulysses,    ///< each rank attends with some of the heads over whole rows (arXiv:2309.14509)
  hybrid      ///< ulysses within groups of `ulysses_degree` neighbours, ring across them (arXiv:2405.07719)
};

/// How rows of tokens come to the ranks that have their experts, and results back. A device that has a way of its own adds a
/// method here, its name to config/config.h and its TokenRoutes to storage/token_dispatch.h; compilers then name each switch
/// that has no case for it.
enum class DispatchMethod : uint8_t {
  /// Each rank sends a row for each choice of its tokens to the rank of the expert (GShard, arXiv:2006.16668).
  all_to_all,
  /// All tokens and choices go to all ranks, which take the rows of their own experts. Each sums the results of every token,
  /// and a reduce-scatter adds up these sums.
  all_gather
};

/// How the frequencies of the rotary embedding are scaled for contexts longer than those of pre-training.
enum class RopeScalingType : uint8_t {
  none,
  linear,   ///< all are divided by the factor
  dynamic,  ///< scales for positions from max_position on, which no row has
  llama3,   ///< the low ones are divided (Llama 3.1)
  yarn,     ///< likewise, and queries and keys are scaled (Peng et al., "YaRN", 2023)
  longrope  ///< each is divided by a factor of its own, and queries and keys are scaled (Ding et al., "LongRoPE", 2024)
};

/// The weight of each of the n labels that count in a sample: 1, 1/n or 1/sqrt(n). The loss of a step is the
/// weighted mean over all its labels, so `sample` makes every sample count alike, however long it is, and
/// `square` is between the two (InternVL's "square averaging", XTuner's loss_reduction).
enum class LabelWeights : uint8_t { token, sample, square };

/// How documents become rows of L tokens.
enum class Packing : uint8_t {
  concat,    ///< all documents end to end, in order, cut at every L tokens (data/concat_rows.h)
  hard,      ///< the same for documents in a shuffled order
  soft,      ///< whole documents, filled up from a buffer of short ones: XTuner's pack_level "soft"
  best_fit,  ///< whole documents, each into the row that it fills best
  none,      ///< one document per row
  budget,    ///< whole documents in their order, each row filled from the next ones: VeOmni's dynamic batches
  preset,    ///< as files say (data/preset_packing.h)
};

/// What becomes of documents that are longer than a row.
enum class TooLong : uint8_t {
  cut,           ///< the packing of rows cuts the end
  drop,          ///< it is left out
  error,         ///< it is refused
  proportional,  ///< questions and answers lose their ends, in proportion; other texts are cut at the end
};

/// What the weight of a source is a share of.
enum class ShareOf : uint8_t {
  rows,
  tokens,   ///< padding does not count
  samples,  ///< documents
};

}  // namespace stepforge
