// SPDX-License-Identifier: Apache-2.0
// How evenly routers use their experts, over the steps between two log records.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "stepforge/comm/communicator.h"
#include "stepforge/config/config.h"
#include "stepforge/layout/parallel_dims.h"
#include "stepforge/metrics/record.h"
#include "stepforge/storage/unit_store.h"
#include "stepforge/train/router_tally.h"

namespace stepforge {

/// Nothing is exchanged with other ranks before a record is asked for.
class RouterMonitor {
 public:
  /// `config` is of the whole job; `store` holds the corrections of this rank's layers, if there are any.
  RouterMonitor(const Config& config, const ParallelDims& dims, const ModelStore& store);

  void add(const RouterReport& report) { tally_.add(report); }
  /// Adds what metrics.router asks for (metrics/names.h), and the losses of routers, if they have some, and starts again:
  /// the same values on all ranks of the job, which call it together. `ranks` is null for a single one. Without a token that
  /// counts, nothing is added.
  void log(Communicator* ranks, MetricsRecord& record);

 private:
  /// fp64 on the host, over all ranks. One row for each layer with experts: the columns of the tally, the sum of the norms of
  /// its correction over the ranks that hold it, and the number of these ranks.
  at::Tensor take(Communicator* ranks);

  const Config& config_;
  const ModelStore& store_;
  std::vector<int64_t> layers_;  ///< with experts, of the whole model and of multi-token prediction
  int64_t experts_;
  int64_t copies_;  ///< ranks that compute the same tokens
  int64_t spread_;  ///< ranks among which the experts of a layer are divided
  RouterTally tally_;
};

/// Null if there is nothing to log: no layer has experts, or metrics.router is off and routers have no losses.
std::unique_ptr<RouterMonitor> make_router_monitor(const Config& config, const ParallelDims& dims,
                                                   const ModelStore& store);

}  // namespace stepforge
