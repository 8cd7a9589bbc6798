// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/mds_shard.h"

#include <cstring>
#include <functional>

#include <gtest/gtest.h>

#include "tests/records/compressed.h"
#include "tests/records/test_support.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

template <typename T>
std::string bytes_of(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

/// A shard of these samples, as mosaicml/streaming writes it.
std::string shard_of(const Texts& samples) {
  const std::string config = "{\"version\": 2}";
  auto offset = static_cast<uint32_t>(4 + 4 * (samples.size() + 1) + config.size());
  std::string bytes = bytes_of(static_cast<uint32_t>(samples.size())) + bytes_of(offset);
  for (const std::string& sample : samples) bytes += bytes_of(offset += static_cast<uint32_t>(sample.size()));
  bytes += config;
  for (const std::string& sample : samples) bytes += sample;
  return bytes;
}

/// A sample of a column of variable size and one of eight bytes.
std::string sample_of(const std::string& text, int64_t id) {
  return bytes_of(static_cast<uint32_t>(text.size())) + bytes_of(id) + text;
}

Json entry_of(const std::string& name, int64_t bytes, int64_t samples) {
  return {{"column_encodings", {"int", "str"}},
          {"column_names", {"id", "text"}},
          {"column_sizes", {8, nullptr}},
          {"compression", nullptr},
          {"format", "mds"},
          {"hashes", Json::array()},
          {"raw_data", {{"basename", name}, {"bytes", bytes}, {"hashes", Json::object()}}},
          {"samples", samples},
          {"size_limit", 67108864},
          {"version", 2},
          {"zip_data", nullptr}};
}

class MdsTest : public ::testing::Test {
 protected:
  MdsTest() {
    write(0, shard_of({sample_of("one\n\"1\"", 7), sample_of("two", -1)}), 2);
    write(1, shard_of({sample_of("three", 0)}), 1);
  }

  static std::string name_of(int number) { return format("shard.{:05}.mds", number); }

  void write(int number, const std::string& bytes, int64_t samples) {
    folder_.write("set/" + name_of(number), bytes);
    const Json entry = entry_of(name_of(number), std::ssize(bytes), samples);
    shards_[static_cast<size_t>(number)] = entry;
    write_index();
  }
  void write_index() const {
    folder_.write("set/index.json", Json{{"shards", shards_}, {"version", 2}}.dump());
  }
  TextSourceOptions options() const { return {.paths = {folder_ / "set"}}; }
  Texts texts() const { return texts_of(TextSource(options())); }
  Texts rows() const { return texts_of(TextSource({.paths = {folder_ / "set"}, .field = std::nullopt}), 1); }
  std::string fault() const { return source_message<FormatError>(options()); }
  /// The fault after a change of the entry of the first shard, which is undone.
  std::string fault_with(const std::function<void(Json&)>& change) {
    const Json before = shards_;
    change(shards_[0]);
    write_index();
    std::string message = fault();
    shards_ = before;
    write_index();
    return message;
  }
  /// The fault of a first shard with these bytes.
  std::string fault_of_shard(const std::string& bytes, int64_t samples = 2) {
    write(0, bytes, samples);
    return fault();
  }

  TempFolder folder_;
  Json shards_ = Json::array({nullptr, nullptr});
};

TEST_F(MdsTest, ReadsTheSamplesOfAllShards) {
  EXPECT_EQ(texts(), (Texts{"one\n\"1\"", "two", "three"}));
  EXPECT_EQ(rows(), (Texts{R"({"id":7,"text":"one\n\"1\""})", R"({"id":-1,"text":"two"})",
                           R"({"id":0,"text":"three"})"}));
  EXPECT_EQ(TextSource(options()).skipped(), "");
  // Inside of other folders, and by the name of a shard.
  EXPECT_EQ(texts_of(TextSource({.paths = {folder_.path()}})), texts());
  EXPECT_EQ(texts_of(TextSource({.paths = {folder_ / "set/shard.00001.mds"}})), (Texts{"three"}));
}

TEST_F(MdsTest, ReadsCompressedShardsWhereTheOthersAreMissing) {
  const auto compress = [&](const std::string& name, const std::string& packed) {
    fs::remove(folder_ / ("set/" + name_of(0)));
    folder_.write("set/" + name, packed);
    shards_[0]["zip_data"] = {{"basename", name}, {"bytes", packed.size()}};
    write_index();
  };
  const std::string raw = read_file(folder_ / ("set/" + name_of(0)));
  compress("shard.00000.mds.zstd", zstd(raw));
  EXPECT_EQ(texts(), (Texts{"one\n\"1\"", "two", "three"}));
  compress("shard.00000.mds.gz", gzip(raw));
  EXPECT_EQ(texts(), (Texts{"one\n\"1\"", "two", "three"}));
  compress("shard.00000.mds.br", raw);
  EXPECT_CONTAINS(fault(), "shard.00000.mds.br is compressed in a way that is not known");
  // Contents that are longer than the index says.
  compress("shard.00000.mds.zstd", zstd(raw + "x"));
  EXPECT_CONTAINS(fault(), "shard.00000.mds.zstd: row 2: there are bytes after byte");
  compress("shard.00000.mds.zstd", zstd(raw.substr(0, raw.size() - 1)));
  EXPECT_CONTAINS(fault(), "shard.00000.mds.zstd: row 2: the file ends inside of it: it is truncated");
}

