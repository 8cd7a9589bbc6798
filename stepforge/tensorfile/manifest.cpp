// SPDX-License-Identifier: Apache-2.0
#include "stepforge/tensorfile/manifest.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/error_list.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/base/staged.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kFormatName = "stepforge-checkpoint";
constexpr int64_t kFormatVersion = 1;
constexpr JsonLimits kManifestLimits = {.max_bytes = int64_t{64} << 20, .max_depth = 64};
constexpr std::string_view kFolderPrefix = "step-";

}  // namespace

std::optional<int64_t> checkpoint_step(const std::string& name) {
  if (!name.starts_with(kFolderPrefix)) return std::nullopt;
  int64_t step = -1;
  std::from_chars(name.data() + kFolderPrefix.size(), name.data() + name.size(), step);
  if (step < 0 || step > kMaxSteps || name != checkpoint_folder_name(step)) return std::nullopt;
  return step;
}

CheckpointManifest build_manifest(const fs::path& folder, int64_t step, Json layout,
                                  const std::vector<FileRecord>& known) {
  CheckpointManifest manifest = {step, std::move(layout), known};
  std::set<std::string> names;
  for (const FileRecord& file : known) {
    if (!is_regular_file_itself(folder / file.name) || file_bytes(folder / file.name) != file.bytes) {
      throw Error(format("{} was written with {} bytes, but is missing or has another size",
                         (folder / file.name).string(), file.bytes));
    }
    if (!names.insert(file.name).second) throw Error(format("{} was written twice", file.name));
  }
  for (const fs::path& path : entries_of(folder)) {
    const std::string name = path.filename().string();
    if (name == kManifestFileName || names.contains(name)) continue;
    if (!is_plain_file_name(name) || !is_regular_file_itself(path)) {
      throw Error(format("{} does not belong in a checkpoint: it is not a plain file", path.string()));
    }
    manifest.files.push_back(file_record(path));
  }
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const FileRecord& left, const FileRecord& right) { return left.name < right.name; });
  return manifest;
}

void write_manifest(const fs::path& folder, const CheckpointManifest& manifest) {
  const Json document = {{"format", kFormatName},
                         {"version", kFormatVersion},
                         {"step", manifest.step},
                         {"layout", manifest.layout},
                         {"files", file_records_to_json(manifest.files)}};
  write_file_atomic(folder / kManifestFileName, document.dump(2) + "\n");
}

CheckpointManifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestFileName;
  const Json document = read_json_file(path, kManifestLimits);
  const JsonReader manifest(document, path.string());
  if (manifest["format"].text() != kFormatName) {
    manifest.refuse("format", format("expected \"{}\"", kFormatName));
  }
  if (manifest["version"].integer() != kFormatVersion) {
    manifest.refuse("version", format("this program reads version {}", kFormatVersion));
  }
  const int64_t step = manifest["step"].integer(0, kMaxSteps);
  const std::optional<int64_t> step_of_name = checkpoint_step(folder.filename().string());
  if (step_of_name && *step_of_name != step) {
    manifest.refuse("step", format("the folder is named step-{}", *step_of_name));
  }
  const std::vector<FileRecord> files = file_records_from_json(manifest["files"]);
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].name == kManifestFileName)
      manifest["files"].at(i)["name"].refuse("a manifest does not list itself");
  }
  const Json layout = manifest.has("layout") ? manifest["layout"].json() : Json();
  return {step, layout, files};
}

CheckpointManifest verify_folder(const fs::path& folder, int part, int parts) {
  CheckpointManifest manifest = read_manifest(folder);
  ErrorList errors(format("damaged checkpoint {}", folder.string()));
  double total = 1.0;
  for (const FileRecord& file : manifest.files) total += static_cast<double>(file.bytes);
  double passed = 0.0;
  std::set<std::string> listed;
  for (const FileRecord& file : manifest.files) {
    listed.insert(file.name);
    // A file belongs to the part that contains its middle.
    const double middle = passed + static_cast<double>(file.bytes) / 2;
    passed += static_cast<double>(file.bytes);
    if (static_cast<int>(middle / total * parts) != part) continue;
    const std::string fault = file_fault(folder / file.name, file);
    if (!fault.empty()) errors.add(format("{}: {}", file.name, fault));
  }
  for (const fs::path& path : part == 0 ? entries_of(folder) : std::vector<fs::path>()) {
    const std::string name = path.filename().string();
    if (path.extension() == ".safetensors" && !listed.contains(name)) {
      errors.add(format("{}: not listed in {}", quoted_for_message(name), kManifestFileName));
    }
  }
  errors.throw_if_any();
  return manifest;
}

bool has_manifest(const fs::path& path) {
  std::error_code failure;
  return fs::exists(path / kManifestFileName, failure);
}

std::string checkpoint_folder_name(int64_t step) {
  return format("{}{}", kFolderPrefix, step);
}

std::vector<CheckpointFolder> list_checkpoints(const fs::path& parent) {
  std::vector<CheckpointFolder> found;
  std::error_code failure;
  if (fs::status(parent, failure).type() == fs::file_type::not_found) return found;
  for (const fs::path& path : entries_of(parent)) {
    const std::optional<int64_t> step = checkpoint_step(path.filename().string());
    if (!step || !is_regular_file_itself(path / kManifestFileName)) continue;
    found.push_back({*step, path});
  }
  std::sort(found.begin(), found.end(), [](const CheckpointFolder& left, const CheckpointFolder& right) {
    return left.step > right.step;
  });
  return found;
}

}  // namespace stepforge
