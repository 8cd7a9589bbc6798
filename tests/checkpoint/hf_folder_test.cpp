// SPDX-License-Identifier: Apache-2.0
#include "stepforge/checkpoint/hf_folder.h"

#include <algorithm>

#include <ATen/ops/allclose.h>
#include <ATen/ops/tensor.h>

#include "stepforge/base/error.h"
#include "stepforge/catalog/hf_config.h"
#include "stepforge/kernels/cpu_allocator.h"
#include "stepforge/tensorfile/safetensors.h"
#include "tests/catalog/all_families.h"
#include "tests/checkpoint/fixture.h"
#include "tests/checkpoint/hf_files.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// Finds what went wrong in torchtitan#3764: an empty output weight of a tied model.
TEST(HfFolder, ImportThenExportGivesBitEqualTensors) {
  for (const std::string& family : family_names()) {
    for (const bool tied : {false, true}) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        SCOPED_TRACE(family + (tied ? " tied " : " ") + std::string(dtype_name(dtype)));
        const TempFolder folder;
        SmallModel model(1, small_config(family, tied));
        const std::vector<FileTensor> original = original_tensors(model.spec, dtype);
        write_tensors(folder / "model.safetensors", original);
        import_hf(folder.path(), model.spec, model.store);
        for (const int64_t shard_bytes : {kDefaultShardBytes, int64_t{3000}}) {
          const fs::path exported = folder / ("exported-" + std::to_string(shard_bytes));
          export_model(exported, model, nullptr, {dtype, shard_bytes});
          EXPECT_EQ(fs::exists(exported / kIndexFileName), shard_bytes == 3000);
          EXPECT_EQ(fs::exists(exported / kSingleFileName), shard_bytes != 3000);
          expect_equal(original, tensors_of(exported));
        }
      }
    }
  }
}

ModelConfig reward_config(bool tied = false) {
  ModelConfig config = small_config("qwen3", tied);
  config.head = HeadKind::score;
  return config;
}

TEST(HfFolder, ARewardModelIsAClassifierWithOneLabel) {
  for (const bool tied : {false, true}) {
    const TempFolder folder;
    const SmallModel model(1, reward_config(tied));
    export_model(folder / "reward", model);
    const std::vector<FileTensor> tensors = tensors_of(folder / "reward");
    EXPECT_EQ(std::ranges::count(tensors, "lm_head.weight", [](const FileTensor& t) { return t.spec.name; }),
              0);
    EXPECT_EQ(open_hf_weights(folder / "reward").find("score.weight")->shape, (std::vector<int64_t>{1, 16}));
    EXPECT_EQ(hf_model_config(folder / "reward"), model.config);
    SmallModel loaded(2, model.config);
    import_hf(folder / "reward", loaded.spec, loaded.store);
    EXPECT_EQ(loaded.bits(true), model.bits(true));
  }
}

/// Its head is not read, whether the folder has a copy of tied weights or not.
TEST(HfFolder, AModelWithAVocabularyGivesARewardModelAllButItsScore) {
  for (const bool tied : {false, true}) {
    const TempFolder folder;
    SmallModel base(1, small_config("qwen3", tied));
    export_model(folder / "base", base);
    const TensorFolder weights = open_hf_weights(folder / "base");
    EXPECT_FALSE(has_score(weights));
    SmallModel model(2, reward_config(tied));
    const at::Tensor score = model.store.parameter("head.score").value().detach().clone();
    EXPECT_CONTAINS(message_of<Error>([&] { import_weights(weights, model.spec, model.store); }),
                    "missing: score.weight");
    import_weights(weights, model.spec, model.store, {.new_score = true});
    EXPECT_TRUE(at::equal(model.store.parameter("head.score").value(), score));
    for (const char* name : {"embedding.weight", "head.norm", "layers.1.mlp.down"})
      EXPECT_TRUE(at::equal(model.store.parameter(name).value(), base.store.parameter(name).value())) << name;
  }
}

