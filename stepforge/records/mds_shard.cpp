// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/mds_shard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <system_error>
#include <type_traits>
#include <utility>

#include <simdjson.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/base/utf8.h"
#include "stepforge/records/decompressor.h"

namespace stepforge {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "offsets are read in place");

namespace {

/// Beside the shards.
constexpr std::string_view kMdsIndexFile = "index.json";
constexpr int64_t kMaxShardBytes = std::numeric_limits<uint32_t>::max();
/// So that the offsets take at most 256 MiB of memory.
constexpr int64_t kMaxSamples = int64_t{1} << 26;
constexpr size_t kMaxColumns = 1024;

template <typename T>
T number_of(std::string_view bytes) {
  std::array<char, sizeof(T)> raw{};
  bytes.copy(raw.data(), raw.size());
  return std::bit_cast<T>(raw);
}

void append_real(std::string& json, double value) {
  json += std::isfinite(value) ? format("{}", value) : "null";
}

double half_to_double(uint16_t bits) {
  constexpr int kFractionBits = 10;
  constexpr int kBias = 15;
  const int exponent = (bits >> kFractionBits) & 0x1F;
  const int fraction = bits & 0x3FF;
  double size = 0.0;
  if (exponent == 0x1F) {
    size = INFINITY;  // or not a number, which is also written as null
  } else if (exponent == 0) {
    size = std::ldexp(fraction, 1 - kBias - kFractionBits);
  } else {
    size = std::ldexp(fraction + (1 << kFractionBits), exponent - kBias - kFractionBits);
  }
  return (bits & 0x8000) != 0 ? -size : size;
}

template <typename T>
void append_number(std::string& json, std::string_view bytes) {
  if constexpr (std::is_floating_point_v<T>) {
    append_real(json, double{number_of<T>(bytes)});
  } else {
    json += format("{}", number_of<T>(bytes));
  }
}

void append_half(std::string& json, std::string_view bytes) {
  append_real(json, half_to_double(number_of<uint16_t>(bytes)));
}

/// On one line, and checked, so that it cannot end its row.
void append_json(std::string& json, std::string_view bytes) {
  simdjson::dom::parser parser;
  simdjson::dom::element value;
  const simdjson::padded_string padded(bytes);
  if (const auto parsed = parser.parse(padded).get(value); parsed != simdjson::SUCCESS)
    throw FormatError(format("invalid JSON: {}", simdjson::error_message(parsed)));
  json += std::string(simdjson::minify(value));
}

constexpr std::array kEncodings = {
    MdsEncoding{"str", 0, append_json_text},
    MdsEncoding{"json", 0, append_json},
    MdsEncoding{"str_int", 0, append_json_text},
    MdsEncoding{"str_float", 0, append_json_text},
    MdsEncoding{"str_decimal", 0, append_json_text},
    MdsEncoding{"int", 8, append_number<int64_t>},
    MdsEncoding{"int8", 1, append_number<int8_t>},
    MdsEncoding{"int16", 2, append_number<int16_t>},
    MdsEncoding{"int32", 4, append_number<int32_t>},
    MdsEncoding{"int64", 8, append_number<int64_t>},
    MdsEncoding{"uint8", 1, append_number<uint8_t>},
    MdsEncoding{"uint16", 2, append_number<uint16_t>},
    MdsEncoding{"uint32", 4, append_number<uint32_t>},
    MdsEncoding{"uint64", 8, append_number<uint64_t>},
    MdsEncoding{"float16", 2, append_half},
    MdsEncoding{"float32", 4, append_number<float>},
    MdsEncoding{"float64", 8, append_number<double>},
};

/// Null if values of the encoding are neither text, JSON nor numbers.
const MdsEncoding* find_encoding(std::string_view name) {
  const auto* found = std::ranges::find(kEncodings, name, &MdsEncoding::name);
  return found == kEncodings.end() ? nullptr : found;
}

std::string plain_name(const JsonReader& file) {
  const JsonReader name = file["basename"];
  if (!is_plain_file_name(name.text())) name.refuse("it must be the plain name of a file in the same folder");
  return name.text();
}

std::vector<MdsColumn> parse_columns(const JsonReader& shard) {
  const JsonReader names = shard["column_names"];
  const JsonReader encodings = shard["column_encodings"];
  const JsonReader sizes = shard["column_sizes"];
  if (names.size() != encodings.size() || names.size() != sizes.size() || names.size() > kMaxColumns) {
    shard.fail(
        format("{} column names, {} encodings and {} sizes; expected one of each per column, at most {}",
               names.size(), encodings.size(), sizes.size(), kMaxColumns));
  }
  std::vector<MdsColumn> columns;
  std::set<std::string> seen;
  for (size_t i = 0; i < names.size(); ++i) {
    MdsColumn column{names.at(i).text(), find_encoding(encodings.at(i).text())};
    if (!sizes.json().at(i).is_null()) column.fixed_size = sizes.at(i).integer(0, kMaxShardBytes);
    const int64_t size = column.encoding != nullptr ? column.encoding->number_size : 0;
    if (size > 0 && size != column.fixed_size)
      sizes.at(i).refuse(format("a column of encoding {} has {} bytes", column.encoding->name, size));
    if (!seen.insert(column.name).second) names.at(i).refuse("two columns have this name");
    columns.push_back(std::move(column));
  }
  if (std::ranges::all_of(columns, [](const MdsColumn& column) { return column.encoding == nullptr; }))
    encodings.fail("no column can be read as text, JSON or a number");
  return columns;
}

MdsShard parse_shard(const JsonReader& entry) {
  if (entry.text_or("format", "mds") != "mds") entry["format"].refuse("only \"mds\" is read");
  MdsShard shard;
  shard.raw_name = plain_name(entry["raw_data"]);
  shard.raw_bytes = entry["raw_data"]["bytes"].integer(0, kMaxShardBytes);
  if (entry.has("zip_data")) {
    shard.zip_name = plain_name(entry["zip_data"]);
    shard.zip_bytes = entry["zip_data"]["bytes"].count();
  }
  shard.samples = entry["samples"].integer(0, kMaxSamples);
  shard.columns = parse_columns(entry);
  return shard;
}

fs::path index_file(const fs::path& folder) {
  fs::path path = folder / kMdsIndexFile;
  if (!fs::exists(path)) {
    throw FormatError(
        format("{} does not exist: it describes the columns of the .mds files beside it", path.string()));
  }
  return path;
}

std::shared_ptr<const FolderIndex> read_index(const fs::path& folder) {
  return std::make_shared<const MdsIndex>(folder);
}

std::unique_ptr<ContentReader> open_mds(const TextFile& file, const std::optional<std::string>& /*column*/) {
  const auto index = std::static_pointer_cast<const MdsIndex>(file.index);
  return std::make_unique<MdsReader>(open_bytes(file.path),
                                     std::shared_ptr<const MdsShard>(index, &index->shard_of(file.path)),
                                     file.path.string());
}

/// The file of a shard that is there.
fs::path shard_file(const fs::path& folder, const MdsShard& shard) {
  fs::path file = folder / shard.raw_name;
  int64_t bytes = shard.raw_bytes;
  if (shard.zip_name && !fs::exists(fs::symlink_status(file))) {
    file = folder / *shard.zip_name;
    bytes = shard.zip_bytes;
    if (!is_compressed_name(file)) {
      throw FormatError(
          format("{} is compressed in a way that is not known; Zstandard (.zstd) and gzip (.gz) are read",
                 file.string()));
    }
  }
  std::error_code failure;
  const fs::path target = fs::canonical(file, failure);
  if (failure)
    throw FormatError(
        format("{}, which {} lists, cannot be found: {}", file.string(), kMdsIndexFile, failure.message()));
  if (target.parent_path() != fs::canonical(folder)) {
    throw FormatError(format("{} is a symbolic link to {}, outside of its folder; copy the file there",
                             file.string(), target.string()));
  }
  if (const int64_t size = FileReader(file).size(); size != bytes) {
    throw FormatError(format("{} has {} bytes, but {} says {}: it is truncated or damaged", file.string(),
                             size, kMdsIndexFile, bytes));
  }
  return file;
}

}  // namespace

