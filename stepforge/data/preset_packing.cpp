// SPDX-License-Identifier: Apache-2.0
#include "stepforge/data/preset_packing.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/base/staged.h"
#include "stepforge/data/npy.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kBoundaries = "boundaries.npy";
constexpr std::string_view kSamples = "samples.npy";
constexpr std::string_view kOptions = "packing.json";
constexpr std::string_view kOnce = "every_document_once";
constexpr int64_t kColumns = 6;

/// Checks the files of a folder against the documents and makes a table of them.
class PresetReader {
 public:
  PresetReader(const fs::path& folder, std::span<const int64_t> lengths, int64_t capacity)
      : folder_(folder), lengths_(lengths), capacity_(capacity) {}

  PackTable read() {
    read_boundaries();
    const NpyArray samples = read_array(kSamples);
    if (samples.shape.size() != 2 || samples.shape[1] != kColumns) fail(kSamples, "expected six columns");
    if (samples.shape[0] != table_.row_begins.back()) {
      fail(kBoundaries, format("the last number is {}, but {} has {} pieces", table_.row_begins.back(),
                               kSamples, samples.shape[0]));
    }
    table_.pieces.reserve(static_cast<size_t>(samples.shape[0]));
    for (int64_t row = 0; row < table_.rows(); ++row) add_row(row, samples.values);
    if (documents_once()) check_documents();
    table_.unused_tokens = std::max<int64_t>(0, std::reduce(lengths_.begin(), lengths_.end()) - used_tokens_);
    return std::move(table_);
  }

 private:
  [[noreturn]] void fail(std::string_view file, std::string_view fault) const {
    throw FormatError(format("{}: {}", (folder_ / file).string(), fault));
  }
  [[noreturn]] void fail_piece(int64_t row, int64_t piece, std::string_view fault) const {
    fail(kSamples, format("row {}, piece {}: {}", row, piece, fault));
  }

  /// The path of a file that is no link to something outside of the folder.
  fs::path own_file(std::string_view name) const {
    const fs::path path = folder_ / name;
    if (fs::is_symlink(path))
      fail(name, "a symbolic link is not followed; put the file itself into the folder");
    return path;
  }

  NpyArray read_array(std::string_view name) const {
    const fs::path path = own_file(name);
    if (!fs::exists(path)) {
      throw UsageError(
          format("{} does not exist: data.preset names a folder with {} and {}, such as stepforge "
                 "data pack writes",
                 path.string(), kBoundaries, kSamples));
    }
    return read_npy(path);
  }

  void read_boundaries() {
    NpyArray boundaries = read_array(kBoundaries);
    if (boundaries.shape.size() != 1 || boundaries.values.size() < 2)
      fail(kBoundaries, "expected one dimension of at least two numbers");
    table_.row_begins = std::move(boundaries.values);
    if (table_.row_begins[0] != 0)
      fail(kBoundaries, format("the first number is {}, not 0", table_.row_begins[0]));
    for (int64_t row = 0; row < table_.rows(); ++row) {
      const int64_t begin = table_.row_begins[static_cast<size_t>(row)];
      const int64_t end = table_.row_begins[static_cast<size_t>(row) + 1];
      if (end <= begin) fail(kBoundaries, format("row {} would be pieces [{}, {})", row, begin, end));
    }
  }

  void add_row(int64_t row, const std::vector<int64_t>& samples) {
    int64_t filled = 0;
    const int64_t end = table_.row_begins[static_cast<size_t>(row) + 1];
    for (int64_t piece = std::ssize(table_.pieces); piece < end; ++piece) {
      const auto columns = std::span(samples).subspan(static_cast<size_t>(piece * kColumns), kColumns);
      table_.pieces.push_back(checked(row, piece, columns));
      filled += table_.pieces.back().end - table_.pieces.back().begin;
      if (filled > capacity_) {
        fail_piece(
            row, piece,
            format("the row has {} tokens up to here, more than training.seq_len = {}", filled, capacity_));
      }
    }
    used_tokens_ += filled;
  }