/// In place of a tensor [E, in, out] of random values: its blocks and scales, of random bits.
void use_mxfp4(std::vector<FileTensor>& tensors) {
  std::vector<FileTensor> made;
  for (FileTensor& tensor : tensors) {
    if (!tensor.spec.name.ends_with("_proj") || tensor.spec.shape.size() != 3) {
      made.push_back(std::move(tensor));
      continue;
    }
    const std::vector<int64_t>& shape = tensor.spec.shape;
    FileTensor blocks{{tensor.spec.name + "_blocks", DType::u8, {shape[0], shape[2], shape[1] / 32, 16}}, ""};
    FileTensor scales{{tensor.spec.name + "_scales", DType::u8, {shape[0], shape[2], shape[1] / 32}}, ""};
    blocks.bytes = tensor.bytes.substr(0, static_cast<size_t>(blocks.spec.bytes()));
    for (int64_t i = 0; i < scales.spec.bytes(); ++i)
      scales.bytes += static_cast<char>(120 + mix_bits(static_cast<uint64_t>(i)) % 8);
    made.push_back(std::move(blocks));
    made.push_back(std::move(scales));
  }
  tensors = std::move(made);
}

/// Also of experts that are divided.
TEST(HfFolder, EachRankImportsTheSlicesOfItsExperts) {
  ModelConfig config = small_config("gpt_oss");
  config.dim = 64;
  config.ffn_dim = 32;
  for (const bool mxfp4 : {false, true}) {
    const TempFolder folder;
    SmallModel whole(1, config);
    std::vector<FileTensor> tensors = original_tensors(whole.spec, DType::bf16);
    if (mxfp4) use_mxfp4(tensors);
    write_tensors(folder / "model.safetensors", tensors);
    import_hf(folder.path(), whole.spec, whole.store);
    for (int rank = 0; rank < 6; ++rank) {
      for (const int parts : {1, 2}) {
        const ModelSpec part =
            model_spec(config, 0, {rank % parts, parts, true}, {}, {}, {rank, 6, false, parts});
        ModelStore store(part.units, rank_layout(part.units));
        import_hf(folder.path(), whole.spec, store);
        for (const UnitSpec& unit : part.units) {
          if (unit.mesh != UnitMesh::experts) continue;
          for (const ParameterSpec& parameter : unit.parameters) {
            at::Tensor expected = whole.store.parameter(parameter.name).value();
            const TensorSlice held = parameter.slice_of(0);
            for (size_t d = 0; d < held.sizes.size(); ++d)
              expected = expected.narrow(static_cast<int64_t>(d), held.offsets[d], held.sizes[d]);
            EXPECT_TRUE(at::equal(store.parameter(parameter.name).value(), expected))
                << parameter.name << " of rank " << rank << (mxfp4 ? " from MXFP4" : "");
          }
        }
      }
    }
  }
}

TEST(HfFolder, ExportThenImportRestoresTheMastersAndTheModelSection) {
  const TempFolder folder;
  for (const std::string& family : family_names()) {
    const SmallModel model(1, small_config(family, true));
    export_model(folder / family, model, nullptr, {DType::f32, 3000});
    EXPECT_EQ(hf_model_config(folder / family), model.config);
    SmallModel loaded(2, model.config);
    import_hf(folder / family, loaded.spec, loaded.store);
    EXPECT_EQ(loaded.bits(true), model.bits(true));
  }
}

/// DeepSeek-V3 has layers that predict further tokens after its last one.
TEST(HfFolder, LayersAfterTheLastOneAreLeftOutAndNamedIfTheFamilyHasSuch) {
  for (const std::string& family : {std::string("deepseek_v3"), std::string("qwen3_moe")}) {
    const TempFolder folder;
    SmallModel model(1, small_config(family));
    std::vector<FileTensor> tensors = original_tensors(model.spec, DType::f32);
    tensors.push_back({{"model.layers.2.eh_proj.weight", DType::f32, {1}}, std::string(4, '\1')});
    write_tensors(folder / "model.safetensors", tensors);
    if (family == "qwen3_moe") {
      EXPECT_CONTAINS(message_of<Error>([&] { import_hf(folder.path(), model.spec, model.store); }),
                      "unexpected: \"model.layers.2.eh_proj.weight\"");
      continue;
    }
    import_hf(folder.path(), model.spec, model.store);
    const TensorFolder files = open_hf_weights(folder.path());
    EXPECT_CONTAINS(left_out(files, model.spec), "1 tensors of layers after the 2 of the model");
    tensors.pop_back();
    write_tensors(folder / "model.safetensors", tensors);
    EXPECT_EQ(left_out(open_hf_weights(folder.path()), model.spec), "");
  }
}

