// SPDX-License-Identifier: Apache-2.0
// The manifest of a checkpoint folder: which files belong to it, how long they are, and the hash of each, so
// that damage is found before anything is loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/file_record.h"
#include "stepforge/base/json.h"

namespace stepforge {

inline constexpr std::string_view kManifestFileName = "manifest.json";
/// What the trainer needs to continue, and the run's configuration.
inline constexpr std::string_view kStateFileName = "state.json";
/// No run has more steps: a larger number in a manifest is refused, so that counting on cannot overflow.
inline constexpr int64_t kMaxSteps = 1'000'000'000'000;

struct CheckpointManifest {
  int64_t step = 0;
  Json layout;  ///< description by the checkpoint room; opaque here
  std::vector<FileRecord> files;
};

/// Lists every file of `folder` but the manifest, and hashes those that are not in `known`. Throws Error if a
/// known file is missing or has another length, or if the folder contains anything but plain files.
CheckpointManifest build_manifest(const std::filesystem::path& folder, int64_t step, Json layout,
                                  const std::vector<FileRecord>& known = {});

/// Writes folder/manifest.json. Throws Error.
void write_manifest(const std::filesystem::path& folder, const CheckpointManifest& manifest);

/// Reads folder/manifest.json without checking the files that it lists. Throws Error if it is missing,
/// FormatError naming the field if it is malformed, has another version, or another step than the folder's
/// name.
CheckpointManifest read_manifest(const std::filesystem::path& folder);

/// Reads the manifest and then every byte of the checkpoint. Throws FormatError listing each file that is
/// missing, has another length or has changed, and each unlisted *.safetensors file. Other unlisted files are
/// ignored. If several callers share the work, caller `part` of `parts` reads its share of the files, about
/// as many bytes as the others; caller 0 looks for unlisted files.
CheckpointManifest verify_folder(const std::filesystem::path& folder, int part = 0, int parts = 1);

/// Whether `path` is the folder of a checkpoint, of whatever name and state.
bool has_manifest(const std::filesystem::path& path);

struct CheckpointFolder {
  int64_t step = 0;
  std::filesystem::path path;
};

/// "step-120"
std::string checkpoint_folder_name(int64_t step);

/// 120 of "step-120"; nullopt for any other name.
std::optional<int64_t> checkpoint_step(const std::string& folder_name);

/// The folders `step-N`, N at most kMaxSteps, with a manifest, newest first; none if `parent` does not exist.
/// Unfinished folders ("step-N.tmp") and everything else are ignored. The files are not verified. Throws
/// Error if a folder cannot be read.
std::vector<CheckpointFolder> list_checkpoints(const std::filesystem::path& parent);

}  // namespace stepforge
