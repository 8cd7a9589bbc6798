// SPDX-License-Identifier: Apache-2.0
// The models whose speed and memory are measured.
#pragma once

#include <string>
#include <vector>

#include "stepforge/app/torch/gpu_check/trained.h"
#include "stepforge/base/json.h"

namespace stepforge::gpu_check {

struct BenchModel {
  std::string name;
  std::string note;        ///< what differs from the model of this name; "": nothing
  Strings options;         ///< overrides of the run
  bool with_peer = false;  ///< also measured in PyTorch, where compiling takes a minute
};

std::vector<BenchModel> bench_models(bool small);

/// The sizes of the model and of its steps, for a peer in another program.
Json sizes_of(const BenchModel& model);

}  // namespace stepforge::gpu_check
