// SPDX-License-Identifier: Apache-2.0
// The predicted peak memory of a whole step against the allocator's.
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "stepforge/step/memory.h"
#include "tests/models/training.h"

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

TEST_P(StepMemory, PredictedPeakMatchesTheAllocator) {
  install_cpu_allocator();
  Config config = loaded(GetParam().overrides);
  config.training.threads = at::get_num_threads();
  const int64_t before = cpu_memory().live_bytes;
  Job job(config);
  const std::vector<Batch> batches = job.split(job.made_up_rows());
  job.step(batches);
  reset_cpu_peak();
  job.step(batches);
  const double measured = static_cast<double>(cpu_memory().peak_bytes - before);
  const double predicted = static_cast<double>(account(job.program).peak_bytes);
  RecordProperty("predicted_over_measured", std::to_string(predicted / measured));
  EXPECT_NEAR(predicted / measured, 1.0, GetParam().tolerance)
      << "predicted " << predicted << " measured " << measured;
}

std::vector<std::string> with(std::vector<std::string> base, const std::vector<std::string>& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

std::vector<std::string> tiny(const std::string& family) {
  return with(setting_overrides(family),
              {"model.dim=96", "model.n_layers=3", "model.n_heads=4", "model.n_kv_heads=2",
               "model.head_dim=32", "model.ffn_dim=256", "model.vocab_size=512", "model.tie_embeddings=true",
               "model.max_position=256", "training.seq_len=128", "training.local_batch_size=4"});
}

const std::vector<std::string> kMtp =
    with(tiny("deepseek_v3"), {"model.n_kv_heads=4", "model.head_dim=0", "model.n_mtp_layers=2"});
const std::vector<std::string> kDebugPreset = {"preset=debug", "model.vocab_size=257"};
const std::vector<std::string> kDemoPreset = {"preset=demo", "model.vocab_size=4096",
                                              "training.local_batch_size=4"};

INSTANTIATE_TEST_SUITE_P(
    Models, StepMemory,
    ::testing::Values(
        MemoryCase{"debug", kDebugPreset},
        MemoryCase{"debug_bf16", with(kDebugPreset, {"precision.compute=bf16"})},
        MemoryCase{"debug_dropout_accumulation",
                   with(kDebugPreset, {"model.dropout=0.1", "training.global_batch_size=16"})},
        MemoryCase{"debug_full_recompute", with(kDebugPreset, {"activation_checkpoint.mode=full"})},
        MemoryCase{"debug_regions", with(kDebugPreset, {"activation_checkpoint.mode=regions",
                                                        "activation_checkpoint.regions=[\"mlp\"]"})},
        MemoryCase{"debug_budget", with(kDebugPreset, {"activation_checkpoint.mode=budget"})},
        MemoryCase{"debug_calls",
                   with(kDebugPreset, {"activation_checkpoint.mode=calls",
                                       "activation_checkpoint.calls=[\"swiglu\", \"mlp.gate_up\"]"})},
        MemoryCase{"debug_ordered", with(kDebugPreset, {"training.reduction=ordered"})},
        MemoryCase{"debug_small_chunk", with(kDebugPreset, {"training.loss_chunk=128"})},
        MemoryCase{"demo", kDemoPreset}, MemoryCase{"qwen3", tiny("qwen3")},
        MemoryCase{"qwen2", tiny("qwen2")}, MemoryCase{"olmo2", tiny("olmo2")},
        MemoryCase{"gemma2", tiny("gemma2")}, MemoryCase{"gemma3", tiny("gemma3")},
        MemoryCase{"gemma3_full_recompute", with(tiny("gemma3"), {"activation_checkpoint.mode=full"})},
        MemoryCase{"mtp", kMtp},
        MemoryCase{"mtp_accumulation",
                   with(kMtp, {"training.global_batch_size=8", "training.local_batch_size=2"})},
        MemoryCase{"mtp_full_recompute", with(kMtp, {"activation_checkpoint.mode=full"})},
        // libtorch's bf16 products on the CPU allocate scratch, which matters in a model this small.
        MemoryCase{"qwen3_bf16", with(tiny("qwen3"), {"precision.compute=bf16"}), 0.08},
        MemoryCase{"qwen3_full_recompute", with(tiny("qwen3"), {"activation_checkpoint.mode=full"})}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stepforge::testing
