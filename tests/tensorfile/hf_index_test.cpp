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
}

}  // namespace
}  // namespace stepforge::testing
