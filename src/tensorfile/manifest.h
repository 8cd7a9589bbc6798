// The manifest of a checkpoint folder: which files belong to it, how long they are, and the hash of each, so
// that damage is found before anything is loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace stepforge {

inline constexpr std::string_view kManifestFileName = "manifest.json";

struct ManifestFile {
  std::string name;
  int64_t bytes = 0;
  std::string hash;  // content_hash: guards against damage, not against an attacker
};

struct CheckpointManifest {
  int64_t step = 0;
  Json layout;  // the checkpoint's own description of itself; opaque here
  std::vector<ManifestFile> files;
};

/// Lists and hashes every file of `folder` but the manifest. Throws Error if the folder holds anything but
/// plain files.
CheckpointManifest build_manifest(const std::filesystem::path& folder, int64_t step, Json layout);

/// Writes folder/manifest.json. Throws Error.
void write_manifest(const std::filesystem::path& folder, const CheckpointManifest& manifest);

/// Reads folder/manifest.json without looking at the files it names. Throws Error if it is missing,
/// FormatError naming the field if it is malformed or of another version.
CheckpointManifest read_manifest(const std::filesystem::path& folder);

/// Reads the manifest and then every byte of the checkpoint. Throws FormatError listing each file that is
/// missing, truncated or otherwise of another length, changed, or an unlisted *.safetensors file. Other
/// unlisted files are nobody's business.
CheckpointManifest verify_folder(const std::filesystem::path& folder);

struct CheckpointFolder {
  int64_t step = 0;
  std::filesystem::path path;
};

/// "step-120"
std::string checkpoint_folder_name(int64_t step);

/// The folders `step-N` with a manifest, newest first. Folders still being written ("step-N.tmp") and
/// everything else are ignored; a `parent` that does not exist holds none. The files are not verified.
std::vector<CheckpointFolder> list_checkpoints(const std::filesystem::path& parent);

}  // namespace stepforge