  Piece checked(int64_t row, int64_t number, std::span<const int64_t> columns) const {
    if (columns[0] != 0)
      fail_piece(row, number, format("data set {}; a folder describes one, 0", columns[0]));
    if (columns[2] != -1 || columns[3] != -1) {
      fail_piece(
          row, number,
          format("characters [{}, {}); only whole documents (-1, -1) are supported", columns[2], columns[3]));
    }
    const Piece piece{columns[1], columns[4], columns[5]};
    if (piece.document < 0 || piece.document >= std::ssize(lengths_))
      fail_piece(row, number, format("document {}; the data has {}", piece.document, lengths_.size()));
    const int64_t length = lengths_[static_cast<size_t>(piece.document)];
    if (piece.begin < 0 || piece.begin >= piece.end || piece.end > length) {
      fail_piece(row, number,
                 format("tokens [{}, {}) of document {}, which has {}", piece.begin, piece.end,
                        piece.document, length));
    }
    return piece;
  }

  bool documents_once() const {
    const fs::path path = own_file(kOptions);
    if (!fs::exists(path)) return true;
    const Json json = read_json_file(path);
    const JsonReader reader(json, path.string());
    reader.object().only_keys({kOnce});
    return reader.boolean_or(kOnce, true);
  }

  void check_documents() const {
    const std::string allow = format("to allow that, write {{\"{}\": false}} to {}", kOnce, kOptions);
    std::vector<int64_t> by_token(table_.pieces.size());
    std::iota(by_token.begin(), by_token.end(), int64_t{0});
    const auto piece = [&](int64_t number) { return table_.pieces[static_cast<size_t>(number)]; };
    std::sort(by_token.begin(), by_token.end(), [&](int64_t a, int64_t b) {
      return std::array{piece(a).document, piece(a).begin, a} <
             std::array{piece(b).document, piece(b).begin, b};
    });
    std::vector<bool> used(lengths_.size());
    for (size_t i = 0; i < by_token.size(); ++i) {
      const Piece current = piece(by_token[i]);
      used[static_cast<size_t>(current.document)] = true;
      if (i == 0) continue;
      const Piece before = piece(by_token[i - 1]);
      if (before.document != current.document || before.end <= current.begin) continue;
      fail(kSamples, format("pieces {} and {} both have token {} of document {}; {}", by_token[i - 1],
                            by_token[i], current.begin, current.document, allow));
    }
    for (size_t document = 0; document < used.size(); ++document) {
      if (used[document] || lengths_[document] == 0) continue;
      fail(kSamples, format("no row has document {}; {}", document, allow));
    }
  }

  const fs::path& folder_;
  std::span<const int64_t> lengths_;
  int64_t capacity_;
  int64_t used_tokens_ = 0;
  PackTable table_;
};

}  // namespace

PackTable read_pack_table(const fs::path& folder, std::span<const int64_t> lengths, int64_t capacity) {
  return PresetReader(folder, lengths, capacity).read();
}

void write_pack_table(const fs::path& folder, const PackTable& table) {
  std::vector<int64_t> samples;
  samples.reserve(table.pieces.size() * kColumns);
  for (const Piece& piece : table.pieces)
    samples.insert(samples.end(), {0, piece.document, -1, -1, piece.begin, piece.end});
  StagedFolder staged(folder);
  write_npy(staged.staging() / kBoundaries, std::array{std::ssize(table.row_begins)}, table.row_begins);
  write_npy(staged.staging() / kSamples, std::array{std::ssize(table.pieces), kColumns}, samples);
  // Packing "hard" leaves the tokens after the last full row.
  const bool complete = table.unused_tokens == 0 || table.cut_documents > 0;
  write_file_atomic(staged.staging() / kOptions, Json({{kOnce, complete}}).dump() + "\n");
  staged.publish();
}

}  // namespace stepforge
