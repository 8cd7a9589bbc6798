// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/adapter_folder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "stepforge/base/staged.h"
#include "stepforge/tensorfile/safetensors.h"
#include "tests/nn/tiny_model.h"
#include "tests/support/random_tensor.h"
#include "tests/support/strings.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUp = "model.layers.0.mlp.up_proj";

struct Named {
  std::string name;
  at::Tensor values;
};

/// A folder as PEFT writes it, of rank 3 and alpha 6.
fs::path peft_folder(const fs::path& folder, const std::vector<Named>& tensors, bool dora = false,
                     const char* bias = "none") {
  fs::create_directories(folder);
  std::vector<TensorSpec> specs;
  for (const Named& tensor : tensors) specs.push_back({tensor.name, DType::f32, tensor.values.sizes().vec()});
  SafetensorsWriter writer(folder / "adapter_model.safetensors", specs);
  for (const Named& tensor : tensors)
    writer.write(tensor.name,
                 {static_cast<const std::byte*>(tensor.values.const_data_ptr()), tensor.values.nbytes()});
  writer.finish();
  write_file_atomic(folder / "adapter_config.json",
                    format(R"({{"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": ["up_proj"],
                               "use_dora": {}, "bias": "{}"}})",
                           dora ? "true" : "false", bias));
  return folder;
}

std::vector<Named> up_adapter(const at::Tensor& a, const at::Tensor& b) {
  const std::string prefix = std::string("base_model.model.") + kUp;
  return {{prefix + ".lora_A.weight", a}, {prefix + ".lora_B.weight", b}};
}

const ModelConfig kModel = tiny_config();

at::Tensor up_weight(TinyModel& tiny) {
  return tiny.parameter("layers.0.mlp.gate_up")
      .value()
      .detach()
      .narrow(0, kModel.ffn_dim, kModel.ffn_dim)
      .clone();
}

TEST(AdapterFolder, IsMergedAsScaleTimesBTimesA) {
  const TempFolder folder;
  const at::Tensor a = random_tensor({3, kModel.dim}, 1);
  const at::Tensor b = random_tensor({kModel.ffn_dim, 3}, 2);
  const std::string path = peft_folder(folder / "adapter", up_adapter(a, b)).string();
  TinyModel tiny(kModel);
  const at::Tensor before = up_weight(tiny);
  const at::Tensor gate =
      tiny.parameter("layers.0.mlp.gate_up").value().detach().narrow(0, 0, kModel.ffn_dim).clone();
  read_adapters({path, path + "=-0.25"}, tiny.spec).merge_into(tiny.store);
  const at::Tensor expected = before + at::mm(b * 2.0, a) - at::mm(b * 0.5, a);
  EXPECT_LT((up_weight(tiny) - expected).abs().max().item<double>(), 1e-6);
  EXPECT_TRUE(
      at::equal(gate, tiny.parameter("layers.0.mlp.gate_up").value().detach().narrow(0, 0, kModel.ffn_dim)));
}

TEST(AdapterFolder, WithMagnitudesTheRowsOfTheSumHaveTheseNorms) {
  const TempFolder folder;
  const at::Tensor a = random_tensor({3, kModel.dim}, 1);
  const at::Tensor b = random_tensor({kModel.ffn_dim, 3}, 2);
  const at::Tensor magnitudes = random_tensor({kModel.ffn_dim}, 3).abs() + 0.5;
  b[0].zero_();  // a row of zeros stays one
  std::vector<Named> tensors = up_adapter(a, b);
  tensors.push_back({std::string("base_model.model.") + kUp + ".lora_magnitude_vector", magnitudes});
  const std::string path = peft_folder(folder / "adapter", tensors, /*dora=*/true).string();
  TinyModel tiny(kModel);
  tiny.parameter("layers.0.mlp.gate_up").value().detach()[kModel.ffn_dim].zero_();
  const at::Tensor before = up_weight(tiny);
  read_adapters({path, path + "=-0.25"}, tiny.spec).merge_into(tiny.store);
  const at::Tensor sum = before + at::mm(b * 2.0, a);
  const at::Tensor merged = sum / sum.norm(2, {1}, true).clamp_min(1e-20) * magnitudes.unsqueeze(1);
  const at::Tensor expected = before + (merged - before) * 0.75;
  EXPECT_LT((up_weight(tiny) - expected).abs().max().item<double>(), 1e-6);
  tensors.pop_back();
  peft_folder(folder / "adapter", tensors, /*dora=*/true);
  EXPECT_CONTAINS(message_of<FormatError>([&] { read_adapters({path}, tiny.spec); }),
                  "lora_magnitude_vector");
}

constexpr const char* kTablePrefix = "base_model.model.model.embed_tokens.";
constexpr const char* kHeadPrefix = "base_model.model.lm_head.";

