// SPDX-License-Identifier: Apache-2.0
// Experts that Hugging Face files hold stacked.
#include "stepforge/checkpoint/stored_weight.h"

#include <ATen/ops/empty.h>

#include "stepforge/base/error.h"
#include "stepforge/checkpoint/checkpoint_ranks.h"
#include "stepforge/checkpoint/frozen_weights.h"
#include "stepforge/checkpoint/weight_reader.h"
#include "tests/checkpoint/stacked_files.h"
#include "tests/support/rank_groups.h"
#include "tests/support/rank_threads.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

/// One folder with each layout of the same random weights.
struct BothLayouts {
  explicit BothLayouts(const ModelConfig& config, DType dtype = DType::bf16)
      : spec(model_spec(config)), single(original_tensors(spec, dtype)), stacked(stack_experts(single)) {
    for (const char* name : {"single", "stacked"}) fs::create_directory(folder / name);
    write_tensors(folder / "single" / "model.safetensors", single);
    write_tensors(folder / "stacked" / "model.safetensors", stacked);
  }

  TempFolder folder;
  ModelSpec spec;
  std::vector<FileTensor> single;
  std::vector<FileTensor> stacked;
};

TEST(StackedWeights, AreImportedAsTheSameBitsAndExportedByExpert) {
  for (const std::string& family : stackable_families()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(family + " " + std::string(dtype_name(dtype)));
      const BothLayouts files(small_config(family), dtype);
      ASSERT_LT(files.stacked.size(), files.single.size());
      SmallModel single(1, small_config(family));
      SmallModel stacked(2, small_config(family));
      import_hf(files.folder / "single", single.spec, single.store);
      import_hf(files.folder / "stacked", stacked.spec, stacked.store);
      EXPECT_TRUE(stacked.bits(true) == single.bits(true));
      export_model(files.folder / "out", stacked, nullptr, {dtype, kDefaultShardBytes});
      expect_equal(files.single, tensors_of(files.folder / "out"));
      SmallModel again(3, small_config(family));
      import_hf(files.folder / "out", again.spec, again.store);
      EXPECT_TRUE(again.bits(true) == single.bits(true));
    }
  }
}

TEST(StackedWeights, OfAFolderAreExportedByExpert) {
  for (const std::string& family : stackable_families()) {
    const BothLayouts files(small_config(family), DType::f32);
    export_hf(files.folder / "out", small_config(family), files.spec,
              open_hf_weights(files.folder / "stacked"), nullptr);
    expect_equal(files.single, tensors_of(files.folder / "out"));
  }
}

/// The bytes that transformers writes, from either layout.
TEST(StackedWeights, AreExportedOnRequest) {
  for (const std::string& family : stackable_families()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const int64_t shard_bytes : {kDefaultShardBytes, int64_t{3000}}) {
        SCOPED_TRACE(family + " " + std::string(dtype_name(dtype)));
        const BothLayouts files(small_config(family), dtype);
        HfExportOptions options = {.dtype = dtype, .max_shard_bytes = shard_bytes};
        options.stacked_experts = true;
        for (const char* layout : {"single", "stacked"}) {
          const fs::path out = files.folder / (std::string("from-") + layout);
          export_hf(out, small_config(family), files.spec, open_hf_weights(files.folder / layout), nullptr,
                    options);
          expect_equal(files.stacked, tensors_of(out));
        }
      }
    }
  }
}

TEST(StackedWeights, AreNotExportedOfAModelWithOneLayout) {
  for (const std::string& family : {std::string("llama"), std::string("gpt_oss")}) {
    const TempFolder folder;
    const SmallModel model(1, small_config(family));
    HfExportOptions options;
    options.stacked_experts = true;
    EXPECT_CONTAINS(message_of<UsageError>([&] { export_model(folder / "out", model, nullptr, options); }),
                    "--stacked-experts: the family \"" + family + "\" has one layout");
    EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{});
  }
}

