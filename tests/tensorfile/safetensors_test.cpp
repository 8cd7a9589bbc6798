// SPDX-License-Identifier: Apache-2.0
#include "stepforge/tensorfile/safetensors.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/tensorfile/build_file.h"
#include "tests/tensorfile/hostile_files.h"

namespace stepforge::testing {
namespace {

SafetensorsHeader parse(std::string_view file, const SafetensorsLimits& limits = {}) {
  return parse_safetensors(as_bytes(file), static_cast<int64_t>(file.size()), "evil.safetensors", limits);
}

TEST(HostileSafetensors, AreRefusedNamingFileByteAndField) {
  for (const HostileFile& hostile : hostile_files()) {
    SCOPED_TRACE(hostile.name);
    const std::string message = message_of<FormatError>([&] { parse(hostile.bytes); });
    EXPECT_CONTAINS(message, "evil.safetensors: byte ", hostile.message);
    EXPECT_LT(message.size(), 1000U);
  }
}

TEST(HostileSafetensors, NeedAtMostFourTimesTheMemoryOfTheFile) {
  for (const HostileFile& hostile : hostile_files()) {
    SCOPED_TRACE(hostile.name);
    const AllocationMeter meter;
    EXPECT_THROW(parse(hostile.bytes), FormatError);
    EXPECT_LE(meter.largest(), std::max<size_t>(4 * hostile.bytes.size(), 4096));
    EXPECT_LE(meter.peak(), 4 * hostile.bytes.size() + 16384);
  }
}

TEST(HostileSafetensors, AreRefusedFromTheDiskToo) {
  const TempFolder folder;
  for (const HostileFile& hostile : hostile_files()) {
    SCOPED_TRACE(hostile.name);
    put_file(folder / "hostile.safetensors", hostile.bytes);
    const auto open = [&] { const SafetensorsFile file(folder / "hostile.safetensors"); };
    const std::string message = message_of<FormatError>(open);
    EXPECT_CONTAINS(message, (folder / "hostile.safetensors").string());
  }
}

TEST(ParseSafetensors, EveryTruncationOfAGoodFileIsRefused) {
  const std::string good =
      build_file(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                 R"("b":{"dtype":"F32","shape":[1,2],"data_offsets":[2,10]}}  )",
                 10);
  EXPECT_EQ(parse(good).tensors().size(), 2U);
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(parse(std::string_view(good).substr(0, size)), FormatError) << size;
  }
}

TEST(ParseSafetensors, NoSingleChangedHeaderByteBreaksTheRules) {
  const std::string good = build_file(
      R"({"a":{"dtype":"U8","shape":[2,1],"data_offsets":[0,2]},"b":{"dtype":"F32","shape":[2],"data_offsets":[2,10]}})",
      10);
  for (size_t at = 0; at + 10 < good.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = good;
      changed[at] = static_cast<char>(value);
      try {
        const SafetensorsHeader header = parse(changed);
        int64_t expected = 0;
        for (const TensorEntry& entry : header.tensors()) {
          EXPECT_EQ(entry.begin, expected);
          EXPECT_EQ(entry.bytes(), tensor_bytes(entry.dtype, entry.shape));
          expected = entry.end;
        }
        EXPECT_EQ(expected, 10);
      } catch (const FormatError&) {
      }
    }
  }
}

