// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/indexed_dataset.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <string_view>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "the index is read in place");

namespace {

constexpr uint64_t kVersionOffset = 9;
constexpr uint64_t kTypeOffset = 17;
constexpr uint64_t kSequencesOffset = 18;
constexpr uint64_t kBoundariesOffset = 26;
constexpr uint64_t kHeaderBytes = 34;

std::string type_name(uint8_t code) {
  static constexpr std::array<const char*, 9> names = {"",    "u8",  "i8",  "i16", "i32",
                                                       "i64", "f64", "f32", "u16"};
  return code >= 1 && code < names.size() ? names.at(code) : "unknown";
}

/// The bytes of the .idx, after checking that both files exist.
std::string read_index(const fs::path& prefix) {
  for (const fs::path& path : {idx_path(prefix), bin_path(prefix)}) {
    if (fs::exists(path)) continue;
    throw UsageError(
        format("{} does not exist: an indexed dataset is the pair {}.bin and {}.idx (stepforge data build)",
               path.string(), prefix.string(), prefix.string()));
  }
  return read_file(idx_path(prefix), std::numeric_limits<int64_t>::max());
}

}  // namespace

TokenType token_type_for(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::u16 : TokenType::i32;
}

fs::path dataset_prefix(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".bin" || extension == ".idx" ? fs::path(path).replace_extension() : path;
}

fs::path bin_path(const fs::path& prefix) {
  return with_suffix(prefix, ".bin");
}
fs::path idx_path(const fs::path& prefix) {
  return with_suffix(prefix, ".idx");
}

bool names_pair_beside_folder(const fs::path& path) {
  return path.has_filename() && fs::is_directory(path) && fs::exists(idx_path(path)) &&
         fs::exists(bin_path(path));
}