/// Also of layers of multi-token prediction.
TEST(StackedWeights, MayBeInAnyFileAndOnlySomeOfThem) {
  ModelConfig config = small_config("deepseek_v3");
  config.n_mtp_layers = 1;
  const BothLayouts files(config);
  const fs::path mixed = files.folder / "mixed";
  fs::create_directory(mixed);
  std::map<std::string, std::vector<FileTensor>> shards;
  for (const FileTensor& tensor : files.stacked)
    if (!tensor.spec.name.ends_with("experts.down_proj"))
      shards[tensor.spec.name.ends_with("_proj") ? "b.safetensors" : "a.safetensors"].push_back(tensor);
  for (const FileTensor& tensor : files.single)
    if (stacked_name(tensor.spec.name).ends_with("experts.down_proj"))
      shards["c.safetensors"].push_back(tensor);
  HfIndex index;
  for (const auto& [file, tensors] : shards) {
    write_tensors(mixed / file, tensors);
    for (const FileTensor& tensor : tensors) index.weight_map.emplace(tensor.spec.name, file);
  }
  ASSERT_EQ(shards.size(), 3U);
  write_hf_index(mixed / kIndexFileName, index);
  SmallModel single(1, config);
  SmallModel stacked(2, config);
  import_hf(files.folder / "single", single.spec, single.store);
  import_hf(mixed, stacked.spec, stacked.store);
  EXPECT_TRUE(stacked.bits(true) == single.bits(true));
}

/// Also of experts that are divided.
TEST(StackedWeights, EachRankImportsItsExperts) {
  for (const std::string& family : {std::string("qwen3_moe"), std::string("mixtral")}) {
    const ModelConfig config = small_config(family);
    const BothLayouts files(config);
    for (int rank = 0; rank < 6; ++rank) {
      for (const int parts : {1, 2}) {
        const ModelSpec part =
            model_spec(config, 0, {rank % parts, parts, true}, {}, {}, {rank, 6, false, parts});
        ModelStore single(part.units, rank_layout(part.units));
        ModelStore stacked(part.units, rank_layout(part.units));
        import_hf(files.folder / "single", files.spec, single);
        import_hf(files.folder / "stacked", part, stacked);
        for (size_t unit = 0; unit < single.size(); ++unit) {
          EXPECT_TRUE(at::equal(single.unit(unit).master(), stacked.unit(unit).master()))
              << family << " " << part.units[unit].name << ", rank " << rank << ", parts " << parts;
        }
      }
    }
  }
}

TEST(StackedWeights, EachRankImportsItsShard) {
  const ModelConfig config = small_config("qwen2_moe");
  const BothLayouts files(config);
  for (const Partition& partition : {Partition{}, Partition{PartitionKind::by_dim, 1}}) {
    const auto failures = as_threads().run(3, [&](World& world) -> std::string {
      const auto groups = rank_groups(world, ParallelDims{});
      SmallModel single(1, config, groups, partition);
      SmallModel stacked(2, config, groups, partition);
      import_hf(files.folder / "single", single.spec, single.store);
      import_hf(files.folder / "stacked", stacked.spec, stacked.store);
      return stacked.bits(true) == single.bits(true) ? "" : "differs";
    });
    for (const std::string& failure : failures) EXPECT_EQ(failure, "") << partition_text(partition);
  }
}

