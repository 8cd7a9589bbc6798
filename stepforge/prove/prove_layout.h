// SPDX-License-Identifier: Apache-2.0
// `stepforge prove`: trains a small model whose arithmetic is exact in the layout of a configuration, with the
// ranks as threads of this process, and compares it bit for bit with one rank.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "stepforge/config/config.h"

namespace stepforge {

/// The configuration of the comparison: axes, policies, partition, recomputation, offload and accumulation are
/// those of `config`; every degree above 1 becomes 2 or 3 (that of hybrid context parallelism 2 x 2), more than 9
/// micro-batches 8 or 9, the model one of prove/exact_model.h, with adapters and the kind of head that the job has, precision fp32,
/// steps 4; sums are not ordered. Pairs of answers and judged answers are those of a file, which prove_layout() writes. Its degrees have no -1. A pipeline keeps its schedule and the stages of each rank; the schedule of a file is kept
/// as it is, with its ranks and micro-batches.
/// `world_size`: ranks of the job that `config` describes. Throws UsageError if the degrees do not fit it.
Config small_exact_job(const Config& config, int world_size);

struct LayoutProof {
  std::vector<std::string> facts;  ///< one line each: what was compared
  std::string difference;          ///< the first one; "" if there is none
  /// Options of the configuration that the small job does not have, because sums are not exact with them.
  std::vector<std::string> left_out;
};

/// Trains `job`, as small_exact_job() makes it, on all its ranks and on one, in `folder`, and compares losses,
/// gradient norms, figures of pairs, weights and moments. Throws what training throws.
LayoutProof prove_layout(const Config& job, const std::filesystem::path& folder);

/// The same for `config`, in a temporary folder. The number of threads of this process stays as it is.
LayoutProof prove_layout_of(const Config& config, int world_size);

}  // namespace stepforge
