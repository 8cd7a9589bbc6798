// SPDX-License-Identifier: Apache-2.0
// Implements write_checkpoint of native.h.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/staged.h"
#include "stepforge/checkpoint/native.h"
#include "stepforge/tensorfile/manifest.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// Publishes the staged files as `final_path`. If that exists, the two folders are exchanged atomically, and
/// the StagedFolder removes the old checkpoint.
void publish_or_exchange(StagedFolder& folder, const fs::path& final_path) {
  if (!fs::exists(fs::symlink_status(final_path))) return folder.publish();
  fsync_path(folder.staging());
  if (renameat2(AT_FDCWD, folder.staging().c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) != 0) {
    throw Error(format("cannot replace {}: {}; remove it by hand", final_path.string(),
                       std::system_category().message(errno)));
  }
  fsync_path(final_path.has_parent_path() ? final_path.parent_path() : fs::path("."));
}

/// All ranks must save the same step.
void require_same_step(const std::vector<std::string>& opened) {
  const auto step = [&](size_t rank) { return opened[rank].substr(0, opened[rank].find(' ')); };
  for (size_t rank = 1; rank < opened.size(); ++rank) {
    if (step(rank) == step(0)) continue;
    throw Error(format("rank {} saves step {}, but rank 0 saves step {}", rank, step(rank), step(0)));
  }
}

/// Writes and hashes this rank's files.
std::string write_own(const fs::path& folder, const StagedCheckpoint& staged, int rank, int ranks) {
  if (!fs::is_directory(folder)) {
    throw Error(format("{}, created by rank 0, does not exist here; all ranks must use one common run folder",
                       folder.string()));
  }
  return file_records_to_json(staged.write_tensors(folder, rank, ranks)).dump();
}

/// The files that all ranks have written.
std::vector<FileRecord> reported_files(const std::vector<std::string>& reports) {
  std::vector<FileRecord> files;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const std::string source = format("the files of rank {}", rank);
    const Json reported = parse_json(reports[rank], source);
    for (FileRecord& file : file_records_from_json(JsonReader(reported, source, "files"))) {
      files.push_back(std::move(file));
    }
  }
  return files;
}

}  // namespace

int64_t write_checkpoint(const fs::path& dir, int64_t step, const StagedCheckpoint& staged,
                         const CheckpointRanks& ranks) {
  const bool leads = ranks.rank() == 0;
  const fs::path final_path = dir / checkpoint_folder_name(step);
  // Shared with actions that are late: the folder is removed when the last of them has ended.
  const auto folder = std::make_shared<std::optional<StagedFolder>>();
  // Rank 0 makes the folder and tells the others its name.
  const std::vector<std::string> opened = ranks.run([=] {
    if (leads) folder->emplace(final_path);
    return format("{} {}", step, leads ? (*folder)->staging().filename().string() : "");
  });
  require_same_step(opened);
  const fs::path staging = dir / opened[0].substr(opened[0].find(' ') + 1);
  const auto files = reported_files(ranks.run([=, rank = ranks.rank(), size = ranks.size()] {
    const auto keeps_folder = folder;
    return write_own(staging, staged, rank, size);
  }));
  ranks.run([=]() -> std::string {
    if (!leads) return "";
    write_file_atomic(staging / kStateFileName, staged.state().dump(2) + "\n");
    const Json layout = {{"tensor_names", kTensorNames},
                         {"optimizer", std::ranges::any_of(files, is_optimizer_file)}};
    write_manifest(staging, build_manifest(staging, step, layout, files));
    publish_or_exchange(**folder, final_path);
    return "";
  });
  int64_t bytes = 0;
  for (const FileRecord& file : files) bytes += file.bytes;
  return bytes;
}

}  // namespace stepforge
