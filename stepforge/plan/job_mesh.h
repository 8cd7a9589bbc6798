// SPDX-License-Identifier: Apache-2.0
// The degrees of parallelism of a job, and a rank's place on each axis. All functions but plan_context() throw UsageError if
// the degrees of config.parallelism do not fit the world size.
#pragma once

#include "stepforge/config/config.h"
#include "stepforge/layout/parallel_dims.h"
#include "stepforge/modelspec/context_parallel.h"
#include "stepforge/modelspec/expert_parallel.h"
#include "stepforge/modelspec/tensor_parallel.h"

namespace stepforge {

/// The degrees, without -1.
ParallelDims plan_dims(const Config& config, int world_size);

/// The number of ranks that read different rows.
int plan_data_ranks(const Config& config, int world_size);

/// How the tokens of each row are divided over ranks.
ContextParallel plan_context(const Config& config);

/// This rank's part of divided matrices.
TensorParallel plan_tensor(const Config& config, RankId rank);

/// This rank's experts of each layer.
ExpertParallel plan_experts(const Config& config, RankId rank);

}  // namespace stepforge
