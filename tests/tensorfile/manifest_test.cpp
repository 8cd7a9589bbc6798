// SPDX-License-Identifier: Apache-2.0
#include "stepforge/tensorfile/manifest.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/tensorfile/build_file.h"

namespace stepforge::testing {
namespace {

namespace fs = std::filesystem;

/// A folder of two files with a manifest.
class Manifest : public ::testing::Test {
 protected:
  Manifest() {
    put_file(folder_ / "model.safetensors", "weights and more weights");
    put_file(folder_ / "state.json", "{}");
    write_manifest(folder_.path(), build_manifest(folder_.path(), 12, {{"ranks", 1}}));
  }

  std::string refusal() const {
    return message_of<FormatError>([&] { verify_folder(folder_.path()); });
  }

  /// The error after one change of the manifest.
  std::string refusal_after(const std::function<void(Json&)>& change) const {
    Json document = read_json_file(folder_ / "manifest.json");
    change(document);
    put_file(folder_ / "manifest.json", document.dump());
    return refusal();
  }

  TempFolder folder_;
};

TEST_F(Manifest, AWholeFolderVerifies) {
  const CheckpointManifest manifest = verify_folder(folder_.path());
  EXPECT_EQ(manifest.step, 12);
  EXPECT_EQ(manifest.layout, Json({{"ranks", 1}}));
  ASSERT_EQ(manifest.files.size(), 2U);
  EXPECT_EQ(manifest.files[0].name, "model.safetensors");
  EXPECT_EQ(manifest.files[0].bytes, 24);
  EXPECT_EQ(manifest.files[0].hash, file_hash(folder_ / "model.safetensors"));
}

TEST_F(Manifest, CallersThatShareTheWorkFindAllDamageTogether) {
  for (int i = 0; i < 5; ++i) put_file(folder_ / format("{}.safetensors", i), std::string(1 << (2 * i), 'w'));
  write_manifest(folder_.path(), build_manifest(folder_.path(), 12, {}));
  for (const int parts : {1, 2, 3, 7, 20}) {
    const auto expect_found_once = [&](const std::string& name) {
      int found = 0;
      for (int part = 0; part < parts; ++part) {
        try {
          verify_folder(folder_.path(), part, parts);
        } catch (const FormatError& damage) {
          EXPECT_CONTAINS(damage.what(), name);
          ++found;
        }
      }
      EXPECT_EQ(found, 1) << name << " of " << parts;
    };
    for (const FileRecord& file : read_manifest(folder_.path()).files) {
      const std::string good = read_file(folder_ / file.name);
      put_file(folder_ / file.name, good + "!");
      expect_found_once(file.name);
      put_file(folder_ / file.name, good);
    }
    put_file(folder_ / "x.safetensors", "stray");
    expect_found_once("x.safetensors");
    fs::remove(folder_ / "x.safetensors");
  }
}

TEST_F(Manifest, UsesHashesFromOtherRanksIfTheFilesExist) {
  const FileRecord weights = file_record(folder_ / "model.safetensors");
  const std::vector<FileRecord> known = {weights};
  EXPECT_EQ(build_manifest(folder_.path(), 12, {}, known).files.size(), 2U);
  put_file(folder_ / "model.safetensors", "cut");
  EXPECT_CONTAINS(message_of<Error>([&] { build_manifest(folder_.path(), 12, {}, known); }),
                  "model.safetensors was written with 24 bytes, but is missing or has another size");
  fs::remove(folder_ / "model.safetensors");
  EXPECT_THROW(build_manifest(folder_.path(), 12, {}, known), Error);
}

TEST_F(Manifest, EveryTruncationIsFound) {
  for (uintmax_t size = 24; size-- > 0;) {
    fs::resize_file(folder_ / "model.safetensors", size);
    EXPECT_CONTAINS(refusal(), format("model.safetensors: truncated: {} of 24 bytes", size));
  }
}

TEST_F(Manifest, EveryFlippedBitIsFound) {
  const std::string good = read_file(folder_ / "model.safetensors");
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    put_file(folder_ / "model.safetensors", bytes);
    EXPECT_CONTAINS(refusal(), "model.safetensors: changed");
  }
}

TEST_F(Manifest, EveryDamagedFileIsNamed) {
  fs::remove(folder_ / "state.json");
  put_file(folder_ / "model.safetensors", "weights and more weights!");
  EXPECT_CONTAINS(refusal(), folder_.path().string());
  EXPECT_CONTAINS(refusal(), "state.json: missing");
  EXPECT_CONTAINS(refusal(), "model.safetensors: 25 bytes instead of 24");
}

TEST_F(Manifest, AFolderOrLinkInPlaceOfAFileIsFound) {
  fs::rename(folder_ / "state.json", folder_ / "elsewhere.json");
  fs::create_symlink("elsewhere.json", folder_ / "state.json");
  EXPECT_CONTAINS(refusal(), "state.json: not a regular file");
}

TEST_F(Manifest, UnlistedTensorsAreRefusedAndOtherFilesIgnored) {
  put_file(folder_ / "notes.txt", "mine");
  EXPECT_NO_THROW(verify_folder(folder_.path()));
  put_file(folder_ / "stray.safetensors", "");
  EXPECT_CONTAINS(refusal(), "\"stray.safetensors\": not listed in manifest.json");
}

TEST_F(Manifest, AMissingManifestIsAnErrorThatNamesIt) {
  fs::remove(folder_ / "manifest.json");
  const std::string message = message_of<Error>([&] { verify_folder(folder_.path()); });
  EXPECT_CONTAINS(message, (folder_ / "manifest.json").string());
}

TEST_F(Manifest, EveryTruncatedManifestIsRefused) {
  const std::string good = read_file(folder_ / "manifest.json");
  for (size_t size = 0; size + 1 < good.size(); ++size) {
    put_file(folder_ / "manifest.json", good.substr(0, size));
    EXPECT_CONTAINS(refusal(), "manifest.json") << size;
  }
}

TEST_F(Manifest, AForeignFormatIsRefused) {
  EXPECT_CONTAINS(refusal_after([](Json& json) { json["format"] = "other"; }), "\"format\" is \"other\"");
}

TEST_F(Manifest, ALaterVersionIsRefused) {
  EXPECT_CONTAINS(refusal_after([](Json& json) { json["version"] = 2; }), "\"version\" is 2");
}

TEST_F(Manifest, MissingAndMistypedFieldsAreNamed) {
  EXPECT_CONTAINS(refusal_after([](Json& json) { json.erase("step"); }), "\"step\" is missing");
  EXPECT_CONTAINS(refusal_after([](Json& json) { json["step"] = -1; }), "\"step\" is ");
  EXPECT_CONTAINS(refusal_after([](Json& json) { json["step"] = 1.5; }), "\"step\" is ");
  EXPECT_CONTAINS(refusal_after([](Json& json) { json["step"] = ~uint64_t{0}; }), "\"step\" is ");
}

TEST_F(Manifest, FileEntriesAreChecked) {
  EXPECT_CONTAINS(refusal_after([](Json& json) { json["files"][1]["bytes"] = "2"; }), "\"files[1].bytes\"");
  EXPECT_CONTAINS(refusal_after([](Json& json) { json["files"][0]["hash"] = "XYZ"; }), "\"files[0].hash\"");
  EXPECT_CONTAINS(refusal_after([](Json& json) { json["files"][0]["name"] = "../x"; }),
                  "\"files[0].name\" is \"../x\": expected a plain file name");
  EXPECT_CONTAINS(refusal_after([](Json& json) { json["files"] = 3; }), "\"files\" is 3, not an array");
}

TEST_F(Manifest, SizesThatOverflowTogetherAreRefused) {
  const auto huge = [](Json& json) {
    for (Json& file : json["files"]) file["bytes"] = int64_t{1} << 62;
  };
  EXPECT_CONTAINS(refusal_after(huge), "\"files[1].bytes\" is 4611686018427387904: the files add up to 2^63");
}

TEST_F(Manifest, AStepBeyondTheLargestRunIsRefused) {
  EXPECT_CONTAINS(refusal_after([](Json& json) { json["step"] = int64_t{1'000'000'000'001}; }),
                  "\"step\" is 1000000000001, not an integer from 0 to 1000000000000");
}

TEST_F(Manifest, AFolderNamedAfterAnotherStepIsRefused) {
  fs::create_directory(folder_ / "step-7");
  write_manifest(folder_ / "step-7", {.step = 5, .layout = {}, .files = {}});
  const std::string message = message_of<FormatError>([&] { read_manifest(folder_ / "step-7"); });
  EXPECT_CONTAINS(message, "\"step\" is 5: the folder is named step-7");
}

TEST_F(Manifest, AFileListedTwiceIsRefused) {
  const auto twice = [](Json& json) { json["files"].push_back(json["files"][0]); };
  EXPECT_CONTAINS(refusal_after(twice),
                  "\"files[2].name\" is \"model.safetensors\": this file is listed twice");
}

TEST_F(Manifest, OnlyPlainFilesBelongInACheckpoint) {
  fs::create_directory(folder_ / "sub");
  EXPECT_THROW(build_manifest(folder_.path(), 1, {}), Error);
  EXPECT_THROW(build_manifest(folder_ / "missing", 1, {}), Error);
}

TEST(ListCheckpoints, ReturnsCompleteFoldersNewestFirst) {
  const TempFolder folder;
  const auto make = [&](const std::string& name, bool complete) {
    fs::create_directories(folder / name);
    if (complete) put_file(folder / name / "manifest.json", "{}");
  };
  for (const char* name : {"step-5", "step-100", "step-20"}) make(name, true);
  for (const char* name : {"step-200.tmp", "step-", "step-x", "step-05", "step--1", "step-7x", "other",
                           "step-99999999999999999999", "step-9223372036854775807", "step-1000000000001"}) {
    make(name, true);
  }
  make("step-300", false);
  put_file(folder / "step-400", "a file");
  std::vector<int64_t> steps;
  for (const CheckpointFolder& found : list_checkpoints(folder.path())) {
    steps.push_back(found.step);
    EXPECT_EQ(found.path, folder / checkpoint_folder_name(found.step));
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{100, 20, 5}));
  EXPECT_TRUE(list_checkpoints(folder / "missing").empty());
}

}  // namespace
}  // namespace stepforge::testing