/// The tensors of an export with one layer of multi-token prediction, which has copies of embedding and head.
TEST(HfFolder, LayersOfMultiTokenPredictionAreReadAndWrittenWithTheirCopies) {
  for (const bool tied : {false, true}) {
    const TempFolder folder;
    ModelConfig config = small_config("deepseek_v3", tied);
    config.n_mtp_layers = 1;
    const SmallModel model(1, config);
    export_model(folder / "out", model);
    EXPECT_EQ(hf_model_config(folder / "out"), model.config);
    const TensorFolder files = open_hf_weights(folder / "out");
    EXPECT_EQ(left_out(files, model.spec), "");
    const auto bytes_of_tensor = [&](const std::string& name) {
      const TensorSlice whole = whole_slice(files.find(name)->shape);
      std::vector<float> read(static_cast<size_t>(whole.elements()));
      files.read(name, whole, std::as_writable_bytes(std::span(read)));
      return read;
    };
    EXPECT_EQ(bytes_of_tensor("model.layers.2.embed_tokens.weight"),
              bytes_of_tensor("model.embed_tokens.weight"));
    EXPECT_EQ(bytes_of_tensor("model.layers.2.shared_head.head.weight"),
              bytes_of_tensor(tied ? "model.embed_tokens.weight" : "lm_head.weight"));
    SmallModel loaded(2, config);
    import_hf(folder / "out", loaded.spec, loaded.store);
    EXPECT_EQ(loaded.bits(true), model.bits(true));

    ModelConfig without = config;
    without.n_mtp_layers = 0;
    SmallModel smaller(2, without);
    import_hf(folder / "out", smaller.spec, smaller.store);
    EXPECT_CONTAINS(left_out(files, smaller.spec), "of layers after the 2 of the model");
  }
}

TEST(HfFolder, ACopyOfALayerOfMultiTokenPredictionMustEqualTheOriginal) {
  const TempFolder folder;
  ModelConfig config = small_config("deepseek_v3");
  config.n_mtp_layers = 1;
  SmallModel model(1, config);
  std::vector<FileTensor> tensors = original_tensors(model.spec, DType::f32);
  write_tensors(folder / "model.safetensors", tensors);
  import_hf(folder.path(), model.spec, model.store);  // files need not have the copy
  const auto embedding = std::ranges::find(tensors, "model.embed_tokens.weight",
                                           [](const FileTensor& tensor) { return tensor.spec.name; });
  FileTensor copy = *embedding;
  copy.spec.name = "model.layers.2.embed_tokens.weight";
  copy.bytes[0] = static_cast<char>(copy.bytes[0] ^ 1);
  tensors.push_back(copy);
  write_tensors(folder / "model.safetensors", tensors);
  EXPECT_CONTAINS(message_of<Error>([&] { import_hf(folder.path(), model.spec, model.store); }),
                  "differs from model.embed_tokens.weight, which layers of multi-token prediction share");
}

TEST(HfFolder, NewTokensStartAtTheMeanOfTheOthers) {
  for (const bool tied : {false, true}) {
    const TempFolder folder;
    const SmallModel stored(1, small_config("llama", tied));
    export_model(folder / "out", stored);
    ModelConfig larger = stored.config;
    larger.vocab_size += 3;
    SmallModel grown(2, larger);
    import_weights(open_hf_weights(folder / "out"), grown.spec, grown.store,
                   {.stored_vocabulary = stored.spec.vocab_size});
    export_model(folder / "grown", grown);
    const TensorFolder before = open_hf_weights(folder / "out");
    const TensorFolder after = open_hf_weights(folder / "grown");
    for (const std::string& name : before.names()) {
      const auto values = [&](const TensorFolder& files, const TensorSlice& slice) {
        std::vector<float> read(static_cast<size_t>(slice.elements()));
        files.read(name, slice, std::as_writable_bytes(std::span(read)));
        return read;
      };
      const std::vector<int64_t> shape = before.find(name)->shape;
      EXPECT_EQ(values(after, whole_slice(shape)), values(before, whole_slice(shape))) << name;
      if (shape[0] != stored.config.vocab_size) continue;
      const at::Tensor rows = at::tensor(values(before, whole_slice(shape))).view(shape).to(at::kDouble);
      const at::Tensor mean = (rows.sum(0) / static_cast<double>(shape[0])).to(at::kFloat);
      const std::vector<float> added = values(after, {{shape[0], 0}, {3, shape[1]}});
      const at::Tensor expected = mean.repeat({3});
      EXPECT_TRUE(at::allclose(at::tensor(added), expected, 1e-6, 1e-9)) << name;
    }
  }
}