namespace {

/// Checks the bytes of an .idx. Accessors may only be called for offsets that have been checked.
class IndexParser {
 public:
  IndexParser(std::span<const std::byte> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  TokenType parse_header();
  void check_sequences(uint64_t bin_bytes, TokenType type) const;
  void check_boundaries() const;
  std::vector<int64_t> document_begins(uint64_t bin_bytes, TokenType type) const;

 private:
  template <typename T>
  T at(uint64_t offset) const {
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }
  uint64_t length_offset(int64_t sequence) const {
    return kHeaderBytes + 4 * static_cast<uint64_t>(sequence);
  }
  uint64_t pointer_offset(int64_t sequence) const {
    return length_offset(sequences_) + 8 * static_cast<uint64_t>(sequence);
  }
  uint64_t boundary_offset(int64_t boundary) const {
    return pointer_offset(sequences_) + 8 * static_cast<uint64_t>(boundary);
  }
  [[noreturn]] void fail(uint64_t offset, std::string_view field, const std::string& fault) const {
    throw FormatError(format("{}: byte {}, {}: {}", name_, offset, field, fault));
  }

  std::span<const std::byte> bytes_;
  const std::string& name_;
  int64_t sequences_ = 0;
  int64_t boundaries_ = 1;
};

TokenType IndexParser::parse_header() {
  const uint64_t size = bytes_.size();
  if (size < kHeaderBytes) fail(size, "header", format("the file ends; a header has {} bytes", kHeaderBytes));
  if (std::memcmp(bytes_.data(), kIndexMagic.data(), kIndexMagic.size()) != 0) {
    fail(0, "magic", "not \"MMIDIDX\": this is not a Megatron indexed dataset");
  }
  const auto version = at<uint64_t>(kVersionOffset);
  if (version != 1) fail(kVersionOffset, "version", format("{}; only version 1 is known", version));
  const auto code = at<uint8_t>(kTypeOffset);
  if (code != 1 && code != 4 && code != 8) {
    fail(kTypeOffset, "token type",
         format("code {} ({}); token ids are u8, u16 or i32", code, type_name(code)));
  }
  // Each count alone must fit the file before they are multiplied: no product below can overflow.
  const auto sequences = at<uint64_t>(kSequencesOffset);
  const auto boundaries = at<uint64_t>(kBoundariesOffset);
  const uint64_t room = size - kHeaderBytes;
  if (sequences > room / 12) {
    fail(kSequencesOffset, "sequence count",
         format("{} sequences need more than the file's {} bytes", sequences, size));
  }
  if (boundaries > room / 8) {
    fail(kBoundariesOffset, "document count",
         format("{} boundaries need more than the file's {} bytes", boundaries, size));
  }
  if (boundaries == 0) fail(kBoundariesOffset, "document count", "0; there is always a first boundary, 0");
  const uint64_t expected = kHeaderBytes + 12 * sequences + 8 * boundaries;
  if (sequences > 0 && size == expected + sequences) {
    fail(expected, "modes", "the index carries multimodal modes; only text datasets are read");
  }
  if (size != expected) {
    fail(std::min(size, expected), "end of file",
         format("{} sequences and {} boundaries make {} bytes, but the file has {}", sequences, boundaries,
                expected, size));
  }
  sequences_ = static_cast<int64_t>(sequences);
  boundaries_ = static_cast<int64_t>(boundaries);
  return static_cast<TokenType>(code);
}

void IndexParser::check_sequences(uint64_t bin_bytes, TokenType type) const {
  const auto width = static_cast<uint64_t>(token_bytes(type));
  uint64_t end = 0;  // never above bin_bytes, so adding one length cannot overflow
  for (int64_t sequence = 0; sequence < sequences_; ++sequence) {
    const auto length = at<int32_t>(length_offset(sequence));
    if (length < 0) {
      fail(length_offset(sequence), format("length of sequence {}", sequence),
           format("{} is negative", length));
    }
    const auto pointer = at<int64_t>(pointer_offset(sequence));
    if (pointer < 0 || static_cast<uint64_t>(pointer) != end) {
      fail(pointer_offset(sequence), format("offset of sequence {}", sequence),
           format("{}; sequences follow each other without gaps, so it must be {}", pointer, end));
    }
    const uint64_t bytes = static_cast<uint64_t>(length) * width;
    if (bytes > bin_bytes - end) {
      fail(length_offset(sequence), format("length of sequence {}", sequence),
           format("{} tokens from byte {} pass the end of the .bin ({} bytes)", length, end, bin_bytes));
    }
    end += bytes;
  }
  if (end != bin_bytes) {
    fail(bytes_.size(), "total length",
         format("the sequences cover {} bytes, but the .bin has {}", end, bin_bytes));
  }
}

void IndexParser::check_boundaries() const {
  int64_t previous = 0;
  for (int64_t boundary = 0; boundary < boundaries_; ++boundary) {
    const auto sequence = at<int64_t>(boundary_offset(boundary));
    const auto complain = [&](const std::string& fault) {
      fail(boundary_offset(boundary), format("document boundary {}", boundary), fault);
    };
    if (boundary == 0 && sequence != 0)
      complain(format("{}; the first document begins at sequence 0", sequence));
    if (sequence < previous) complain(format("{} comes after {}; boundaries ascend", sequence, previous));
    if (sequence > sequences_) complain(format("{}; there are only {} sequences", sequence, sequences_));
    previous = sequence;
  }
  if (previous != sequences_) {
    fail(boundary_offset(boundaries_ - 1), format("document boundary {}", boundaries_ - 1),
         format("{}; the last document ends with sequence {}", previous, sequences_));
  }
}

std::vector<int64_t> IndexParser::document_begins(uint64_t bin_bytes, TokenType type) const {
  std::vector<int64_t> begins;
  begins.reserve(static_cast<size_t>(boundaries_));
  for (int64_t boundary = 0; boundary < boundaries_; ++boundary) {
    const auto sequence = at<int64_t>(boundary_offset(boundary));
    const int64_t byte =
        sequence == sequences_ ? static_cast<int64_t>(bin_bytes) : at<int64_t>(pointer_offset(sequence));
    begins.push_back(byte / token_bytes(type));
  }
  return begins;
}

}  // namespace

DatasetIndex DatasetIndex::parse(std::span<const std::byte> idx, uint64_t bin_bytes,
                                 const std::string& name) {
  IndexParser parser(idx, name);
  const TokenType type = parser.parse_header();
  parser.check_sequences(bin_bytes, type);
  parser.check_boundaries();
  return {type, parser.document_begins(bin_bytes, type)};
}

int64_t DatasetIndex::document_of(int64_t token) const {
  return std::upper_bound(begins_.begin() + 1, begins_.end() - 1, token) - begins_.begin() - 1;
}

namespace {

std::vector<TokenFile> single(FileReader file) {
  std::vector<TokenFile> files;
  files.push_back({std::move(file)});
  return files;
}

}  // namespace

IndexedDataset::IndexedDataset(const fs::path& path)
    // Braces: the index is read first, which names a file of the pair that is missing.
    : IndexedDataset{dataset_prefix(path), read_index(dataset_prefix(path)),
                     FileReader(bin_path(dataset_prefix(path)))} {}

IndexedDataset::IndexedDataset(fs::path prefix, const std::string& idx, FileReader bin)
    : prefix_(std::move(prefix)),
      index_hash_(content_hash(idx)),
      index_(DatasetIndex::parse(std::as_bytes(std::span(idx)), static_cast<uint64_t>(bin.size()),
                                 idx_path(prefix_).string())),
      tokens_(std::make_shared<const TokenFiles>(single(std::move(bin)), index_.type())) {
  if (const fs::path mask = mask_path(prefix_); fs::exists(fs::symlink_status(mask)))
    mask_ = std::make_shared<const LossMask>(mask, index_.tokens());
}

IndexedDataset::IndexedDataset(TokenFiles tokens, std::vector<int64_t> begins)
    : index_hash_(content_hash(std::as_bytes(std::span(begins)))),
      index_(tokens.type(), std::move(begins)),
      tokens_(std::make_shared<const TokenFiles>(std::move(tokens))) {
  if (tokens_->tokens() == 0) throw UsageError(format("{} holds no tokens", tokens_->name()));
}

std::shared_ptr<const IndexedDataset> IndexedDataset::part(int64_t first, int64_t end) const {
  if (first < 0 || end < first || end > index_.documents())
    throw Error(format("documents [{}, {}) of {} requested", first, end, index_.documents()));
  const int64_t first_token = index_.document_begin(first);
  std::vector<int64_t> begins;
  for (int64_t document = first; document <= end; ++document)
    begins.push_back(index_.document_begin(document) - first_token);
  auto made = std::make_shared<IndexedDataset>(*this);
  made->index_ = DatasetIndex(index_.type(), std::move(begins));
  made->first_document_ += first;
  made->first_token_ += first_token;
  return made;
}

void IndexedDataset::append(int64_t first_token, int64_t count, int64_t vocab_size, Row& row) const {
  const size_t begin = row.tokens.size();
  row.tokens.resize(begin + static_cast<size_t>(count));
  const auto ids = std::span(row.tokens).subspan(begin);
  read(first_token, ids);
  check_ids(first_token, ids, vocab_size);
  if (!mask_) return;
  row.counted.resize(row.tokens.size());
  read_counted(first_token, std::span(row.counted).subspan(begin));
}

void IndexedDataset::check_ids(int64_t first_token, std::span<const int32_t> ids, int64_t vocab_size) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    const int64_t in_part = first_token + static_cast<int64_t>(i);
    const int64_t token = first_token_ + in_part;
    throw FormatError(format(
        "{}: document {} holds token id {} (token {} of the data set), but the vocabulary has {} entries: "
        "it was built with another tokenizer",
        tokens_->file_of(token), first_document_ + index_.document_of(in_part), ids[i], token, vocab_size));
  }
}

void IndexedDataset::read_counted(int64_t first_token, std::span<uint8_t> out) const {
  tokens_->require(first_token_ + first_token, out.size());
  mask_->read(first_token_ + first_token, out);
}

void IndexedDataset::read(int64_t first_token, std::span<int32_t> out) const {
  tokens_->read(first_token_ + first_token, out);
}

std::string IndexedDataset::content_key() const {
  std::string parts = format("{}:{}", index_hash_, tokens_->sample());
  if (mask_) parts += ":" + sample_of(mask_->file());
  return content_hash(parts + range_of_part());
}

std::string IndexedDataset::content(const HashOfFile& hash_of) const {
  std::string parts = index_hash_;
  for (const fs::path& file : tokens_->paths()) parts += ":" + hash_of(file);
  if (mask_) parts += ":" + hash_of(mask_->file().path());
  return content_hash(parts + range_of_part());
}

/// "" if it has all documents of its files.
std::string IndexedDataset::range_of_part() const {
  const bool whole = first_token_ == 0 && index_.tokens() == tokens_->tokens();
  return whole ? "" : format(":documents {} to {}", first_document_, first_document_ + index_.documents());
}

}  // namespace stepforge