constexpr FileFormat kMdsFormat{.name = "mds",
                                .option = "mds",
                                .extensions = ".mds",
                                .read = read_table_rows,
                                .open = open_mds,
                                .index = read_index};

std::vector<MdsShard> parse_mds_index(const Json& index, const std::string& source) {
  const JsonReader reader(index, source);
  if (const JsonReader version = reader["version"]; version.integer() != 2)
    version.refuse("only version 2 of the format is read");
  const JsonReader entries = reader["shards"];
  std::vector<MdsShard> shards;
  for (size_t i = 0; i < entries.size(); ++i) shards.push_back(parse_shard(entries.at(i)));
  return shards;
}

MdsIndex::MdsIndex(const fs::path& folder)
    : FolderIndex(index_file(folder)), shards_(parse_mds_index(read_json_file(file()), file().string())) {
  for (size_t i = 0; i < shards_.size(); ++i) {
    by_name_.emplace(shards_[i].raw_name, i);
    if (shards_[i].zip_name) by_name_.emplace(*shards_[i].zip_name, i);
  }
}

std::vector<fs::path> MdsIndex::files() const {
  std::vector<fs::path> files;
  for (const MdsShard& shard : shards_) files.push_back(shard_file(folder(), shard));
  return files;
}

void MdsIndex::require(const fs::path& file) const {
  shard_file(folder(), shard_of(file));
}

const MdsShard& MdsIndex::shard_of(const fs::path& file) const {
  const auto found = by_name_.find(file.filename());
  if (found == by_name_.end())
    throw FormatError(format("{} is not listed in {}", file.string(), this->file().string()));
  return shards_[found->second];
}