TEST(HfFolder, BF16RoundsToNearestEven) {
  const TempFolder folder;
  SmallModel model(1);
  float* values = model.store.unit(0).master().data_ptr<float>();
  // The spacing of bf16 numbers above 1 is 2^-7. 1 + 2^-8 is a tie and rounds down to even, 1 + 3 * 2^-8 is a
  // tie and rounds up to even, and a little more than 1 + 2^-8 rounds up.
  values[0] = 1.00390625F;
  values[1] = 1.01171875F;
  values[2] = 1.00390637F;
  export_model(folder / "out", model, nullptr, {DType::bf16, kDefaultShardBytes});
  import_hf(folder / "out", model.spec, model.store);
  EXPECT_EQ(values[0], 1.0F);
  EXPECT_EQ(values[1], 1.015625F);
  EXPECT_EQ(values[2], 1.0078125F);
}

TEST(HfFolder, Fp16RefusesValuesBeyondItsRange) {
  const TempFolder folder;
  const SmallModel model(1);
  const HfExportOptions options = {DType::f16, kDefaultShardBytes};
  model.store.unit(0).master().data_ptr<float>()[5] = 70000.0F;
  const std::string message =
      message_of<Error>([&] { export_model(folder / "out", model, nullptr, options); });
  EXPECT_CONTAINS(message, "model.embed_tokens.weight holds 70000");
  EXPECT_EQ(names_in(folder.path()), Names{});
}