TEST_F(MdsTest, ReadsEveryEncodingOfTextJsonAndNumbers) {
  const Json encodings = {"str",     "json",    "str_int", "int8",  "uint64",
                          "float16", "float32", "float64", "bytes", "ndarray:uint8:2"};
  const Json sizes = {nullptr, nullptr, nullptr, 1, 8, 2, 4, 8, nullptr, 2};
  const auto size = [](size_t bytes) { return bytes_of(static_cast<uint32_t>(bytes)); };
  const std::string json = "{\"a\":\n [1, \"\\n\"]}";
  const std::string sample = size(1) + size(json.size()) + size(3) + size(2) + "x" + json + "123" +
                             bytes_of(int8_t{-3}) + bytes_of(~uint64_t{0}) + bytes_of(uint16_t{0xB800}) +
                             bytes_of(0.25F) + bytes_of(std::numeric_limits<double>::quiet_NaN()) +
                             "\xFF\xFF" + "ab";
  write(0, shard_of({sample}), 1);
  shards_[0]["column_names"] = {"s", "j", "si", "i8", "u64", "f16", "f32", "f64", "b", "nd"};
  shards_[0]["column_encodings"] = encodings;
  shards_[0]["column_sizes"] = sizes;
  shards_.erase(1);
  write_index();
  EXPECT_EQ(rows(),
            (Texts{R"({"s":"x","j":{"a":[1,"\n"]},"si":"123","i8":-3,"u64":18446744073709551615,"f16":-0.5,)"
                   R"("f32":0.25,"f64":null})"}));
  EXPECT_CONTAINS(fault(), "shard.00000.mds: row 1: no field \"text\"; it has \"s\", \"j\"");
}

TEST_F(MdsTest, RefusesAMalformedIndex) {
  const auto set = [&](const std::string& key, const Json& value) {
    return fault_with([&](Json& entry) { entry[key] = value; });
  };
  EXPECT_CONTAINS(set("format", "xsv"), "index.json: \"shards[0].format\"", "only \"mds\" is read");
  EXPECT_CONTAINS(set("samples", 9223372036854775807U + 1), "index.json: \"shards[0].samples\"");
  EXPECT_CONTAINS(set("samples", -1), "index.json: \"shards[0].samples\"");
  EXPECT_CONTAINS(set("column_names", {"id", "id"}), "two columns have this name");
  EXPECT_CONTAINS(set("column_names", {"id"}), "1 column names, 2 encodings and 2 sizes");
  EXPECT_CONTAINS(set("column_sizes", {4, nullptr}), "a column of encoding int has 8 bytes");
  EXPECT_CONTAINS(set("column_sizes", {8, 9223372036854775807U}), "\"shards[0].column_sizes[1]\"");
  EXPECT_CONTAINS(set("column_encodings", {"bytes", "pkl"}), "no column can be read");
  for (const std::string name : {"../a.mds", "/etc/passwd", "sub/a.mds", "..", ""}) {
    EXPECT_CONTAINS(set("raw_data", {{"basename", name}, {"bytes", 1}}), "\"shards[0].raw_data.basename\"",
                    "it must be the plain name of a file in the same folder");
  }
  EXPECT_CONTAINS(set("raw_data", {{"basename", name_of(0)}, {"bytes", 9223372036854775807U + 1}}),
                  "\"shards[0].raw_data.bytes\"");
  EXPECT_CONTAINS(set("raw_data", {{"basename", "none.mds"}, {"bytes", 1}}),
                  "none.mds, which index.json lists, cannot be found");
  folder_.write("set/index.json", R"({"version": 1, "shards": []})");
  EXPECT_CONTAINS(fault(), "only version 2 of the format is read");
  folder_.write("set/index.json", "{");
  EXPECT_CONTAINS(fault(), "index.json");
  fs::remove(folder_ / "set/index.json");
  EXPECT_CONTAINS(fault(), "index.json does not exist: it describes the columns");
}

