// SPDX-License-Identifier: Apache-2.0
// The formats of files that hold texts or records, each a row of one table (file_formats.cpp). A new one needs a file with its row
// and a line in that table.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/records/content_reader.h"
#include "stepforge/records/json_lines.h"

namespace stepforge {

/// How contents are cut into documents.
enum class DocumentMode : uint8_t {
  file,       ///< the whole file
  line,       ///< every line that is not blank
  paragraph,  ///< lines up to a blank line
};

/// What a format keeps beside the files of a folder. Immutable.
class FolderIndex {
 public:
  /// `file`: the index itself; its bytes decide what is read, as those of the files do.
  explicit FolderIndex(std::filesystem::path file);
  virtual ~FolderIndex() = default;
  FolderIndex(const FolderIndex&) = delete;
  FolderIndex& operator=(const FolderIndex&) = delete;

  const std::filesystem::path& file() const { return file_; }
  const std::string& hash() const { return hash_; }
  /// The files in order. Throws FormatError naming the one that is missing or is not as the index says.
  virtual std::vector<std::filesystem::path> files() const = 0;
  /// Throws FormatError unless the file is one of them, and as the index says.
  virtual void require(const std::filesystem::path& file) const = 0;

 private:
  std::filesystem::path file_;
  std::string hash_;
};

struct FileFormat;

/// One file of a source.
struct TextFile {
  std::filesystem::path path;
  const FileFormat* format = nullptr;
  int64_t bytes = 0;
  std::shared_ptr<const FolderIndex> index{};  ///< null if the format has none

  /// Whether the contents have to be read from the beginning, through a ContentReader.
  bool is_sequential() const;
};

struct FileFormat {
  std::string_view name;  ///< also in the keys of caches
  /// The word that chooses it, which several may share; "": a file has it by its name only.
  std::string_view option;
  std::string_view extensions;  ///< with spaces between them, small, of the name without .gz or .zst
  bool is_searched = true;      ///< whether folders are searched for such files
  /// How the contents are cut; none: as the source says.
  std::optional<DocumentMode> mode = DocumentMode::line;
  /// Reads the records in a piece of the contents; null: they are texts.
  RecordReader read = nullptr;

  // Of tables, whose contents are JSON Lines (records/table_reader.h).

  /// Only `column` need be read if the table has it. Throws Error if the file cannot be opened, FormatError if its beginning is
  /// malformed. Null: the contents are the bytes of the file.
  std::unique_ptr<ContentReader> (*open)(const TextFile& file,
                                         const std::optional<std::string>& column) = nullptr;
  /// Whether a file is read at places all over it, so that it cannot be compressed as a whole.
  bool seeks = false;
  /// The index of a folder, read; null if the format has none. Throws FormatError if it is missing or malformed.
  std::shared_ptr<const FolderIndex> (*index)(const std::filesystem::path& folder) = nullptr;
  /// Throws UsageError if this build cannot read the file; may be null.
  void (*require)(const std::filesystem::path& file) = nullptr;

  /// Where record `number` is, or the one on this line.
  std::string place_of(const std::filesystem::path& file, int64_t number) const;
  bool is_table() const { return open != nullptr; }
  /// Whether a file has such a name.
  bool names(const std::filesystem::path& file) const;
};

/// A JSON array of records, which a file of JSON may be.
extern const FileFormat kJsonArrayFormat;
extern const FileFormat kJsonLinesFormat;

/// Whether a file has the name of a format of records, and so is no plain text.
bool has_name_of_records(const std::filesystem::path& file);

/// Those that the `format` of a source chooses: "auto", all of them; "records", all but texts; otherwise those with this option.
/// Throws UsageError for any other word.
std::vector<const FileFormat*> formats_of(std::string_view option);

/// "a", "b" or "c".
std::string alternatives(const std::vector<std::string>& words);

/// The contents of a file, from the beginning.
std::unique_ptr<ContentReader> open_contents(const TextFile& file, const std::optional<std::string>& column);

}  // namespace stepforge
