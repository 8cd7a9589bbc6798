// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/text_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/path_pattern.h"
#include "stepforge/base/shell_word.h"
#include "stepforge/records/arrow_library.h"
#include "stepforge/records/decompressor.h"
#include "stepforge/records/json_lines.h"
#include "stepforge/records/mds_shard.h"
#include "stepforge/records/table_folder.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

bool is_plain_text_name(const fs::path& path) {
  const std::string extension = lower_extension(unpacked_name(path));
  return extension == ".txt" || extension == ".text" || extension == ".md";
}

bool is_json_lines_name(const fs::path& path) {
  const std::string extension = lower_extension(unpacked_name(path));
  return extension == ".jsonl" || extension == ".ndjson";
}

/// A file type that is recognised by its name and cannot be read as text.
struct ForeignType {
  std::string_view extension;
  std::string_view remedy;
};

constexpr std::array kForeignTypes = {
    ForeignType{".bz2", "unpack it: bunzip2 -k {0}"},
    ForeignType{".xz", "unpack it: unxz -k {0}"},
    ForeignType{".zip", "unpack it: unzip {0}"},
    ForeignType{".bin", "if it holds token ids, set format = \"bin\", or \"tokens_u16\" if it has no header"},
    ForeignType{".pdf", "convert it to text: pdftotext {0}"},
    ForeignType{".docx", "convert it to text: pandoc -t plain -o {0}.txt {0}"},
    ForeignType{".epub", "convert it to text: pandoc -t plain -o {0}.txt {0}"},
};

/// Whether Parquet and Arrow files, which are known by their names, are read.
bool reads_arrow(TextFormat format) {
  return format == TextFormat::automatic || format == TextFormat::records;
}

/// The first characters of a file's contents.
std::string beginning_of(const fs::path& path) {
  std::string text(4096, '\0');
  text.resize(static_cast<size_t>(open_contents(path, TableFormat::none)->read(text)));
  return text;
}

/// What to do about a file of a type that cannot be read as `format`, or "".
std::string remedy_for(const fs::path& path, TextFormat format) {
  if (is_arrow_name(unpacked_name(path))) {
    if (is_compressed_name(path)) return "unpack it first: it is read from places all over the file";
    return reads_arrow(format) ? "" : "leave out the format of the source";
  }
  const std::string extension = lower_extension(unpacked_name(path));
  for (const ForeignType& type : kForeignTypes) {
    if (type.extension == extension) return format_arguments(type.remedy, {shell_word(path.native())});
  }
  return "";
}

/// Shards of MosaicML are known to their index.
bool is_mds(const fs::path& path) {
  return table_format_of(path) == TableFormat::mds;
}

class TextFileSearch {
 public:
  explicit TextFileSearch(TextFormat format) : format_(format) {}

  TextFiles run(const std::vector<fs::path>& paths) {
    for (const fs::path& pattern : paths)
      for (const fs::path& path : expand_path(pattern)) add_path(path);
    result_.skipped = describe_skipped();
    return std::move(result_);
  }

 private:
  void add_path(const fs::path& path) {
    std::error_code failure;
    const auto status = fs::status(path, failure);
    if (status.type() == fs::file_type::not_found) {
      throw UsageError(format("{} does not exist: name a text file, a JSON Lines file, a table or a folder",
                              path.string()));
    }
    if (failure) throw Error(format("cannot read {}: {}", path.string(), failure.message()));
    if (fs::is_directory(status)) {
      add_folder(path);
    } else {
      add_file(path);
    }
  }

  /// Whether a file of a folder is to be read.
  bool is_wanted(const fs::path& path) const {
    const TableFormat table = table_format_of(path);
    switch (format_) {
      case TextFormat::automatic:
        return is_plain_text_name(path) || is_json_lines_name(path) || table != TableFormat::none;
      case TextFormat::text:
        return is_plain_text_name(path);
      case TextFormat::json_lines:
        return is_json_lines_name(path);
      case TextFormat::csv:
        return table == TableFormat::csv || table == TableFormat::tsv;
      case TextFormat::mds:
        return table == TableFormat::mds;
      case TextFormat::records:
        return is_json_lines_name(path) || table != TableFormat::none;
    }
    return false;
  }

  void add_folder(const fs::path& folder) {
    std::error_code failure;
    std::vector<fs::path> found;
    std::set<fs::path> mds_folders;
    std::vector<fs::path> skipped;
    for (fs::recursive_directory_iterator entry(folder, failure), end; !failure && entry != end;
         entry.increment(failure)) {
      const fs::path& path = entry->path();
      if (path.filename().string().starts_with('.')) {
        if (entry->is_directory()) entry.disable_recursion_pending();
        continue;
      }
      if (is_wanted(path) && is_mds(path)) {
        mds_folders.insert(path.parent_path());  // a link that leads nowhere is refused with its index
      } else if (entry->is_regular_file() && !describes_data_set(path)) {
        if (is_wanted(path) && is_card_or_licence(path)) {
          cards_.push_back(path);
        } else {
          (is_wanted(path) ? found : skipped).push_back(path);
        }
      }
    }
    if (failure) throw Error(format("cannot read the folder {}: {}", folder.string(), failure.message()));
    for (const fs::path& mds_folder : mds_folders) {
      for (fs::path& shard : index_of(mds_folder).files()) found.push_back(std::move(shard));
      std::erase(skipped, mds_folder / kMdsIndexFile);
    }
    FolderChoice choice = choose_files(folder, found);
    found = std::move(choice.chosen);
    skipped.insert(skipped.end(), choice.left_out.begin(), choice.left_out.end());
    if (!choice.note.empty()) notes_.push_back(choice.note);
    skipped_.insert(skipped_.end(), skipped.begin(), skipped.end());
    if (found.empty()) {
      throw UsageError(format("the folder {} contains no {} file: {}", folder.string(), wanted_names(),
                              skipped_.empty() && cards_.empty() ? "it is empty" : describe_skipped()));
    }
    std::sort(found.begin(), found.end());
    for (const auto& path : found) add_file(path);
  }

