// SPDX-License-Identifier: Apache-2.0
// The options that must not change a bit of exact training, and combinations of them.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>

#include "stepforge/base/random.h"
#include "tests/proofs/exact_model.h"

namespace stepforge::testing {

/// The choices for one option, as overrides. {} stands for the rows per rank and step.
using Axis = std::vector<Strings>;

inline const std::vector<Axis> kExactAxes = {
    {{"parallelism.fsdp_reshard_after_forward=always"},
     {"parallelism.fsdp_reshard_after_forward=never"},
     {"parallelism.fsdp_reshard_after_forward=every_n"}},
    {{"parallelism.fsdp_forward_prefetch=1", "parallelism.fsdp_backward_prefetch=1"},
     {"parallelism.fsdp_forward_prefetch=0", "parallelism.fsdp_backward_prefetch=0"},
     {"parallelism.fsdp_forward_prefetch=3", "parallelism.fsdp_backward_prefetch=2"},
     {"parallelism.fsdp_prefetch_lists=[{unit=\"embedding\", forward=[\"layers.1\"]}, "
      "{unit=\"layers.2\", forward=[\"layers.0\"], backward=[\"layers.0\", \"embedding\"]}]"}},
    {{"parallelism.fsdp_partition=flat"},
     {"parallelism.fsdp_partition=by_tensor"},
     {"parallelism.fsdp_partition=by_dim"}},
    {{"activation_checkpoint.mode=none"},
     {"activation_checkpoint.mode=full"},
     {"activation_checkpoint.mode=every_n", "activation_checkpoint.every_n=2"},
     {"activation_checkpoint.mode=regions", "activation_checkpoint.regions=[\"mlp\"]"}},
    {{"training.local_batch_size=1"}, {"training.local_batch_size={}"}},
    {{"parallelism.fsdp_reduce_each_micro_batch=false"}, {"parallelism.fsdp_reduce_each_micro_batch=true"}},
    {{"parallelism.fsdp_reduce_in_flight=1"}, {"parallelism.fsdp_reduce_in_flight=2"}},
    {{"parallelism.fsdp_cpu_offload=false"}, {"parallelism.fsdp_cpu_offload=true"}},
    {{"parallelism.enable_sequence_parallel=true"},
     {"parallelism.enable_async_tensor_parallel=true"},
     {"parallelism.enable_sequence_parallel=false"}},
    {{"parallelism.tensor_parallel_plan=[]"},
     {"parallelism.tensor_parallel_plan=[{pattern=\"layers.1.mlp|embedding\",style=\"replicate\"}]"},
     {"parallelism.tensor_parallel_plan=[{pattern=\"head|mlp\",style=\"replicate\"}]"}},
};

inline int64_t combinations() {
  int64_t count = 1;
  for (const Axis& axis : kExactAxes) count *= static_cast<int64_t>(axis.size());
  return count;
}

/// Combination number `index` of all choices, in mixed radix.
inline Strings exact_choice(int64_t data_ranks, int64_t index) {
  Strings args;
  for (const Axis& axis : kExactAxes) {
    const auto size = static_cast<int64_t>(axis.size());
    for (std::string word : axis[static_cast<size_t>(index % size)]) {
      const size_t open = word.find("{}");
      if (open != std::string::npos) word.replace(open, 2, std::to_string(kExactRows / data_ranks));
      args.push_back(word);
    }
    index /= size;
  }
  return args;
}

/// `count` combinations of choices, different ones for each key, of those that a layout `takes`.
inline std::vector<Strings> exact_choices(
    int64_t data_ranks, int key, uint64_t count,
    const std::function<bool(const Strings&)>& takes = [](const Strings&) { return true; }) {
  const Permutation order(static_cast<uint64_t>(combinations()), mix_bits(static_cast<uint64_t>(key)));
  std::vector<Strings> choices;
  for (uint64_t i = 0; choices.size() < count; ++i) {
    Strings choice = exact_choice(data_ranks, static_cast<int64_t>(order(i)));
    if (takes(choice)) choices.push_back(std::move(choice));
  }
  return choices;
}

/// Whether the ranks of tensor parallelism have all tokens where layers are whole.
inline bool has_all_tokens(const Strings& choice) {
  return std::ranges::find(choice, "parallelism.enable_sequence_parallel=false") != choice.end();
}

}  // namespace stepforge::testing
