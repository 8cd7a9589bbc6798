// SPDX-License-Identifier: Apache-2.0
#include "stepforge/tensorfile/hf_index.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/tensorfile/build_file.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

/// A file of U8 tensors that hold their own names.
void write_tensors(const fs::path& path, const std::vector<std::string>& names) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : names)
    specs.push_back({name, DType::u8, {static_cast<int64_t>(name.size())}});
  SafetensorsWriter writer(path, specs);
  for (const std::string& name : names) writer.write(name, as_bytes(name));
  writer.finish();
}

std::string content(const TensorFolder& folder, const std::string& name) {
  std::string text(name.size(), '\0');
  folder.read(name, {{0}, {static_cast<int64_t>(name.size())}}, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_index(const TempFolder& folder, std::map<std::string, std::string, std::less<>> weight_map) {
  write_hf_index(folder / "model.safetensors.index.json", {std::move(weight_map), 3});
}

std::string index_refusal(const std::string& text) {
  const TempFolder folder;
  put_file(folder / "index.json", text);
  return message_of<FormatError>([&] { read_hf_index(folder / "index.json"); });
}

TEST(HfIndex, IsReadAsItWasWritten) {
  const TempFolder folder;
  const HfIndex index = {{{"a", "model-1.safetensors"}, {"b", "model-2.safetensors"}}, 12'345'678'901};
  write_hf_index(folder / "index.json", index);
  const HfIndex again = read_hf_index(folder / "index.json");
  EXPECT_EQ(again.weight_map, index.weight_map);
  EXPECT_EQ(again.total_bytes, index.total_bytes);
}

TEST(HfIndex, MetadataMayBeMissingOrAFloat) {
  const TempFolder folder;
  put_file(folder / "index.json", R"({"weight_map":{"a":"x.safetensors"}})");
  EXPECT_EQ(read_hf_index(folder / "index.json").total_bytes, 0);
  put_file(folder / "index.json", R"({"metadata":{"total_size":1.6e10},"weight_map":{"a":"x.safetensors"}})");
  EXPECT_EQ(read_hf_index(folder / "index.json").total_bytes, 16'000'000'000);
}

TEST(HfIndex, OnlyPlainFileNamesAreAccepted) {
  for (const char* name : {"../x", "..", ".", "", "/etc/passwd", "a/b", "a\\\\b", "a\\u0000b", "a\\nb"}) {
    const std::string message = index_refusal(format(R"({{"weight_map":{{"a":"{}"}}}})", name));
    EXPECT_CONTAINS(message, "is not a plain file name") << name;
  }
}

TEST(HfIndex, AllFaultsAreListedTogether) {
  const std::string message =
      index_refusal(R"({"metadata":{"total_size":-1},"weight_map":{"a":"../x","b":3}})");
  EXPECT_CONTAINS(message, "3 errors");
  EXPECT_CONTAINS(message, "total_size");
  EXPECT_CONTAINS(message, "\"../x\" of \"a\"");
  EXPECT_CONTAINS(message, "the file of \"b\" is not a string");
}

TEST(HfIndex, RefusesFilesThatAreNotAnIndex) {
  EXPECT_CONTAINS(index_refusal("[]"), "weight_map");
  EXPECT_CONTAINS(index_refusal("{}"), "weight_map");
  EXPECT_CONTAINS(index_refusal(R"({"weight_map":[]})"), "weight_map");
  EXPECT_CONTAINS(index_refusal(R"({"weight_map":{}})"), "is empty");
  EXPECT_CONTAINS(index_refusal(R"({"weight_map":{"a":"x","a":"y"}})"), "appears twice");
  EXPECT_CONTAINS(index_refusal(R"({"metadata":3,"weight_map":{"a":"x"}})"), "\"metadata\" is not an object");
}

TEST(PlanShards, FillsFilesInOrderUpToTheLimit) {
  const std::vector<TensorSpec> specs = {{"a", DType::u8, {4}},
                                         {"b", DType::u8, {6}},
                                         {"c", DType::u8, {1}},
                                         {"big", DType::u8, {99}},
                                         {"d", DType::u8, {1}}};
  const std::vector<ShardPlan> shards = plan_shards(specs, 10);
  ASSERT_EQ(shards.size(), 4U);
  EXPECT_EQ(shards[0].tensors, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(shards[0].bytes, 10);
  EXPECT_EQ(shards[1].tensors, (std::vector<size_t>{2}));
  EXPECT_EQ(shards[2].tensors, (std::vector<size_t>{3}));
  EXPECT_EQ(shards[3].file_name, "model-00004-of-00004.safetensors");
  const HfIndex index = index_of_shards(specs, shards);
  EXPECT_EQ(index.total_bytes, 111);
  EXPECT_EQ(index.weight_map.at("big"), "model-00003-of-00004.safetensors");
}

TEST(PlanShards, OneFileHasThePlainName) {
  const std::vector<TensorSpec> specs = {{"a", DType::u8, {4}}};
  ASSERT_EQ(plan_shards(specs).size(), 1U);
  EXPECT_EQ(plan_shards(specs)[0].file_name, "model.safetensors");
}

TEST(HfWeights, OpensASingleFile) {
  const TempFolder folder;
  write_tensors(folder / "model.safetensors", {"b", "a"});
  const TensorFolder tensors = open_hf_weights(folder.path());
  EXPECT_EQ(tensors.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(content(tensors, "b"), "b");
  EXPECT_EQ(tensors.find("c"), nullptr);
  EXPECT_THROW(content(tensors, "c"), Error);
  EXPECT_EQ(open_hf_weights(folder / "model.safetensors").size(), 2U);
}

TEST(HfWeights, OpensShardsThroughTheIndex) {
  const TempFolder folder;
  write_tensors(folder / "one.safetensors", {"a", "b"});
  write_tensors(folder / "two.safetensors", {"c"});
  write_tensors(folder / "unrelated.safetensors", {"a"});
  write_index(folder, {{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}});
  const TensorFolder tensors = open_hf_weights(folder.path());
  EXPECT_EQ(tensors.size(), 3U);
  EXPECT_EQ(content(tensors, "c"), "c");
  EXPECT_EQ(tensors.files()[tensors.find("c")->parts[0].file].path().filename(), "two.safetensors");
  EXPECT_EQ(tensors.find("a")->shape, std::vector<int64_t>{1});
}

TEST(HfWeights, ListsEveryDifferenceBetweenIndexAndFiles) {
  const TempFolder folder;
  write_tensors(folder / "one.safetensors", {"a", "extra1", "extra2"});
  write_tensors(folder / "two.safetensors", {"c"});
  write_index(folder, {{"a", "two.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}});
  const std::string message = message_of<FormatError>([&] { open_hf_weights(folder.path()); });
  EXPECT_CONTAINS(message, "4 errors");
  EXPECT_CONTAINS(message, "\"a\" is in one.safetensors, not in two.safetensors");
  EXPECT_CONTAINS(message, "\"b\" is missing from one.safetensors");
  EXPECT_CONTAINS(message, "\"extra1\" of one.safetensors is not in the index");
  EXPECT_CONTAINS(message, "\"extra2\" of one.safetensors is not in the index");
}

TEST(HfWeights, ListsEveryMissingFile) {
  const TempFolder folder;
  fs::create_directory(folder / "dir.safetensors");
  write_index(folder, {{"a", "gone.safetensors"}, {"b", "dir.safetensors"}});
  const std::string message = message_of<FormatError>([&] { open_hf_weights(folder.path()); });
  EXPECT_CONTAINS(message, "gone.safetensors is not a regular file of the folder");
  EXPECT_CONTAINS(message, "dir.safetensors is not a regular file of the folder");
}

TEST(HfWeights, AFolderWithoutAModelIsAUsageError) {
  const TempFolder folder;
  EXPECT_CONTAINS(message_of<UsageError>([&] { open_hf_weights(folder.path()); }), "no Hugging Face model");
  EXPECT_THROW(open_hf_weights(folder / "missing"), UsageError);
}

TEST(HfWeights, LinksOutOfTheFolderAreRefused) {
  const TempFolder outside;
  write_tensors(outside / "secret.safetensors", {"a"});
  const TempFolder folder;
  fs::create_symlink(outside / "secret.safetensors", folder / "one.safetensors");
  write_index(folder, {{"a", "one.safetensors"}});
  const std::string message = message_of<FormatError>([&] { open_hf_weights(folder.path()); });
  EXPECT_CONTAINS(message, "one.safetensors is not a regular file of the folder");
  fs::create_symlink(outside / "secret.safetensors", folder / "model.safetensors");
  EXPECT_THROW(open_hf_weights(folder.path()), FormatError);
}

TEST(HfWeights, TheLinksOfAHuggingFaceCacheAreFollowed) {
  const TempFolder cache;
  fs::create_directories(cache / "blobs");
  fs::create_directories(cache / "snapshots" / "abc");
  write_tensors(cache / "blobs" / "0123", {"a"});
  fs::create_symlink("../../blobs/0123", cache / "snapshots" / "abc" / "model.safetensors");
  EXPECT_EQ(open_hf_weights(cache / "snapshots" / "abc").size(), 1U);
  const TempFolder local;  // of `hf download --local-dir`, which once made links
  fs::create_symlink(cache / "blobs" / "0123", local / "model.safetensors");
  EXPECT_EQ(open_hf_weights(local.path()).size(), 1U);
}

TEST(HfWeights, ADeadLinkAndOneOutOfTheFolderAreNamedWithTheirTarget) {
  const TempFolder folder;
  fs::create_symlink("../../blobs/0123", folder / "model.safetensors");
  EXPECT_CONTAINS(message_of<FormatError>([&] { open_hf_weights(folder.path()); }),
                  "a link to ../../blobs/0123");
}

TEST(HfWeights, AllShardsOfOneModelNeedNoIndex) {
  const TempFolder folder;
  write_tensors(folder / "model-00001-of-00002.safetensors", {"a", "b"});
  EXPECT_CONTAINS(message_of<UsageError>([&] { open_hf_weights(folder.path()); }), "number 2 missing");
  write_tensors(folder / "model-00002-of-00002.safetensors", {"c"});
  EXPECT_EQ(open_hf_weights(folder.path()).names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_TRUE(holds_hf_weights(folder.path()));
  write_tensors(folder / "old-00001-of-00001.safetensors", {"d"});
  EXPECT_CONTAINS(message_of<UsageError>([&] { open_hf_weights(folder.path()); }), "shards of 2 models");
}

TEST(HfWeights, ShardsWithoutAnIndexThatOverlapAreRefused) {
  const TempFolder folder;
  write_tensors(folder / "model-00001-of-00002.safetensors", {"a", "b"});
  write_tensors(folder / "model-00002-of-00002.safetensors", {"b"});
  EXPECT_CONTAINS(message_of<FormatError>([&] { open_hf_weights(folder.path()); }), "which both hold");
}

TEST(HfWeights, TheOnlyFileOfWeightsMayHaveAnyName) {
  const TempFolder folder;
  write_tensors(folder / "weights.safetensors", {"a"});
  EXPECT_EQ(open_hf_weights(folder.path()).size(), 1U);
}

TEST(HfWeights, APointerOfGitLfsIsNamedWithTheRemedy) {
  constexpr const char* kPointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 10760\n";
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    const TempFolder folder;
    put_file(folder / name, kPointer);
    EXPECT_CONTAINS(message_of<Error>([&] { open_hf_weights(folder.path()); }), "git lfs pull") << name;
  }
}

TEST(HfWeights, WhatIsThereInsteadIsNamedWithTheRemedy) {
  for (const auto& [name, remedy] : std::map<std::string, std::string>{
           {"adapter_config.json", "--merge"},
           {"pytorch_model.bin", "save_pretrained("},
           {"pytorch_model-00001-of-00002.bin", "save_pretrained("},
           {"consolidated.00.pth", "convert_llama_weights_to_hf.py"},
           {"consolidated.safetensors", "download the files model*.safetensors"},
           {"Model-Q4_K_M.GGUF", "llama.cpp (GGUF)"},
           {"__0_0.distcp", "distributed checkpoint"},
           {"flax_model.msgpack", "Flax"},
           {"model.h5", "TensorFlow"}}) {
    const TempFolder folder;
    put_file(folder / name, name.ends_with("json") ? R"({"base_model_name_or_path":"org/base"})" : "x");
    put_file(folder / "training_args.bin", "x");
    const std::string message = message_of<UsageError>([&] { open_hf_weights(folder.path()); });
    EXPECT_CONTAINS(message, remedy) << name;
    EXPECT_EQ(message.find('\n'), std::string::npos) << "one line";
    if (name.ends_with("json")) {
      EXPECT_CONTAINS(message, "org/base");
    }
  }
}

TEST(HfWeights, AdaptersAndQuantizedWeightsInsideAreNamed) {
  for (const auto& [name, remedy] :
       std::map<std::string, std::string>{{"model.layers.0.q_proj.lora_A.default.weight", "--merge"},
                                          {"model.layers.0.q_proj.qweight", "quantized"},
                                          {"model.layers.0.q_proj.weight.absmax", "quantized"}}) {
    const TempFolder folder;
    write_tensors(folder / "model.safetensors", {"model.embed_tokens.weight", name});
    EXPECT_CONTAINS(message_of<UsageError>([&] { open_hf_weights(folder.path()); }), remedy) << name;
  }
}

TEST(HfWeights, WeightsOfEightBitsAreNamedWithTheRemedy) {
  const TempFolder folder;
  put_file(folder / "model.safetensors",
           build_file(R"({"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}})", 2));
  EXPECT_CONTAINS(message_of<FormatError>([&] { open_hf_weights(folder.path()); }), "convert them to BF16");
}

TEST(HfWeights, PrefixesOfWrappersAreLeftOutAndSaid) {
  const std::vector<std::string> right = {"lm_head.weight", "model.embed_tokens.weight",
                                          "model.layers.0.mlp.up_proj.weight",
                                          "model.layers.2.embed_tokens.weight", "model.norm.weight"};
  for (const std::string prefix : {"_orig_mod.", "module.", "base_model.model.", "model.", "_forward_module.",
                                   "module._orig_mod.", "student."}) {
    const TempFolder folder;
    std::vector<std::string> names;
    for (const std::string& name : right) names.push_back(prefix + name);
    write_tensors(folder / "model.safetensors", names);
    const TensorFolder weights = open_hf_weights(folder.path());
    EXPECT_EQ(weights.names(), right) << prefix;
    EXPECT_CONTAINS(weights.note(), "left out of the names") << prefix;
    std::string text((prefix + "model.norm.weight").size(), '\0');
    weights.read("model.norm.weight", {{0}, {std::ssize(text)}}, std::as_writable_bytes(std::span(text)));
    EXPECT_EQ(text, prefix + "model.norm.weight");
  }
}

TEST(HfWeights, WrappersOfSingleLayersAreLeftOut) {
  const TempFolder folder;
  write_tensors(folder / "model.safetensors",
                {"model.embed_tokens.weight", "model.layers.0._orig_mod.norm.weight",
                 "model.layers.1._checkpoint_wrapped_module._orig_mod.norm.weight"});
  EXPECT_EQ(open_hf_weights(folder.path()).names(),
            (std::vector<std::string>{"model.embed_tokens.weight", "model.layers.0.norm.weight",
                                      "model.layers.1.norm.weight"}));
}

TEST(HfWeights, AMissingModelIsPutBeforeTheNames) {
  for (const std::string prefix : {"", "transformer."}) {
    const TempFolder folder;
    write_tensors(folder / "model.safetensors",
                  {prefix + "embed_tokens.weight", prefix + "layers.0.norm.weight", "lm_head.weight"});
    const TensorFolder weights = open_hf_weights(folder.path());
    EXPECT_EQ(weights.names(), (std::vector<std::string>{"lm_head.weight", "model.embed_tokens.weight",
                                                         "model.layers.0.norm.weight"}));
    EXPECT_CONTAINS(weights.note(), "\"model.\" put before them");
  }
}

TEST(HfWeights, NamesThatAreRightOrAmbiguousStay) {
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"},
        std::vector<std::string>{"a.model.embed_tokens.weight", "b.model.norm.weight"},
        std::vector<std::string>{"a.model.embed_tokens.weight", "b.model.embed_tokens.weight"},
        std::vector<std::string>{"_orig_mod.model.norm.weight", "model.norm.weight"}}) {
    const TempFolder folder;
    write_tensors(folder / "model.safetensors", names);
    const TensorFolder weights = open_hf_weights(folder.path());
    EXPECT_EQ(weights.names(), names);
    EXPECT_EQ(weights.note(), "");
  }
}

}  // namespace
}  // namespace stepforge::testing