/// As PEFT writes them: A and B of both, and copies of the weights beside them.
std::vector<Named> vocabulary_adapters(const at::Tensor& table, const at::Tensor& head) {
  return {{std::string(kTablePrefix) + "lora_embedding_A", random_tensor({3, kModel.vocab_size}, 1)},
          {std::string(kTablePrefix) + "lora_embedding_B", random_tensor({kModel.dim, 3}, 2)},
          {std::string(kTablePrefix) + "base_layer.weight", table},
          {std::string(kHeadPrefix) + "lora_A.weight", random_tensor({3, kModel.dim}, 3)},
          {std::string(kHeadPrefix) + "lora_B.weight", random_tensor({kModel.vocab_size, 3}, 4)},
          {std::string(kHeadPrefix) + "base_layer.weight", head}};
}

at::Tensor value_of(TinyModel& tiny, const char* parameter) {
  return tiny.parameter(parameter).value().detach().clone();
}

TEST(AdapterFolder, OfAnEmbeddingIsMergedAsTheTransposeOfBTimesA) {
  const TempFolder folder;
  TinyModel tiny(kModel);
  const at::Tensor table = value_of(tiny, "embedding.weight");
  const at::Tensor head = value_of(tiny, "head.weight");
  const std::vector<Named> tensors = vocabulary_adapters(table, head);
  const std::string path = peft_folder(folder / "adapter", tensors).string();
  const AdapterDeltas deltas = read_adapters({path, path + "=-0.5"}, tiny.spec);
  EXPECT_FALSE(deltas.unties(tiny.spec)) << "it is not tied";
  deltas.merge_into(tiny.store);
  const at::Tensor of_table = table + at::mm(tensors[1].values, tensors[0].values).t();
  const at::Tensor of_head = head + at::mm(tensors[4].values, tensors[3].values);
  EXPECT_LT((value_of(tiny, "embedding.weight") - of_table).abs().max().item<double>(), 1e-6);
  EXPECT_LT((value_of(tiny, "head.weight") - of_head).abs().max().item<double>(), 1e-6);
}

TEST(AdapterFolder, OfATiedEmbeddingOrHeadNeedsBoth) {
  const TempFolder folder;
  ModelConfig config = kModel;
  config.tie_embeddings = true;
  TinyModel tied(config);
  const at::Tensor table = value_of(tied, "embedding.weight");
  const std::vector<Named> all = vocabulary_adapters(table, table);
  const auto unties = [&](const char* name, const std::vector<Named>& tensors) {
    return read_adapters({peft_folder(folder / name, tensors).string()}, tied.spec).unties(tied.spec);
  };
  EXPECT_TRUE(unties("embedding", {all[0], all[1], all[2]}));
  EXPECT_TRUE(unties("head", {all[3], all[4], all[5]}));
  EXPECT_TRUE(unties("trained head", {{"base_model.model.lm_head.weight", table + 1}}));
  EXPECT_FALSE(unties("trained embedding", {{"base_model.model.model.embed_tokens.weight", table + 1}}));
  EXPECT_FALSE(
      unties("up", up_adapter(random_tensor({3, kModel.dim}, 1), random_tensor({kModel.ffn_dim, 3}, 2))));
}

TEST(AdapterFolder, PartsOfATensorAreThoseOfTheWhole) {
  const TempFolder folder;
  const at::Tensor a = random_tensor({3, kModel.dim}, 1);
  const at::Tensor b = random_tensor({kModel.ffn_dim, 3}, 2);
  const AdapterDeltas deltas =
      read_adapters({peft_folder(folder / "adapter", up_adapter(a, b)).string()}, TinyModel(kModel).spec);
  const std::string name = std::string(kUp) + ".weight";
  const at::Tensor whole = at::zeros({kModel.ffn_dim * kModel.dim});
  deltas.add_to(name, 0, whole);
  for (const int64_t begin : {int64_t{0}, int64_t{7}, kModel.dim, kModel.dim * 3 + 5}) {
    const at::Tensor part = at::zeros({101});
    deltas.add_to(name, begin, part);
    EXPECT_LT((part - whole.narrow(0, begin, 101)).abs().max().item<double>(), 1e-6) << begin;
  }
}

TEST(AdapterFolder, ReplacesModulesThatWereTrainedWithIt) {
  const TempFolder folder;
  const at::Tensor norm = random_tensor({kModel.dim}, 3);
  const std::string path =
      peft_folder(folder / "adapter", {{"base_model.model.model.norm.weight", norm}}).string();
  TinyModel tiny(kModel);
  read_adapters({path}, tiny.spec).merge_into(tiny.store);
  EXPECT_TRUE(at::equal(tiny.parameter("head.norm").value().detach(), norm));
  EXPECT_CONTAINS(message_of<UsageError>([&] { read_adapters({path + "=0.5"}, tiny.spec); }),
                  "cannot have the weight");
}

