// SPDX-License-Identifier: Apache-2.0
// Ranks as threads, each on a simulated device of its own.
#pragma once

#include <string>
#include <vector>

#include "stepforge/sim/machine.h"
#include "tests/train/ranks.h"

namespace stepforge::testing {

/// `prepare` may change a trainer before it is built. `failures`: of each rank, "" if it succeeded.
struct DeviceRun {
  std::vector<Records> records;
  std::vector<std::string> failures;
};

inline DeviceRun run_on(const std::string& device, int ranks, const Strings& options,
                        const RankThreads::Prepare& prepare = {}) {
  const TempFolder folder;
  RankThreads threads(ranks);
  DeviceRun run;
  run.records = threads.run(
      [&](int) {
        return job(folder, "run", Strings{"training.device=" + device, "kernels.reference=true"} + options);
      },
      [&](TestRun& of_rank, int rank) {
        of_rank.trainer().ranks_on_host = ranks;
        if (prepare) prepare(of_rank, rank);
      });
  run.failures = threads.failures;
  return run;
}

/// The options of layouts of every kind, for `ranks` ranks.
struct SimLayout {
  std::string name;
  int ranks;
  Strings options;
};

}  // namespace stepforge::testing
