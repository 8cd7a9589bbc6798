// SPDX-License-Identifier: Apache-2.0
// A run so small that a step takes milliseconds, as command-line arguments.
#pragma once

#include <filesystem>
#include <string>

#include "stepforge/base/format.h"
#include "tests/support/strings.h"

namespace stepforge::testing {

inline Strings operator+(Strings left, const Strings& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

/// A smaller debug preset: 2 layers of width 32, rows of 32 tokens, 2 micro-batches of 2 rows.
inline Strings small_run(const std::filesystem::path& run_dir) {
  return {"preset=debug",
          format("run_dir={}", run_dir.string()),
          format("data.cache_dir={}", (run_dir.parent_path() / "cache").string()),
          "data.synthetic_tokens=4096",
          "model.dim=32",
          "model.n_layers=2",
          "model.n_heads=2",
          "model.n_kv_heads=1",
          "model.ffn_dim=48",
          "training.seq_len=32",
          "training.local_batch_size=2",
          "training.global_batch_size=4",
          "training.threads=1",
          "training.steps=8"};
}

}  // namespace stepforge::testing
