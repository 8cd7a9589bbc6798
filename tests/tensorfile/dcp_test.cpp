// SPDX-License-Identifier: Apache-2.0
#include "stepforge/tensorfile/dcp.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/json.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/tensorfile/build_file.h"

namespace stepforge::testing {
namespace {

/// Opens a file of "a" (2 x 3) and "s" (a scalar) with the given metadata.
SafetensorsFile file_with(const TempFolder& folder, const SafetensorsMetadata& metadata) {
  SafetensorsWriter writer(folder / "f", {{"a", DType::u8, {2, 3}}, {"s", DType::u8, {}}}, metadata);
  writer.write("a", as_bytes("abcdef"));
  writer.write("s", as_bytes("s"));
  writer.finish();
  return SafetensorsFile(folder / "f");
}

std::string refusal(const std::string& info) {
  const TempFolder folder;
  const SafetensorsFile file = file_with(folder, {{"DCP_SHARDING_INFO", info}});
  return message_of<FormatError>([&] { read_saved_offsets(file); });
}

TEST(DcpMetadata, EqualsTheTextThatPyTorchWrites) {
  const SafetensorsMetadata metadata = dcp_metadata({{"b", {128, 0}}, {"a.\"q\"", {}}});
  EXPECT_EQ(metadata.at("DCP_SHARDING_INFO"),
            R"({"a.\"q\"": {"saved_offsets": []}, "b": {"saved_offsets": [128, 0]}})");
  EXPECT_EQ(metadata.at("DCP_VERSION"), "1.0");
  EXPECT_EQ(metadata.at("format"), "pt");
  EXPECT_EQ(metadata.size(), 3U);
}

TEST(DcpMetadata, OffsetsAreReadAsTheyWereWritten) {
  const TempFolder folder;
  const SavedOffsets offsets = {{"a", {2, 0}}, {"s", {}}};
  EXPECT_EQ(read_saved_offsets(file_with(folder, dcp_metadata(offsets))), offsets);
}

TEST(DcpMetadata, AFileWithoutItHoldsWholeTensors) {
  const TempFolder folder;
  EXPECT_EQ(read_saved_offsets(file_with(folder, {})), (SavedOffsets{{"a", {0, 0}}, {"s", {}}}));
}

TEST(DcpMetadata, MalformedOffsetsAreRefused) {
  EXPECT_CONTAINS(refusal("{"), "DCP_SHARDING_INFO: byte 1: expected '\"', but the text ends");
  EXPECT_CONTAINS(refusal("[]"), "not a JSON object");
  EXPECT_CONTAINS(refusal("{}"), "2 errors");
  const std::string scalar = R"(,"s":{"saved_offsets":[]}})";
  const std::string fault = "no saved_offsets of 2 numbers for tensor \"a\"";
  EXPECT_CONTAINS(refusal(R"({"a":{"saved_offsets":[0]})" + scalar), fault);
  EXPECT_CONTAINS(refusal(R"({"a":{"saved_offsets":[0,-1]})" + scalar), fault);
  EXPECT_CONTAINS(refusal(R"({"a":{"saved_offsets":[0,1.5]})" + scalar), fault);
  EXPECT_CONTAINS(refusal(R"({"a":{"saved_offsets":[0,18446744073709551615]})" + scalar), fault);
  EXPECT_CONTAINS(refusal(R"({"a":{"saved_offsets":"00"})" + scalar), fault);
  EXPECT_CONTAINS(refusal(R"({"a":[0,0])" + scalar), fault);
  EXPECT_CONTAINS(refusal(R"({"a":{"saved_offsets":[0,9223372036854775807]})" + scalar), "are too large");
  EXPECT_CONTAINS(refusal(R"({"a":{"saved_offsets":[0,0]},"x":{})" + scalar),
                  "tensor \"x\" is not in the file");
}

TEST(DcpFileName, CountsRanksAndFilesFromOne) {
  EXPECT_EQ(dcp_file_name("model", 0, 0, 1), "shard-00001-model-00001-of-00001.safetensors");
  EXPECT_EQ(dcp_file_name("optimizer", 12, 1, 3), "shard-00013-optimizer-00002-of-00003.safetensors");
  EXPECT_THROW(dcp_file_name("model", -1, 0, 1), Error);
  EXPECT_THROW(dcp_file_name("model", 0, 1, 1), Error);
}

}  // namespace
}  // namespace stepforge::testing
