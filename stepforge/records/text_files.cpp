// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/text_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <ranges>
#include <set>
#include <system_error>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/path_pattern.h"
#include "stepforge/base/shell_word.h"
#include "stepforge/records/decompressor.h"
#include "stepforge/records/table_folder.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

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

/// The first characters of a file's contents.
std::string beginning_of(const fs::path& path) {
  std::string text(4096, '\0');
  text.resize(static_cast<size_t>(open_bytes(path)->read(text)));
  return text;
}

/// The first of the formats that has such a name, or null.
const FileFormat* named_format(const std::vector<const FileFormat*>& formats, const fs::path& path) {
  const auto found =
      std::ranges::find_if(formats, [&](const FileFormat* format) { return format->names(path); });
  return found == formats.end() ? nullptr : *found;
}

/// What to do about a file of a type that cannot be read as one of the formats, or "".
std::string remedy_for(const fs::path& path, const std::vector<const FileFormat*>& formats) {
  const FileFormat* known = named_format(formats_of("auto"), unpacked_name(path));
  if (known != nullptr && known->seeks && is_compressed_name(path))
    return "unpack it first: it is read from places all over the file";
  if (known != nullptr && known->option.empty() && std::ranges::find(formats, known) == formats.end())
    return "leave out the format of the source";
  const std::string extension = lower_extension(unpacked_name(path));
  for (const ForeignType& type : kForeignTypes) {
    if (type.extension == extension) return format_arguments(type.remedy, {shell_word(path.native())});
  }
  return "";
}

class TextFileSearch {
 public:
  explicit TextFileSearch(std::string_view format) : formats_(formats_of(format)) {}

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

  void add_folder(const fs::path& folder) {
    std::error_code failure;
    std::vector<fs::path> found;
    std::set<std::pair<const FileFormat*, fs::path>> indexed;
    std::vector<fs::path> skipped;
    for (fs::recursive_directory_iterator entry(folder, failure), end; !failure && entry != end;
         entry.increment(failure)) {
      const fs::path& path = entry->path();
      if (path.filename().string().starts_with('.')) {
        if (entry->is_directory()) entry.disable_recursion_pending();
        continue;
      }
      const FileFormat* type = named_format(formats_, path);
      const bool is_wanted = type != nullptr && type->is_searched;
      if (is_wanted && type->index != nullptr) {
        indexed.emplace(type, path.parent_path());  // a link that leads nowhere is refused with its index
      } else if (entry->is_regular_file() && !describes_data_set(path)) {
        if (is_wanted && is_card_or_licence(path)) {
          cards_.push_back(path);
        } else {
          (is_wanted ? found : skipped).push_back(path);
        }
      }
    }
    if (failure) throw Error(format("cannot read the folder {}: {}", folder.string(), failure.message()));
    for (const auto& [type, place] : indexed) {
      const auto index = index_of(*type, place);
      for (fs::path& file : index->files()) found.push_back(std::move(file));
      std::erase(skipped, index->file());
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
    std::vector<std::string> patterns;
    for (const FileFormat* format : formats_)
      if (format->is_searched)
        for (const auto extension : format->extensions | std::views::split(' '))
          patterns.push_back("*" + std::string(extension.begin(), extension.end()));
    return alternatives(patterns);
  }

  void add_file(const fs::path& path) {
    const std::string remedy = remedy_for(path, formats_);
    if (!remedy.empty()) throw UsageError(format("{} cannot be read as text; {}", path.string(), remedy));
    const int64_t bytes = FileReader(path).size();  // fails now if the file is unreadable
    const FileFormat& type = format_of(path);
    if (type.require != nullptr) type.require(path);
    TextFile file{path, &type, bytes};
    if (type.index != nullptr) {
      file.index = index_of(type, path.parent_path());
      file.index->require(path);
    }
    result_.files.push_back(std::move(file));
    result_.bytes += bytes;
  }

  const FileFormat& format_of(const fs::path& path) const {
    const FileFormat* named = named_format(formats_, path);
    const FileFormat* format = named != nullptr ? named : formats_.front();
    // A line of a .jsonl file that is an array is a fault, which the reader names.
    if (format != &kJsonArrayFormat && (format != &kJsonLinesFormat || named != nullptr)) return *format;
    return begins_json_array(beginning_of(path)) ? kJsonArrayFormat : kJsonLinesFormat;
  }

  /// Read once, however many files it lists.
  std::shared_ptr<const FolderIndex> index_of(const FileFormat& format, const fs::path& folder) {
    auto& index = indexes_[{&format, folder}];
    if (!index) index = format.index(folder.empty() ? "." : folder);
    return index;
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
      const std::string remedy = remedy_for(path, formats_);
      if (!remedy.empty() && types.insert(lower_extension(unpacked_name(path))).second)
        remedies.push_back(remedy);
    }
    parts.push_back(format("{} file{} ({}) {} not read: {}{}", skipped_.size(),
                           skipped_.size() == 1 ? "" : "s", human_bytes(bytes),
                           skipped_.size() == 1 ? "is" : "are", names_of(skipped_),
                           remedies.empty() ? "" : "; " + join(remedies, "; ")));
    return join(parts, "; ");
  }

  std::vector<const FileFormat*> formats_;
  TextFiles result_;
  std::vector<fs::path> skipped_;
  std::vector<std::string> notes_;  ///< which splits are read
  std::vector<fs::path> cards_;     ///< cards and licences, which are not read
  std::map<std::pair<const FileFormat*, fs::path>, std::shared_ptr<const FolderIndex>> indexes_;
};

}  // namespace

TextFiles find_text_files(const std::vector<fs::path>& paths, std::string_view format) {
  return TextFileSearch(format).run(paths);
}

}  // namespace stepforge
