// SPDX-License-Identifier: Apache-2.0
// MosaicML's streaming format (MDS, version 2), as JSON Lines: a folder with shards and an index.json, which lists for
// each shard its files, the number of samples and the columns. Layout of a shard, little-endian: u32 number of samples
// n; u32[n + 1] offsets of the samples in the file and of its end; a JSON text; the samples. A sample is the u32 sizes
// of its columns of variable size, then the bytes of all columns. Source: mosaicml/streaming, streaming/base/format/mds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "stepforge/base/json.h"
#include "stepforge/records/file_format.h"
#include "stepforge/records/table_reader.h"

namespace stepforge {

extern const FileFormat kMdsFormat;

/// How values of a column become JSON.
struct MdsEncoding {
  std::string_view name;
  int64_t number_size;  ///< bytes of a number; 0: of variable size
  /// Appends a value; of a number there must be number_size bytes. Throws FormatError, without a place, if a value of the encoding
  /// json is not JSON.
  void (*append)(std::string& json, std::string_view bytes);
};

struct MdsColumn {
  std::string name;
  const MdsEncoding* encoding = nullptr;  ///< null: it is left out of the rows
  int64_t fixed_size = 0;                 ///< bytes; 0: each sample states its own
};

/// What the index says about a shard.
struct MdsShard {
  std::string raw_name;
  int64_t raw_bytes = 0;
  std::optional<std::string> zip_name;  ///< of the compressed file
  int64_t zip_bytes = 0;
  int64_t samples = 0;
  std::vector<MdsColumn> columns;
};

/// The shards that an index lists. Throws FormatError naming `source` and the field unless all of it is well-formed:
/// version 2, plain file names, sizes below 4 GiB, and columns of which some can be read.
std::vector<MdsShard> parse_mds_index(const Json& index, const std::string& source);

/// The index.json of a folder. It says where compressed shards take the place of others.
class MdsIndex : public FolderIndex {
 public:
  /// Throws what parse_mds_index() throws, and FormatError if there is no index.
  explicit MdsIndex(const std::filesystem::path& folder);

  /// A shard must not be missing, be a symbolic link to outside of the folder, or have another size than the index says.
  std::vector<std::filesystem::path> files() const override;
  void require(const std::filesystem::path& file) const override;
  /// Throws FormatError if there is none.
  const MdsShard& shard_of(const std::filesystem::path& file) const;

 private:
  std::filesystem::path folder() const { return file().parent_path(); }

  std::vector<MdsShard> shards_;
  std::unordered_map<std::string, size_t> by_name_;  ///< of the raw file or of the compressed one
};

/// Columns of the encodings str, json, str_int, str_float, str_decimal, int, int8 to uint64, float16 to float64; others,
/// such as bytes and images, are left out of the rows. Numbers that are not finite are null.
class MdsReader : public TableReader {
 public:
  /// `input`: the shard, uncompressed. `name` is that of the file. Throws FormatError naming it if its beginning
  /// contradicts `shard`. A sample whose columns do not fill it or have no value is a malformed row. Reading throws
  /// FormatError naming the row, counted from 1, if the file is truncated.
  MdsReader(std::unique_ptr<ContentReader> input, std::shared_ptr<const MdsShard> shard, std::string name);

  int64_t position() const override { return input_->position(); }

 private:
  bool next_row(std::string& json) override;
  void read_offsets();
  void require_end();
  /// The next `count` bytes of the shard, valid until the next call.
  std::string_view take(int64_t count);
  void skip(int64_t count);
  void append_sample(std::string& json, std::string_view sample) const;
  [[noreturn]] void fail(std::string_view fault) const;

  std::unique_ptr<ContentReader> input_;
  std::shared_ptr<const MdsShard> shard_;
  std::string name_;
  std::vector<uint32_t> offsets_;  ///< [samples + 1]
  size_t row_ = 0;                 ///< rows that were read
  std::string bytes_;
};

}  // namespace stepforge