TEST(HfFolder, ExportHoldsConfigWeightsAndTokenizerAndNothingElse) {
  const TempFolder folder;
  ModelConfig config = small_config();
  config.vocab_size = 257;
  const SmallModel model(1, config);
  const std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer();
  export_model(folder / "out", model, tokenizer.get(), {DType::bf16, kDefaultShardBytes});
  EXPECT_EQ(names_in(folder / "out"),
            (Names{"config.json", "generation_config.json", "model.safetensors", "special_tokens_map.json",
                   "tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(names_in(folder.path()), Names{"out"});
  const Json written = read_json_file(folder / "out" / "config.json");
  EXPECT_EQ(written.at("model_type"), "llama");
  EXPECT_EQ(written.at("torch_dtype"), "bfloat16");
  EXPECT_EQ(written.at("eos_token_id"), 256);
  EXPECT_EQ(read_json_file(folder / "out" / "generation_config.json").at("eos_token_id"), 256);
  EXPECT_EQ(SafetensorsFile(folder / "out" / "model.safetensors").metadata().at("format"), "pt");
  EXPECT_EQ(load_tokenizer(folder / "out")->fingerprint(),
            load_tokenizer(folder / "out" / "tokenizer.json")->fingerprint());
}

TEST(HfFolder, AnExportNeedsAFewMebibytesForAnyModelSize) {
  install_cpu_allocator();
  const TempFolder folder;
  ModelConfig config = small_config();
  config.dim = 512;
  config.vocab_size = 16384;
  const fs::path step = folder / "step-1";
  {
    const SmallModel model(1, config);
    write_checkpoint(folder.path(), 1, stage_checkpoint(model.spec, model.store, nullptr, Json::object()));
  }
  const ModelSpec spec = model_spec(config);
  const int64_t before = cpu_memory().live_bytes;
  reset_cpu_peak();
  export_hf(folder / "out", config, spec, checkpoint_tensors(verify_checkpoint(step)), nullptr,
            {DType::bf16, kDefaultShardBytes});
  EXPECT_GT(4 * spec.parameter_count(), int64_t{64} << 20);
  EXPECT_LE(cpu_memory().peak_bytes - before, int64_t{16} << 20);
}

TEST(HfFolder, AnExistingFolderIsNotOverwritten) {
  const TempFolder folder;
  const SmallModel model(1);
  fs::create_directory(folder / "out");
  const std::string message = message_of<UsageError>([&] { export_model(folder / "out", model); });
  EXPECT_CONTAINS(message, "exists already");
  EXPECT_EQ(names_in(folder.path()), Names{"out"});
  EXPECT_EQ(names_in(folder / "out"), Names{});
}

TEST(HfFolder, OtherTypesAreNotExported) {
  const TempFolder folder;
  const SmallModel model(1);
  EXPECT_THROW(export_model(folder / "out", model, nullptr, {DType::i32, 1}), UsageError);
}

class HfImport : public ::testing::Test {
 protected:
  explicit HfImport(bool tied = false) : model_(1, small_config("llama", tied)) {
    export_model(folder_ / "good", model_);
    tensors_ = tensors_of(folder_ / "good");
    model_.refill(50);
    before_ = model_.bits();
  }

  void import() {
    fs::create_directories(folder_ / "in");
    write_tensors(folder_ / "in" / "model.safetensors", aligned());
    import_hf(folder_ / "in", model_.spec, model_.store);
  }
  /// The error message of the import, which must leave the model unchanged.
  std::string refusal() {
    std::string message = message_of<Error>([&] { import(); });
    EXPECT_EQ(model_.bits(), before_);
    return message;
  }
  void remove(const std::string& name) {
    std::erase_if(tensors_, [&](const FileTensor& tensor) { return tensor.spec.name == name; });
  }

  TempFolder folder_;
  SmallModel model_;
  std::vector<FileTensor> tensors_;
  std::string before_;

 private:
  std::vector<FileTensor> aligned() {
    std::stable_sort(tensors_.begin(), tensors_.end(), [](const FileTensor& left, const FileTensor& right) {
      return dtype_bytes(left.spec.dtype) > dtype_bytes(right.spec.dtype);
    });
    return tensors_;
  }
};

TEST_F(HfImport, AllDifferencesAreReportedInOneErrorAndNothingChanges) {
  remove("model.layers.0.self_attn.k_proj.weight");
  remove("model.norm.weight");
  tensors_.push_back({{"model.layers.0.self_attn.q_proj.bias", DType::f32, {2}}, std::string(8, '\0')});
  tensors_.push_back({{"model.layers.2.input_layernorm.weight", DType::f32, {1}}, std::string(4, '\0')});
  tensor_named(tensors_, "model.layers.1.mlp.up_proj.weight").spec.shape = {16, 24};
  FileTensor& norm = tensor_named(tensors_, "model.layers.1.input_layernorm.weight");
  norm.spec.dtype = DType::i32;
  const std::string message = refusal();
  EXPECT_CONTAINS(message, (folder_ / "in").string() + " do not fit the model");
  EXPECT_CONTAINS(message, "2 tensors missing, 2 unexpected, 2 different");
  EXPECT_CONTAINS(message, "missing: model.layers.0.self_attn.k_proj.weight [12, 16]");
  EXPECT_CONTAINS(message, "missing: model.norm.weight [16]");
  EXPECT_CONTAINS(message, "unexpected: \"model.layers.0.self_attn.q_proj.bias\"");
  EXPECT_CONTAINS(message, "unexpected: \"model.layers.2.input_layernorm.weight\"");
  EXPECT_CONTAINS(message,
                  "different shape: model.layers.1.mlp.up_proj.weight is [16, 24], expected [24, 16]");
  EXPECT_CONTAINS(message,
                  "different dtype: model.layers.1.input_layernorm.weight is I32, expected F32, BF16, F16");
}

TEST_F(HfImport, RotaryBuffersOfOlderExportsAreIgnored) {
  tensors_.push_back(
      {{"model.layers.0.self_attn.rotary_emb.inv_freq", DType::f32, {3}}, std::string(12, 'x')});
  import();
  EXPECT_EQ(model_.bits(true), SmallModel(1).bits(true));
}

TEST_F(HfImport, AnUntiedModelNeedsItsHead) {
  remove("lm_head.weight");
  EXPECT_CONTAINS(refusal(), "missing: lm_head.weight [40, 16]");
}

TEST_F(HfImport, ATensorInTwoShardsIsRefused) {
  const fs::path shards = folder_ / "shards";
  fs::create_directories(shards);
  HfIndex index;
  for (const FileTensor& tensor : tensors_) index.weight_map.emplace(tensor.spec.name, "a.safetensors");
  index.weight_map["model.norm.weight"] = "b.safetensors";
  write_hf_index(shards / kIndexFileName, index);
  write_tensors(shards / "a.safetensors", tensors_);
  write_tensors(shards / "b.safetensors", {tensor_named(tensors_, "model.norm.weight")});
  const std::string message = message_of<Error>([&] { import_hf(shards, model_.spec, model_.store); });
  EXPECT_CONTAINS(message, "model.norm.weight");
  EXPECT_EQ(model_.bits(), before_);
}

TEST_F(HfImport, MissingOrDamagedFoldersAreRefusedNamingTheFault) {
  const auto refused = [&](const fs::path& path) {
    std::string message = message_of<Error>([&] { import_hf(path, model_.spec, model_.store); });
    EXPECT_EQ(model_.bits(), before_);
    return message;
  };
  fs::create_directories(folder_ / "bad");
  const fs::path weights = folder_ / "bad" / "model.safetensors";
  const fs::path index = folder_ / "bad" / kIndexFileName;
  EXPECT_CONTAINS(refused(folder_ / "absent"), "absent");
  EXPECT_CONTAINS(refused(folder_ / "bad"), "bad");
  write_text(weights, "");
  EXPECT_CONTAINS(refused(folder_ / "bad"), weights.string());
  write_text(weights, std::string(8, '\xff') + "{}");
  EXPECT_CONTAINS(refused(folder_ / "bad"), weights.string());
  fs::copy_file(folder_ / "good" / "model.safetensors", weights, fs::copy_options::overwrite_existing);
  fs::resize_file(weights, fs::file_size(weights) - 1);
  EXPECT_CONTAINS(refused(folder_ / "bad"), weights.string());
  fs::remove(weights);
  write_text(index, R"({"weight_map": {"model.norm.weight": "../good/model.safetensors"}})");
  EXPECT_CONTAINS(refused(folder_ / "bad"), "../good/model.safetensors");
  write_text(index, R"({"weight_map": {"model.norm.weight": "gone.safetensors"}})");
  EXPECT_CONTAINS(refused(folder_ / "bad"), "gone.safetensors");
}

TEST_F(HfImport, AHostileNameIsTruncatedAndSanitizedInTheMessage) {
  tensors_.push_back({{"evil\x1b[31m" + std::string(900, 'x'), DType::f32, {0}}, ""});
  const std::string message = refusal();
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_LT(message.size(), 500);
}

class HfImportTied : public HfImport {
 protected:
  HfImportTied() : HfImport(true) {}
  FileTensor head() {
    FileTensor copy = tensor_named(tensors_, "model.embed_tokens.weight");
    copy.spec.name = "lm_head.weight";
    return copy;
  }
};

TEST_F(HfImportTied, AnEqualCopyOfTheTiedTensorIsAccepted) {
  tensors_.push_back(head());
  import();
  EXPECT_EQ(model_.bits(true), SmallModel(1, model_.config).bits(true));
}

TEST_F(HfImportTied, ACopyThatDiffersInOneBitIsRefused) {
  tensors_.push_back(head());
  tensors_.back().bytes[77] ^= 1;
  EXPECT_CONTAINS(refusal(), "lm_head.weight: differs from model.embed_tokens.weight",
                  "\"tie_word_embeddings\": false in config.json");
}

TEST_F(HfImportTied, ACopyOfAnotherShapeIsRefused) {
  tensors_.push_back(head());
  tensors_.back().spec.shape = {16, 40};
  EXPECT_CONTAINS(refusal(), "lm_head.weight: is F32 [16, 40], but tied to model.embed_tokens.weight");
}

}  // namespace
}  // namespace stepforge::testing
