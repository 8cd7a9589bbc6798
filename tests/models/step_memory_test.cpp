// SPDX-License-Identifier: Apache-2.0
// The predicted peak of a whole step against the allocator's.
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "stepforge/step/memory.h"
#include "tests/models/training.h"
#include "tests/support/onednn_isa.h"

namespace stepforge::testing {
namespace {

struct MemoryCase {
  std::string name;
  std::vector<std::string> overrides;
  double tolerance = 0.05;
};

Config loaded(const std::vector<std::string>& overrides) {
  return load_config({}, overrides).config;
}

class StepMemory : public ::testing::TestWithParam<MemoryCase> {};

TEST_P(StepMemory, PredictedPeakIsThatOfTheAllocator) {
  install_cpu_allocator();
  Config config = loaded(GetParam().overrides);
  config.training.threads = at::get_num_threads();
  const int64_t before = cpu_memory().live_bytes;
  Job job(config);
  const std::vector<Batch> batches = job.cut(job.made_up_rows());
  job.step(batches);
  reset_cpu_peak();
  job.step(batches);
  const double measured = static_cast<double>(cpu_memory().peak_bytes - before);
  const double predicted = static_cast<double>(account(job.program).peak_bytes);
  RecordProperty("predicted_over_measured", std::to_string(predicted / measured));
  EXPECT_NEAR(predicted / measured, 1.0, GetParam().tolerance)
      << "predicted " << predicted << " measured " << measured;
}

const std::vector<std::string> tiny_qwen3 = {
    "model.family=qwen3",     "model.dim=96",         "model.n_layers=3",
    "model.n_heads=4",        "model.n_kv_heads=2",   "model.head_dim=32",
    "model.ffn_dim=256",      "model.vocab_size=512", "model.tie_embeddings=true",
    "model.max_position=256", "training.seq_len=128", "training.local_batch_size=4"};

std::vector<std::string> with(std::vector<std::string> base, const std::vector<std::string>& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

const std::vector<std::string> debug_preset = {"preset=debug", "model.vocab_size=257"};
const std::vector<std::string> demo_preset = {"preset=demo", "model.vocab_size=4096",
                                              "training.local_batch_size=4"};

INSTANTIATE_TEST_SUITE_P(
    Models, StepMemory,
    ::testing::Values(
        MemoryCase{"debug", debug_preset},
        MemoryCase{"debug_bf16", with(debug_preset, {"precision.compute=bf16"})},
        MemoryCase{"debug_dropout_accumulation",
                   with(debug_preset, {"model.dropout=0.1", "training.global_batch_size=16"})},
        MemoryCase{"debug_full_recompute", with(debug_preset, {"activation_checkpoint.mode=full"})},
        MemoryCase{"debug_segments", with(debug_preset, {"activation_checkpoint.mode=regions",
                                                         "activation_checkpoint.regions=[\"mlp\"]"})},
        MemoryCase{"debug_ordered", with(debug_preset, {"training.reduction=ordered"})},
        MemoryCase{"debug_small_chunk", with(debug_preset, {"training.loss_chunk=128"})},
        MemoryCase{"demo", demo_preset}, MemoryCase{"qwen3", tiny_qwen3},
        // libtorch's bf16 products on the CPU take scratch of their own, which weighs in a model this small.
        MemoryCase{"qwen3_bf16", with(tiny_qwen3, {"precision.compute=bf16"}), 0.08},
        MemoryCase{"qwen3_full_recompute", with(tiny_qwen3, {"activation_checkpoint.mode=full"})}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stepforge::testing
