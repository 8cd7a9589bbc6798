// SPDX-License-Identifier: Apache-2.0
// Which files of a folder are read: one split of one data set, without its card and licence. Knows the names of the Hugging Face Hub
// (train-00000-of-00002.parquet), of the cache of Hugging Face's datasets (news-train.arrow, with copies named cache-...), and of
// its save_to_disk (state.json lists the files).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace stepforge {

struct FolderChoice {
  std::vector<std::filesystem::path> chosen;
  std::vector<std::filesystem::path> left_out;
  std::string note;  ///< which split is read, if there are several; otherwise ""
};

/// Chooses among `files` of any format, which lie in `folder` or below it. If some are named by a split, `train` is taken;
/// without it, the files that name none. Throws UsageError that names what there is if there are several splits and nothing
/// else, or several data sets; FormatError if a state.json names a file that is not there or not in its folder.
FolderChoice choose_files(const std::filesystem::path& folder,
                          const std::vector<std::filesystem::path>& files);

/// Whether it is text about a data set: README and its translations, licences, and Markdown that begins with the fields of a
/// card of the Hub.
bool is_card_or_licence(const std::filesystem::path& path);

/// Whether it is one of the files that describe a data set of Hugging Face's datasets.
bool describes_data_set(const std::filesystem::path& path);

/// The split that a path below a data set's folder names: "train" of train-00000-of-00002.parquet, news-train.arrow and
/// train/0000.parquet, also of compressed files and other formats; "" if it names none. "training" and "testing" are train
/// and test. A plain text names one by its whole name (test.txt), its shard number or a folder only.
std::string split_of(const std::filesystem::path& relative);

}  // namespace stepforge