constexpr const char* kQueries = "base_model.model.model.layers.0.self_attn.q_proj.";

/// Of the queries of the first layer, with their trained bias.
std::vector<Named> biased_adapter(const at::Tensor& bias) {
  return {{std::string(kQueries) + "lora_A.weight", random_tensor({3, kModel.dim}, 1)},
          {std::string(kQueries) + "lora_B.weight", random_tensor({bias.size(0), 3}, 2)},
          {std::string(kQueries) + "base_layer.bias", bias}};
}

TEST(AdapterFolder, ReplacesBiasesThatWereTrainedWithIt) {
  const TempFolder folder;
  TinyModel tiny(tiny_config("qwen2"));
  constexpr const char* kBias = "layers.0.attention.qkv_bias";
  const int64_t queries = kModel.n_heads * kModel.head_dim;
  const at::Tensor before = value_of(tiny, kBias);
  const at::Tensor bias = random_tensor({queries}, 3);
  const std::string path =
      peft_folder(folder / "adapter", biased_adapter(bias), /*dora=*/false, "lora_only").string();
  read_adapters({path}, tiny.spec).merge_into(tiny.store);
  const at::Tensor after = value_of(tiny, kBias);
  EXPECT_TRUE(at::equal(after.narrow(0, 0, queries), bias));
  const int64_t others = before.size(0) - queries;
  EXPECT_TRUE(at::equal(after.narrow(0, queries, others), before.narrow(0, queries, others)));
}

TEST(AdapterFolder, OfBiasesThatAreMissingOrReplacedTwiceIsRefused) {
  const TempFolder folder;
  const ModelSpec model = TinyModel(tiny_config("qwen2")).spec;
  const auto folder_of = [&](const char* name, const std::vector<Named>& tensors, const char* bias) {
    return peft_folder(folder / name, tensors, /*dora=*/false, bias).string();
  };
  const auto refusal = [&](const Strings& arguments, AdapterBias own = AdapterBias::none) {
    return message_of<UsageError>([&] { read_adapters(arguments, model, own); });
  };
  std::vector<Named> tensors = biased_adapter(random_tensor({kModel.n_heads * kModel.head_dim}, 3));
  const std::string biased = folder_of("biased", tensors, "lora_only");
  const std::string incomplete = folder_of("incomplete", tensors, "all");
  tensors.pop_back();
  const std::string old = folder_of("old", tensors, "lora_only");
  const std::string plain = folder_of("plain", tensors, "none");
  EXPECT_CONTAINS(refusal({old}), "has no model.layers.0.self_attn.q_proj.bias", "0.21", "\"none\"");
  EXPECT_CONTAINS(refusal({incomplete}), "has no model.layers.0.self_attn.k_proj.bias");
  EXPECT_CONTAINS(refusal({biased, biased}), "bias is replaced by two adapters");
  EXPECT_CONTAINS(refusal({biased}, AdapterBias::all), "the model's own adapter");
  EXPECT_CONTAINS(refusal({biased + "=0.5"}), "cannot have the weight");
  EXPECT_NO_THROW(read_adapters({biased, plain}, model));
}

TEST(AdapterFolder, OfAnotherModelOrKindIsRefused) {
  const TempFolder folder;
  const ModelSpec model = TinyModel(kModel).spec;
  const at::Tensor a = random_tensor({3, kModel.dim}, 1);
  const at::Tensor b = random_tensor({kModel.ffn_dim, 3}, 2);
  const auto refusal = [&](const std::string& name, const std::vector<Named>& tensors) {
    const std::string path = peft_folder(folder / name, tensors).string();
    return message_of<Error>([&] { read_adapters({path}, model); });
  };
  EXPECT_CONTAINS(refusal("columns", up_adapter(random_tensor({3, 5}, 1), b)), "belongs to another model");
  EXPECT_CONTAINS(refusal("rank", up_adapter(random_tensor({4, kModel.dim}, 1), b)), "rank");
  EXPECT_CONTAINS(refusal("alone", {up_adapter(a, b)[0]}), "lora_B");
  std::vector<Named> dora = up_adapter(a, b);
  dora.push_back({std::string("base_model.model.") + kUp + ".lora_magnitude_vector", b});
  EXPECT_CONTAINS(refusal("dora", dora), "lora_magnitude_vector");
  EXPECT_CONTAINS(message_of<UsageError>([&] { read_adapters({(folder / "none").string()}, model); }),
                  "adapter_config.json");
}

}  // namespace
}  // namespace stepforge::testing