TEST(ParseSafetensors, MoreTensorsThanTheLimitAreRefused) {
  std::string header = "{";
  for (int i = 0; i < 1001; ++i) {
    header += format(R"({}"{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", i == 0 ? "" : ",", i);
  }
  const std::string file = build_file(header + "}");
  EXPECT_EQ(parse(file, {.max_tensors = 1001}).tensors().size(), 1001U);
  const std::string message = message_of<FormatError>([&] { parse(file, {.max_tensors = 1000}); });
  EXPECT_CONTAINS(message, "more than 1000 tensors");
}

TEST(ParseSafetensors, AValidFileNeedsLittleMemoryToo) {
  std::string header = R"({"__metadata__":{"DCP_SHARDING_INFO":")" + std::string(100'000, 's') + "\"}";
  for (int i = 0; i < 5000; ++i) {
    header += format(R"(,"{:x}":{{"dtype":"U8","shape":[0,1,1,1,1,1,1,1,1,1],"data_offsets":[0,0]}})", i);
  }
  const std::string file = build_file(header + "}");
  const AllocationMeter meter;
  EXPECT_EQ(parse(file).tensors().size(), 5000U);
  EXPECT_LE(meter.peak(), 4 * file.size());
}

TEST(ParseSafetensors, TensorsComeInTheOrderOfTheirBytes) {
  const SafetensorsHeader header = parse(build_file(
      R"({"z":{"shape":[2],"data_offsets":[8,16],"dtype":"F32"},"a":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("empty":{"dtype":"BF16","shape":[0,7],"data_offsets":[8,8]}})",
      16));
  ASSERT_EQ(header.tensors().size(), 3U);
  EXPECT_EQ(header.tensors()[0].name, "a");
  EXPECT_EQ(header.tensors()[1].name, "empty");
  EXPECT_EQ(header.tensors()[2].name, "z");
  EXPECT_EQ(header.tensors()[2].shape, std::vector<int64_t>{2});
  EXPECT_EQ(header.find("a")->dtype, DType::i64);
  EXPECT_EQ(header.find("b"), nullptr);
  EXPECT_EQ(header.find(""), nullptr);
}

TEST(ParseSafetensors, EscapesAndWhiteSpaceAreJson) {
  const SafetensorsHeader header =
      parse(build_file("{\n\t\"\\u00e9\\ud83d\\ude00\\\"/\\/\" : {\"dtype\" : \"U8\" , \"shape\" : [ 1 ] , "
                       "\"data_offsets\" : [ 0 , 1 ] } }  ",
                       1));
  EXPECT_EQ(header.tensors()[0].name, "é😀\"//");
}

TEST(ParseSafetensors, MetadataIsDecoded) {
  const SafetensorsHeader header =
      parse(build_file(R"({"__metadata__":{"format":"pt","text":"a\nb","":""}})"));
  EXPECT_EQ(header.metadata(), (SafetensorsMetadata{{"format", "pt"}, {"text", "a\nb"}, {"", ""}}));
  EXPECT_TRUE(parse(build_file("{}")).metadata().empty());
  EXPECT_TRUE(parse(build_file("{}")).tensors().empty());
}

TEST(SafetensorsFile, ReturnsTheBytesOfEachTensor) {
  const TempFolder folder;
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})";
  put_file(folder / "f.safetensors", build_file(header) + "abcde");
  const SafetensorsFile file(folder / "f.safetensors");
  EXPECT_EQ(as_text(file.bytes(*file.find("a"))), "abc");
  EXPECT_EQ(as_text(file.bytes(*file.find("b"))), "de");
  EXPECT_THROW(SafetensorsFile(folder.path()), Error);
  EXPECT_THROW(SafetensorsFile(folder / "missing"), Error);
}

TEST(SafetensorsFile, NamesAFileTruncatedAfterItWasOpenedInsteadOfCrashing) {
  const TempFolder folder;
  put_file(folder / "f.safetensors",
           build_file(R"({"a":{"dtype":"U8","shape":[100000],"data_offsets":[0,100000]}})", 100'000));
  const SafetensorsFile file(folder / "f.safetensors");
  std::filesystem::resize_file(folder / "f.safetensors", 50'000);
  const std::string message = message_of<Error>([&] { file.bytes(file.tensors()[0]); });
  EXPECT_CONTAINS(message, (folder / "f.safetensors").string());
  EXPECT_CONTAINS(message, "became shorter");
}

TEST(TensorBytes, NeverOverflow) {
  const auto bytes = [](DType dtype, std::vector<int64_t> shape) { return tensor_bytes(dtype, shape); };
  EXPECT_EQ(bytes(DType::f32, {}), 4);
  EXPECT_EQ(bytes(DType::bf16, {3, 5}), 30);
  EXPECT_EQ(bytes(DType::f32, {0, 7}), 0);
  EXPECT_EQ(bytes(DType::u8, {(int64_t{1} << 62), 1}), int64_t{1} << 62);
  EXPECT_EQ(bytes(DType::u8, {(int64_t{1} << 62), 2}), std::nullopt);
  EXPECT_EQ(bytes(DType::f32, {int64_t{1} << 32, int64_t{1} << 32}), std::nullopt);
  EXPECT_EQ(bytes(DType::u8, {-1}), std::nullopt);
}

}  // namespace
}  // namespace stepforge::testing
