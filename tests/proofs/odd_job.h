// SPDX-License-Identifier: Apache-2.0
// A job of an ordinary model in odd sizes.
#pragma once

#include "tests/train/ranks.h"

namespace stepforge::testing {

/// Width 37, 53 hidden units, vocabulary 257. `more`: heads, and the rows of a step.
inline Strings odd_job(const std::filesystem::path& run_dir, const std::string& family, int64_t steps,
                       const Strings& more) {
  return trainer_run(run_dir) +
         Strings{"model.family=" + family,
                 "model.dim=37",
                 "model.n_layers=3",
                 "model.ffn_dim=53",
                 "training.seq_len=19",
                 "training.local_batch_size=1",
                 format("training.steps={}", steps)} +
         more;
}

}  // namespace stepforge::testing