/// A file that has become shorter cannot be read beyond its end.
TEST(StackedWeights, OnlyTheRowsOfAnExpertAreRead) {
  const ModelConfig config = small_config("qwen3_moe");
  const TempFolder folder;
  std::vector<FileTensor> stacked = stack_experts(original_tensors(model_spec(config), DType::f32));
  const FileTensor gate_up = tensor_named(stacked, "model.layers.0.mlp.experts.gate_up_proj");
  const fs::path path = folder / "model.safetensors";
  write_tensors(path, {gate_up});
  const TensorFolder files = open_hf_weights(folder.path());
  const int64_t matrix = gate_up.spec.bytes() / 12;  // of 6 experts gate and up
  const auto header = static_cast<int64_t>(fs::file_size(path)) - gate_up.spec.bytes();
  fs::resize_file(path, static_cast<uintmax_t>(header + 6 * matrix));
  const auto read = [&](const std::string& name) {
    WeightReader reader(files, "model.layers.0.mlp.experts." + name);
    const at::Tensor values = at::empty({matrix / 4}, at::kFloat);
    reader.read(whole_slice(reader.shape()), 0, values);
    return std::string(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  };
  EXPECT_TRUE(read("2.up_proj.weight") ==
              gate_up.bytes.substr(static_cast<size_t>(5 * matrix), static_cast<size_t>(matrix)));
  EXPECT_THROW(read("3.gate_proj.weight"), Error);
}

TEST(StackedWeights, HaveTheHashesOfTheExperts) {
  const BothLayouts files(small_config("mixtral"));
  std::vector<std::string> names;
  for (const NamedTensor& tensor : named_tensors(files.spec)) names.push_back(tensor.name);
  const auto hashes = [&](const char* layout) {
    return hash_tensors([path = files.folder / layout] { return open_weights(path); }, names, {},
                        "the weights");
  };
  EXPECT_EQ(hashes("stacked"), hashes("single"));
  EXPECT_EQ(hashes("stacked").size(), names.size());
}

struct Fault {
  const char* what;
  std::function<void(std::vector<FileTensor>&)> make;
  std::vector<std::string> message;
};

void set_shape(std::vector<FileTensor>& tensors, const std::string& name, std::vector<int64_t> shape) {
  FileTensor& tensor = tensor_named(tensors, name);
  tensor.spec.shape = std::move(shape);
  tensor.bytes.resize(static_cast<size_t>(tensor.spec.bytes()));
}

FileTensor zeros(const std::string& name, std::vector<int64_t> shape) {
  FileTensor tensor{{name, DType::f32, std::move(shape)}, ""};
  tensor.bytes.resize(static_cast<size_t>(tensor.spec.bytes()));
  return tensor;
}

std::vector<Fault> faults() {
  const std::string gate_up = "model.layers.0.mlp.experts.gate_up_proj";
  const std::string down = "model.layers.1.mlp.experts.down_proj";
  const std::string file = " in model.safetensors, expected F32, BF16 or F16 ";
  const auto shaped = [](const std::string& name, std::vector<int64_t> shape) {
    return [=](std::vector<FileTensor>& tensors) { set_shape(tensors, name, shape); };
  };
  const std::string one = "0 tensors missing, 0 unexpected, 1 different";
  return {
      {"transposed",
       shaped(gate_up, {6, 16, 40}),
       {one, gate_up + ": is F32 [6, 16, 40]" + file + "[6, 40, 16]"}},
      {"fewer experts",
       shaped(down, {5, 16, 20}),
       {one, down + ": is F32 [5, 16, 20]" + file + "[6, 16, 20]"}},
      {"more experts",
       shaped(down, {7, 16, 20}),
       {one, down + ": is F32 [7, 16, 20]" + file + "[6, 16, 20]"}},
      {"no experts",
       shaped(gate_up, {0, 40, 16}),
       {one, gate_up + ": is F32 [0, 40, 16]" + file + "[6, 40, 16]"}},
      {"odd rows",
       shaped(gate_up, {6, 39, 16}),
       {one, gate_up + ": is F32 [6, 39, 16]" + file + "[6, 40, 16]"}},
      {"a matrix", shaped(gate_up, {240, 16}), {one, gate_up + ": is F32 [240, 16]" + file + "[6, 40, 16]"}},
      {"a vector", shaped(gate_up, {3840}), {one, gate_up + ": is F32 [3840]" + file + "[6, 40, 16]"}},
      {"integers",
       [=](auto& tensors) { tensor_named(tensors, down).spec.dtype = DType::i32; },
       {one, down + ": is I32 [6, 16, 20]" + file + "[6, 16, 20]"}},
      {"both",
       [](auto& tensors) {
         tensors.push_back(zeros("model.layers.1.mlp.experts.3.down_proj.weight", {16, 20}));
       },
       {one,
        down +
            ": is in model.safetensors, and model.layers.1.mlp.experts.3.down_proj.weight, which is a part "
            "of it, in model.safetensors: remove one of them"}},
      {"neither",
       [=](auto& tensors) {
         std::erase_if(tensors, [&](const FileTensor& tensor) { return tensor.spec.name == gate_up; });
       },
       {"12 tensors missing, 0 unexpected, 0 different",
        "missing: model.layers.0.mlp.experts.0.gate_proj.weight [20, 16]"}}};
}

TEST(StackedWeights, AFaultIsRefusedNamingTensorFileAndShapesAndNothingChanges) {
  const ModelConfig config = small_config("qwen3_moe");
  SmallModel model(1, config);
  const std::string before = model.bits();
  for (const Fault& fault : faults()) {
    SCOPED_TRACE(fault.what);
    const TempFolder folder;
    std::vector<FileTensor> tensors = stack_experts(original_tensors(model.spec, DType::f32));
    fault.make(tensors);
    write_tensors(folder / "model.safetensors", tensors);
    const std::string message = message_of<Error>([&] { import_hf(folder.path(), model.spec, model.store); });
    EXPECT_CONTAINS(message, "the weights in " + folder.path().string() + " do not fit the model");
    for (const std::string& part : fault.message) EXPECT_CONTAINS(message, part);
    EXPECT_TRUE(model.bits() == before);
  }
}

TEST(StackedWeights, ARouterUnderTwoNamesIsRefused) {
  const ModelConfig config = small_config("mixtral");
  const TempFolder folder;
  SmallModel model(1, config);
  std::vector<FileTensor> tensors = stack_experts(original_tensors(model.spec, DType::f32));
  tensors.push_back(tensor_named(tensors, "model.layers.0.mlp.gate.weight"));
  tensors.back().spec.name = "model.layers.0.block_sparse_moe.gate.weight";
  write_tensors(folder / "model.safetensors", tensors);
  EXPECT_CONTAINS(message_of<Error>([&] { import_hf(folder.path(), model.spec, model.store); }),
                  "model.layers.0.mlp.gate.weight: is in model.safetensors, and "
                  "model.layers.0.block_sparse_moe.gate.weight");
}

TEST(StackedWeights, OfFewerExpertsAreLoadedAsFarAsTheyGoIfDifferencesAreAccepted) {
  ModelConfig config = small_config("qwen3_moe");
  SmallModel larger(1, config);
  config.n_experts = 4;
  const TempFolder folder;
  SmallModel smaller(2, config);
  write_tensors(folder / "model.safetensors",
                stack_experts(original_tensors(smaller.spec, DType::f32), config.n_experts));
  import_hf(folder.path(), smaller.spec, smaller.store);
  const auto down = [](SmallModel& model) {
    return model.store.parameter("layers.1.mlp.expert_down").value().flatten();
  };
  const at::Tensor before = down(larger).clone();
  TensorDifferences differences;
  import_weights(open_hf_weights(folder.path()), larger.spec, larger.store, {.accepted = &differences});
  EXPECT_EQ(differences.different.size(), 4U);   // two tensors of each layer
  EXPECT_EQ(differences.other_rows.size(), 2U);  // the routers
  EXPECT_EQ(differences.missing.size(), 0U);
  const int64_t known = down(smaller).numel();
  EXPECT_TRUE(at::equal(down(larger).narrow(0, 0, known), down(smaller)));
  EXPECT_TRUE(at::equal(down(larger).narrow(0, known, known / 2), before.narrow(0, known, known / 2)));
}

}  // namespace
}  // namespace stepforge::testing