  std::string wanted_names() const {
    switch (format_) {
      case TextFormat::text:
        return "*.txt, *.text or *.md";
      case TextFormat::json_lines:
        return "*.jsonl or *.ndjson";
      case TextFormat::csv:
        return "*.csv or *.tsv";
      case TextFormat::mds:
        return "*.mds";
      case TextFormat::records:
        return "*.jsonl, *.ndjson, *.csv, *.tsv, *.mds, *.parquet or *.arrow";
      case TextFormat::automatic:
        break;
    }
    return "*.txt, *.text, *.md, *.jsonl, *.ndjson, *.csv, *.tsv, *.mds, *.parquet or *.arrow";
  }

  void add_file(const fs::path& path) {
    const std::string remedy = remedy_for(path, format_);
    if (!remedy.empty()) throw UsageError(format("{} cannot be read as text; {}", path.string(), remedy));
    const int64_t bytes = FileReader(path).size();  // fails now if the file is unreadable
    const TableFormat table = table_of(path);
    if (table == TableFormat::arrow) load_arrow_library(arrow_library_path(), path);
    TextFile file{path, table == TableFormat::none ? kind_of(path) : TextFileKind::json_lines, bytes, table};
    if (table == TableFormat::mds)
      file.shard = std::make_shared<const MdsShard>(index_of(path.parent_path()).shard_of(path));
    result_.files.push_back(std::move(file));
    result_.bytes += bytes;
  }

  /// Read once, however many shards it has.
  const MdsIndex& index_of(const fs::path& folder) {
    return indexes_.try_emplace(folder, folder.empty() ? fs::path(".") : folder).first->second;
  }

  TableFormat table_of(const fs::path& path) const {
    if (format_ == TextFormat::text || format_ == TextFormat::json_lines) return TableFormat::none;
    const TableFormat named = table_format_of(path);
    if (format_ == TextFormat::mds) return TableFormat::mds;
    if (format_ == TextFormat::csv) return named == TableFormat::tsv ? TableFormat::tsv : TableFormat::csv;
    return named;
  }

  TextFileKind kind_of(const fs::path& path) const {
    const bool by_name = is_json_lines_name(path) || lower_extension(unpacked_name(path)) == ".json";
    const bool is_json = format_ == TextFormat::automatic ? by_name : format_ != TextFormat::text;
    if (!is_json) return TextFileKind::text;
    // A line of a .jsonl file that is an array is a fault, which the reader names.
    const bool is_array = !is_json_lines_name(path) && begins_json_array(beginning_of(path));
    return is_array ? TextFileKind::json_array : TextFileKind::json_lines;
  }

  /// Names of the first files.
  static std::string names_of(const std::vector<fs::path>& paths) {
    constexpr size_t kNamed = 5;
    std::vector<std::string> names;
    for (const fs::path& path : paths)
      if (names.size() < kNamed) names.push_back(path.filename().string());
    if (names.size() < paths.size()) names.emplace_back("...");
    return join(names, ", ");
  }

  std::string describe_skipped() const {
    std::vector<std::string> parts = notes_;
    if (!cards_.empty()) {
      parts.push_back(
          format("cards and licences are not read, unless their path is given: {}", names_of(cards_)));
    }
    if (skipped_.empty()) return join(parts, "; ");
    // What to do about files of each type, once.
    std::vector<std::string> remedies;
    std::set<std::string> types;
    int64_t bytes = 0;
    for (const fs::path& path : skipped_) {
      bytes += file_bytes(path);
      const std::string remedy = remedy_for(path, format_);
      if (!remedy.empty() && types.insert(lower_extension(unpacked_name(path))).second)
        remedies.push_back(remedy);
    }
    parts.push_back(format("{} file{} ({}) {} not read: {}{}", skipped_.size(),
                           skipped_.size() == 1 ? "" : "s", human_bytes(bytes),
                           skipped_.size() == 1 ? "is" : "are", names_of(skipped_),
                           remedies.empty() ? "" : "; " + join(remedies, "; ")));
    return join(parts, "; ");
  }

  TextFormat format_;
  TextFiles result_;
  std::vector<fs::path> skipped_;
  std::vector<std::string> notes_;        ///< which splits are read
  std::vector<fs::path> cards_;           ///< cards and licences, which are not read
  std::map<fs::path, MdsIndex> indexes_;  ///< by their folders
};

}  // namespace

TextFormat parse_text_format(std::string_view word) {
  if (word == "auto") return TextFormat::automatic;
  if (word == "text") return TextFormat::text;
  if (word == "jsonl") return TextFormat::json_lines;
  if (word == "csv") return TextFormat::csv;
  if (word == "mds") return TextFormat::mds;
  if (word == "records") return TextFormat::records;
  throw UsageError(format(
      "\"{}\" is not a text format; expected \"auto\", \"text\", \"jsonl\", \"csv\", \"mds\" or \"records\"",
      word));
}

TextFiles find_text_files(const std::vector<fs::path>& paths, TextFormat format) {
  return TextFileSearch(format).run(paths);
}

}  // namespace stepforge