MdsReader::MdsReader(std::unique_ptr<ContentReader> input, std::shared_ptr<const MdsShard> shard,
                     std::string name)
    : input_(std::move(input)), shard_(std::move(shard)), name_(std::move(name)) {
  read_offsets();
}

void MdsReader::read_offsets() {
  uint32_t samples = 0;
  std::memcpy(&samples, take(sizeof samples).data(), sizeof samples);
  if (samples != shard_->samples)
    fail(format("it has {} samples, but {} says {}", samples, kMdsIndexFile, shard_->samples));
  const std::string_view offsets = take(static_cast<int64_t>(sizeof(uint32_t)) * (shard_->samples + 1));
  offsets_.resize(offsets.size() / sizeof(uint32_t));
  std::memcpy(offsets_.data(), offsets.data(), offsets.size());
  const int64_t header = static_cast<int64_t>(sizeof(uint32_t)) * (shard_->samples + 2);
  if (offsets_.front() < header)
    fail(format("sample 1 is said to begin at byte {}, inside of the {} bytes of the header",
                offsets_.front(), header));
  if (offsets_.back() != shard_->raw_bytes) {
    fail(format("the last sample is said to end at byte {}, but {} says that there are {} bytes",
                offsets_.back(), kMdsIndexFile, shard_->raw_bytes));
  }
  if (!std::is_sorted(offsets_.begin(), offsets_.end())) fail("the offsets of the samples do not ascend");
  skip(offsets_.front() - header);
}

bool MdsReader::next_row(std::string& json) {
  if (row_ + 1 == offsets_.size()) {
    require_end();
    return false;
  }
  const int64_t bytes = int64_t{offsets_[row_ + 1]} - offsets_[row_];
  ++row_;
  if (bytes > kMaxRecordBytes) {
    skip(bytes);
    throw RowFault(format("a sample of {} bytes; at most {} are accepted", bytes, kMaxRecordBytes));
  }
  append_sample(json, take(bytes));
  return true;
}

void MdsReader::require_end() {
  char more = 0;
  if (input_->read(std::span(&more, 1)) != 0)
    fail(format("there are bytes after byte {}, where {} says that it ends", shard_->raw_bytes,
                kMdsIndexFile));
}

void MdsReader::append_sample(std::string& json, std::string_view sample) const {
  const auto varying = std::count_if(shard_->columns.begin(), shard_->columns.end(),
                                     [](const MdsColumn& column) { return column.fixed_size == 0; });
  size_t next_size = 0;
  auto next = static_cast<int64_t>(sizeof(uint32_t)) * varying;
  if (next > std::ssize(sample))
    throw RowFault(format("{} bytes are too few for the sizes of its columns", sample.size()));
  json += '{';
  for (const MdsColumn& column : shard_->columns) {
    int64_t size = column.fixed_size;
    if (size == 0) {
      uint32_t stated = 0;
      std::memcpy(&stated, sample.data() + next_size, sizeof stated);
      next_size += sizeof stated;
      size = stated;
    }
    if (size > std::ssize(sample) - next) {
      throw RowFault(format("column {} is said to have {} bytes, but the sample has only {} more",
                            quoted_for_message(column.name), size, std::ssize(sample) - next));
    }
    const std::string_view bytes = sample.substr(static_cast<size_t>(next), static_cast<size_t>(size));
    next += size;
    if (column.encoding == nullptr) continue;
    if (json.size() > 1) json += ',';
    append_json_text(json, column.name);
    json += ':';
    try {
      column.encoding->append(json, bytes);
    } catch (const FormatError& fault) {
      throw RowFault(format("column {}: {}", quoted_for_message(column.name), fault.what()));
    }
    if (std::ssize(json) > kMaxRecordBytes)
      throw RowFault(format("more than {} bytes as JSON", kMaxRecordBytes));
  }
  if (next != std::ssize(sample))
    throw RowFault(format("its columns have {} bytes, but the sample has {}", next, sample.size()));
  json += '}';
}

void MdsReader::skip(int64_t count) {
  constexpr int64_t kPiece = 1 << 16;
  for (; count > 0; count -= kPiece) take(std::min(kPiece, count));
}

std::string_view MdsReader::take(int64_t count) {
  // Piece by piece, so that a size that is a lie takes no memory.
  constexpr int64_t kPiece = int64_t{1} << 20;
  bytes_.clear();
  while (std::ssize(bytes_) < count) {
    const size_t held = bytes_.size();
    bytes_.resize(held + static_cast<size_t>(std::min(kPiece, count - std::ssize(bytes_))));
    const auto piece = std::span(bytes_).subspan(held);
    if (input_->read(piece) < std::ssize(piece)) fail("the file ends inside of it: it is truncated");
  }
  return bytes_;
}

void MdsReader::fail(std::string_view fault) const {
  throw FormatError(row_ == 0 ? format("{}: header: {}", name_, fault)
                              : format("{}: row {}: {}", name_, row_, fault));
}

}  // namespace stepforge
