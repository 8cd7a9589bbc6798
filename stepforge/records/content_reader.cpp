// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/content_reader.h"

#include <algorithm>
#include <utility>

#include "stepforge/base/files.h"
#include "stepforge/records/arrow_library.h"
#include "stepforge/records/csv_reader.h"
#include "stepforge/records/decompressor.h"
#include "stepforge/records/mds_shard.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// The bytes of the file as they are.
class PlainContents : public ContentReader {
 public:
  explicit PlainContents(const fs::path& path) : file_(path) {}

  int64_t read(std::span<char> out) override {
    const int64_t count = std::min<int64_t>(std::ssize(out), file_.size() - position_);
    file_.read(position_, std::as_writable_bytes(out.first(static_cast<size_t>(count))));
    position_ += count;
    return count;
  }
  int64_t position() const override { return position_; }

 private:
  FileReader file_;
  int64_t position_ = 0;
};

}  // namespace

TableFormat table_format_of(const fs::path& path) {
  const std::string extension = lower_extension(unpacked_name(path));
  if (extension == ".csv") return TableFormat::csv;
  if (extension == ".tsv") return TableFormat::tsv;
  if (extension == ".mds") return TableFormat::mds;
  if (is_arrow_name(path)) return TableFormat::arrow;
  return TableFormat::none;
}

bool is_sequential(const fs::path& path, TableFormat table) {
  return table != TableFormat::none || is_compressed_name(path);
}

std::unique_ptr<ContentReader> open_contents(const fs::path& path, TableFormat table,
                                             const ContentOptions& options) {
  if (table == TableFormat::arrow) return open_arrow({.path = path, .column = options.column});
  std::unique_ptr<ContentReader> bytes;
  if (is_compressed_name(path)) {
    bytes = open_decompressor(path);
  } else {
    bytes = std::make_unique<PlainContents>(path);
  }
  switch (table) {
    case TableFormat::none:
    case TableFormat::arrow:
      break;
    case TableFormat::csv:
      return std::make_unique<CsvReader>(std::move(bytes), ',', path.string());
    case TableFormat::tsv:
      return std::make_unique<CsvReader>(std::move(bytes), '\t', path.string());
    case TableFormat::mds:
      return std::make_unique<MdsReader>(std::move(bytes), options.shard, path.string());
  }
  return bytes;
}

}  // namespace stepforge
