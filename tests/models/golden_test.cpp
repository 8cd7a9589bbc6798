// SPDX-License-Identifier: Apache-2.0
// Models against logits and gradients recorded from transformers (tools/oracle/model_oracle.py --record).
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "stepforge/app/torch/loaded_model.h"
#include "stepforge/app/torch/loss_gradients.h"
#include "stepforge/app/torch/token_rows.h"
#include "stepforge/catalog/families.h"
#include "stepforge/catalog/hf_config.h"
#include "stepforge/checkpoint/hf_folder.h"
#include "stepforge/nn/make_model.h"
#include "stepforge/plan/step_plan.h"
#include "stepforge/tensorfile/safetensors.h"
#include "stepforge/train/evaluation.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace stepforge::testing {
namespace {

constexpr double kTolerance = 2e-5;  // of the largest |expected|

at::Tensor read_fp32(const SafetensorsFile& file, const std::string& name) {
  const TensorEntry* entry = file.find(name);
  EXPECT_NE(entry, nullptr) << name;
  EXPECT_EQ(entry->dtype, DType::f32) << name;
  at::Tensor tensor = at::empty(entry->shape, at::kFloat);
  const auto bytes = file.bytes(*entry);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::vector<std::string> recorded_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() / "tests/golden/models")) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  return names;
}

class Golden : public ::testing::TestWithParam<std::string> {};

TEST_P(Golden, LogitsAndLossesOfPackedRowsMatchTransformers) {
  const std::filesystem::path folder = source_dir() / "tests/golden/models" / GetParam();
  Config config;
  config.model = hf_model_config(folder);
  const Batch batch = read_token_rows(folder / "tokens.safetensors", config.model.vocab_size);
  config.training.seq_len = batch.seq_len;
  config.training.local_batch_size = batch.rows;
  const ModelSpec spec = plan_model(config);
  ModelStore store(spec.units, rank_layout(spec.units), {.with_gradient = false});
  import_hf(folder, spec, store);
  Model model = make_model(spec, store.lookup(), {.context_length = batch.seq_len});
  const StepProgram program = plan_evaluation(plan_job(config));
  Executor executor(program, model, store);
  const BatchLoss result = evaluate_batch(executor, batch, /*with_logits=*/true);

  const SafetensorsFile expected(folder / "expected.safetensors");
  const at::Tensor logits = read_fp32(expected, "logits").view(result.logits.sizes());
  const double largest = logits.abs().max().item<double>();
  EXPECT_GT(largest, 0.1);
  EXPECT_LE((result.logits - logits).abs().max().item<double>(), kTolerance * largest);
  const at::Tensor token_loss = read_fp32(expected, "token_loss").view(-1);
  EXPECT_LE((result.token_loss - token_loss).abs().max().item<double>(), kTolerance * largest);
  EXPECT_TRUE(at::equal(result.token_loss.eq(0), token_loss.eq(0)));
}

// With deepseek_v3_mtp, finds what went wrong in Megatron-LM#2417, #3159 and #1532 (the loss of a depth divided by the labels
// of the model).
/// Of the mean loss, and for each further depth 0.3 times its mean, in rows of documents of 1 to 24 tokens.
TEST_P(Golden, GradientsOfPackedRowsMatchTransformers) {
  const std::filesystem::path folder = source_dir() / "tests/golden/models" / GetParam();
  Logger log(LogLevel::error);
  LoadedModel model = load_model(folder, {.with_gradient = true}, {log});
  const Batch batch = read_token_rows(folder / "tokens.safetensors", model.spec.vocab_size);
  Config config = model.config();
  config.training.seq_len = batch.seq_len;
  const TempFolder output;
  write_gradients(output / "gradients.safetensors", config, model, batch);

  const SafetensorsFile actual(output / "gradients.safetensors");
  const SafetensorsFile expected(folder / "gradients.safetensors");
  EXPECT_EQ(actual.tensors().size(), expected.tensors().size());
  double largest = 0.0;
  for (const TensorEntry& tensor : expected.tensors())
    largest = std::max(largest, read_fp32(expected, tensor.name).abs().max().item<double>());
  for (const TensorEntry& tensor : expected.tensors()) {
    const at::Tensor wanted = read_fp32(expected, tensor.name);
    const double gap = (read_fp32(actual, tensor.name) - wanted).abs().max().item<double>();
    // As in the oracle: a gradient that is 0 in exact arithmetic is rounding in both.
    EXPECT_LE(gap, 1e-4 * std::max(wanted.abs().max().item<double>(), 1e-3 * largest)) << tensor.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded, Golden, ::testing::ValuesIn(recorded_models()),
                         [](const auto& info) { return info.param; });

TEST(Golden, CoversEveryFamilyTiedEmbeddingsAndScaledRope) {
  std::set<std::string> families;
  std::set<RopeScalingType> scalings;
  std::set<bool> tied;
  for (const std::string& name : recorded_models()) {
    const ModelConfig model = hf_model_config(source_dir() / "tests/golden/models" / name);
    families.insert(model.family);
    scalings.insert(model.rope_scaling.type);
    tied.insert(model.tie_embeddings);
  }
  EXPECT_EQ(families.size(), model_families().size());
  EXPECT_EQ(tied.size(), 2U);
  for (const RopeScalingType type : {RopeScalingType::none, RopeScalingType::linear, RopeScalingType::llama3,
                                     RopeScalingType::yarn, RopeScalingType::longrope})
    EXPECT_TRUE(scalings.contains(type)) << choice_name(type);
}

}  // namespace
}  // namespace stepforge::testing
