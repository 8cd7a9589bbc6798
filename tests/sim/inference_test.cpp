// SPDX-License-Identifier: Apache-2.0
// Models that are evaluated and that generate on a simulated device as on the CPU, bit for bit.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "stepforge/app/torch/loaded_model.h"
#include "stepforge/app/torch/loss_gradients.h"
#include "stepforge/app/torch/token_rows.h"
#include "stepforge/base/files.h"
#include "stepforge/kernels/kernel_table.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/sim/machine.h"
#include "stepforge/train/generation.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kDevice = 5;
const std::string kName = "sim:5";

/// Small models of all families that have recorded results.
std::vector<fs::path> recorded_models() {
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(source_dir() / "tests/golden/models"))
    if (entry.is_directory()) folders.push_back(entry.path());
  std::ranges::sort(folders);
  return folders;
}

class SimInference : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { sim::Machine::get().set_delays({.seed = 3, .most_microseconds = 15}); }
  static void TearDownTestSuite() { sim::Machine::get().set_delays({}); }

  static KernelTable references() {
    KernelTable table;
    table.references_only = true;
    return table;
  }

  Logger log_{LogLevel::error};
  const ChargeMemory rank_{make_rank_memory(references())};
};

struct Inferred {
  std::vector<float> logits;
  std::vector<int32_t> greedy;
  std::vector<int32_t> sampled;
  bool operator==(const Inferred&) const = default;
};

Inferred generate_on(const fs::path& folder, const std::string& device, Logger& log) {
  constexpr int64_t kCapacity = 12;
  constexpr DType kCompute = DType::f32;
  const LoadedModel model = load_model(folder, {.compute = kCompute, .device = device}, {log});
  stepforge::Model forward = model.forward(kCapacity);
  Generator generator(model.spec, plan_generation(kCompute, model.spec, kCapacity), forward, *model.store,
                      kCompute, kCapacity);
  const std::vector<int32_t> prompt{3, 1, 4};
  SamplingParams sampling;
  sampling.max_tokens = 6;
  Inferred result;
  result.logits = generator.logits_after(prompt);
  result.sampled = generator.generate(prompt, sampling, {});
  sampling.temperature = 0.0;
  result.greedy = generator.generate(prompt, sampling, {});
  return result;
}

TEST_F(SimInference, EveryModelGeneratesAsOnTheCpu) {
  const std::vector<fs::path> folders = recorded_models();
  EXPECT_GE(folders.size(), 13U);
  for (const fs::path& folder : folders) {
    const int64_t before = sim::Machine::get().counts(kDevice).operations;
    const Inferred on_device = generate_on(folder, kName, log_);
    EXPECT_GT(sim::Machine::get().counts(kDevice).operations, before);
    EXPECT_EQ(on_device.greedy.size(), 6U);
    EXPECT_EQ(on_device, generate_on(folder, "cpu", log_)) << folder;
  }
}

TEST_F(SimInference, GradientsOfEveryModelAreThoseOfTheCpu) {
  const TempFolder output;
  for (const fs::path& folder : recorded_models()) {
    for (const std::string& device : {kName, std::string("cpu")}) {
      LoadedModel model = load_model(folder, {.device = device, .with_gradient = true}, {log_});
      const Batch batch = read_token_rows(folder / "tokens.safetensors", model.spec.vocab_size);
      Config config = model.config();
      config.training.seq_len = batch.seq_len;
      write_gradients(output / (device + ".safetensors"), config, model, batch);
    }
    EXPECT_EQ(read_file(output / (kName + ".safetensors")), read_file(output / "cpu.safetensors")) << folder;
  }
}

TEST_F(SimInference, ANameThatIsNoDeviceIsRefused) {
  const fs::path folder = recorded_models().front();
  const auto refusal = [&](const char* device) {
    return message_of<UsageError>([&] { load_model(folder, {.device = device}, {log_}); });
  };
  EXPECT_CONTAINS(refusal("gpu"), "gpu");
  EXPECT_CONTAINS(refusal("sim:9"), "choose 0 to 7");
}

}  // namespace
}  // namespace stepforge::testing