TEST_F(MdsTest, RefusesShardsThatContradictTheIndex) {
  const std::string good = read_file(folder_ / ("set/" + name_of(0)));
  folder_.write("set/" + name_of(0), good.substr(0, good.size() - 1));
  EXPECT_CONTAINS(fault(), "shard.00000.mds has", "but index.json says", "it is truncated or damaged");
  EXPECT_CONTAINS(fault_of_shard(good, 3),
                  "shard.00000.mds: header: it has 2 samples, but index.json says 3");
  EXPECT_CONTAINS(fault_of_shard("abc"), "shard.00000.mds: header: the file ends inside of it");
  EXPECT_CONTAINS(fault_of_shard(bytes_of(uint32_t{1} << 26), int64_t{1} << 26),
                  "header: the file ends inside of it");
  const auto with_offset = [&](size_t number, uint32_t value) {
    std::string bytes = good;
    bytes.replace(4 + 4 * number, 4, bytes_of(value));
    return fault_of_shard(bytes);
  };
  EXPECT_CONTAINS(with_offset(0, 15),
                  "sample 1 is said to begin at byte 15, inside of the 16 bytes of the header");
  EXPECT_CONTAINS(with_offset(1, 0xFFFFFFFF), "the offsets of the samples do not ascend");
  EXPECT_CONTAINS(with_offset(2, 0xFFFFFFFF),
                  "the last sample is said to end at byte 4294967295, but index.json says");
}

TEST_F(MdsTest, NamesTheRowOfAMalformedSample) {
  const auto text_size = [](uint32_t size) { return bytes_of(size) + bytes_of(int64_t{1}) + "four"; };
  EXPECT_CONTAINS(
      fault_of_shard(shard_of({sample_of("ok", 1), text_size(5)})),
      "shard.00000.mds: row 2: column \"text\" is said to have 5 bytes, but the sample has only 4 more");
  EXPECT_CONTAINS(fault_of_shard(shard_of({text_size(0xFFFFFFFF), text_size(4)})),
                  "row 1: column \"text\" is said to have");
  EXPECT_CONTAINS(fault_of_shard(shard_of({text_size(4), text_size(3)})),
                  "row 2: its columns have 15 bytes, but the sample has 16");
  EXPECT_CONTAINS(fault_of_shard(shard_of({"abc", text_size(4)})),
                  "row 1: 3 bytes are too few for the sizes of its columns");
  EXPECT_CONTAINS(fault_of_shard(shard_of({sample_of("ok", 1), sample_of("caf\xE9", 1)})),
                  "row 2: it is not valid UTF-8");
  shards_[0]["column_encodings"] = {"int", "json"};
  write_index();
  EXPECT_CONTAINS(fault(), "shard.00000.mds: row 1: column \"text\": invalid JSON");
}

TEST_F(MdsTest, RefusesLinksThatLeaveTheFolder) {
  const fs::path file = folder_ / ("set/" + name_of(0));
  fs::rename(file, folder_ / "elsewhere");
  fs::create_symlink("../elsewhere", file);
  EXPECT_CONTAINS(fault(), "shard.00000.mds is a symbolic link to", "outside of its folder");
  fs::rename(folder_ / "elsewhere", folder_ / "set/other");
  fs::remove(file);
  fs::create_symlink("other", file);
  EXPECT_EQ(texts(), (Texts{"one\n\"1\"", "two", "three"}));
}

TEST_F(MdsTest, NamesAShardThatBecomesShorter) {
  write(0, shard_of({sample_of(std::string(1 << 20, 'x'), 1)}), 1);
  const fs::path file = folder_ / ("set/" + name_of(0));
  const TextFile found = find_text_files({file}, "auto").files.at(0);
  const auto input = open_contents(found, std::nullopt);
  fs::resize_file(file, 1000);
  std::string bytes(2 << 20, '\0');
  EXPECT_CONTAINS(message_of<Error>([&] { input->read(bytes); }), "shard.00000.mds became shorter");
}

TEST_F(MdsTest, TheIndexIsReadOnceForAllShards) {
  const TextSource source(options());
  fs::remove(folder_ / "set/index.json");
  EXPECT_EQ(texts_of(source), (Texts{"one\n\"1\"", "two", "three"}));
}

TEST_F(MdsTest, DamagedSamplesCanBeSkipped) {
  std::string damaged = sample_of("lost", 7);
  damaged[0] = 9;
  write(0, shard_of({sample_of("one", 1), damaged, "\1", sample_of("two", 2)}), 4);
  for (const int64_t chunk_bytes : {1, 1 << 20})
    EXPECT_EQ(texts_and_faults_of(TextSource(options()), chunk_bytes),
              (Texts{"one",
                     "! shard.00000.mds: row 2: column \"text\" is said to have 9 bytes, but the sample has "
                     "only 4 more",
                     "! shard.00000.mds: row 3: 1 bytes are too few for the sizes of its columns", "two",
                     "three"}));
}

TEST_F(MdsTest, TheNamesOfColumnsAreContent) {
  const auto content_key = [&] {
    const TextSource source(options());
    return source.content_key(source.file_hashes(1));
  };
  const std::string before = content_key();
  EXPECT_EQ(content_key(), before);
  shards_[0]["column_names"] = {"text", "id"};
  write_index();
  EXPECT_NE(content_key(), before);
}

}  // namespace
}  // namespace stepforge::testing
