// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/file_record.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/json.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {
namespace {

std::vector<FileRecord> records_of(const Json& json) {
  return file_records_from_json(JsonReader(json, "rank 1", "files"));
}

std::string refusal_of(const Json& json) {
  return message_of<FormatError>([&] { records_of(json); });
}

TEST(FileRecord, IsReadBackFromJson) {
  const TempFolder folder;
  write_text(folder / "a", "some text");
  const FileRecord written = file_record(folder / "a");
  const FileRecord read = records_of(file_records_to_json({written})).at(0);
  EXPECT_EQ(read.name, "a");
  EXPECT_EQ(read.bytes, 9);
  EXPECT_EQ(read.hash, written.hash);
}

TEST(FileRecord, MalformedEntriesAreRefusedByName) {
  const Json good = {{"name", "a"}, {"bytes", 3}, {"hash", std::string(32, '0')}};
  const auto changed = [&](const std::string& key, const Json& value) {
    Json entry = good;
    entry[key] = value;
    return refusal_of(Json::array({entry}));
  };
  EXPECT_NO_THROW(records_of(Json::array({good})));
  EXPECT_CONTAINS(changed("name", "../x"), "rank 1: \"files[0].name\"");
  EXPECT_CONTAINS(changed("bytes", -1), "rank 1: \"files[0].bytes\"");
  EXPECT_CONTAINS(changed("hash", "abc"), "rank 1: \"files[0].hash\"");
  EXPECT_CONTAINS(refusal_of(Json::array({good, good})), "listed twice");
  Json first = good;
  Json second = good;
  first["bytes"] = second["bytes"] = INT64_MAX / 2 + 1;
  second["name"] = "b";
  EXPECT_CONTAINS(refusal_of(Json::array({first, second})), "2^63");
}

TEST(FileRecord, TellsHowAFileDiffers) {
  const TempFolder folder;
  const auto path = folder / "a";
  write_text(path, "some text");
  const FileRecord record = file_record(path);
  EXPECT_EQ(file_fault(path, record), "");
  write_text(path, "some tent");
  EXPECT_CONTAINS(file_fault(path, record), "changed");
  write_text(path, "some");
  EXPECT_EQ(file_fault(path, record), "truncated: 4 of 9 bytes");
  std::filesystem::remove(path);
  EXPECT_EQ(file_fault(path, record), "missing");
}

}  // namespace
}  // namespace stepforge::testing
