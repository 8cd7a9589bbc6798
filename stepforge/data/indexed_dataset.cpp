#include "stepforge/data/indexed_dataset.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "the indexed dataset is read in place");

namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kVersionOffset = 9;
constexpr uint64_t kTypeOffset = 17;
constexpr uint64_t kSequencesOffset = 18;
constexpr uint64_t kBordersOffset = 26;
constexpr uint64_t kHeaderBytes = 34;
constexpr size_t kBufferBytes = size_t{1} << 20;

[[noreturn]] void fail(const std::string& name, uint64_t offset, std::string_view field,
                       const std::string& fault) {
  throw FormatError(format("{}: byte {}, {}: {}", name, offset, field, fault));
}

std::string type_name(uint8_t code) {
  static constexpr std::array<const char*, 9> names = {"",    "u8",  "i8",  "i16", "i32",
                                                       "i64", "f64", "f32", "u16"};
  return code >= 1 && code < names.size() ? names.at(code) : "unknown";
}

void append_bytes(std::string& buffer, const void* bytes, size_t count) {
  buffer.append(static_cast<const char*>(bytes), count);
}

template <typename T>
void append_narrow(std::string& buffer, std::span<const int32_t> tokens, TokenType type) {
  for (const int32_t token : tokens) {
    if (!std::in_range<T>(token) || token < 0) {
      throw Error(format("token id {} does not fit the dataset's token type {}", token,
                         type_name(static_cast<uint8_t>(type))));
    }
    const T narrow = static_cast<T>(token);
    append_bytes(buffer, &narrow, sizeof narrow);
  }
}

template <typename T>
void widen(std::span<const std::byte> bytes, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T token;
    std::memcpy(&token, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<int32_t>(token);
  }
}

fs::path with_suffix(const fs::path& prefix, const std::string& suffix) {
  fs::path path = prefix;
  path += suffix;
  return path;
}

MappedFile map_part(const fs::path& path, const fs::path& prefix) {
  if (!fs::exists(path)) {
    throw UsageError(
        format("{} does not exist: an indexed dataset is the pair {}.bin and {}.idx (stepforge data build)",
               path.string(), prefix.string(), prefix.string()));
  }
  return MappedFile(path);
}

void rename_file(const fs::path& from, const fs::path& to) {
  std::error_code failure;
  fs::rename(from, to, failure);
  if (failure)
    throw Error(format("cannot rename {} to {}: {}", from.string(), to.string(), failure.message()));
}

}  // namespace

int64_t token_bytes(TokenType type) {
  switch (type) {
    case TokenType::u8:
      return 1;
    case TokenType::u16:
      return 2;
    case TokenType::i32:
      return 4;
  }
  throw Error("unknown token type");
}

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

template <typename T>
T DatasetIndex::at(uint64_t offset) const {
  T value;
  std::memcpy(&value, bytes_.data() + offset, sizeof value);
  return value;
}

uint64_t DatasetIndex::length_offset(int64_t sequence) const {
  return kHeaderBytes + 4 * static_cast<uint64_t>(sequence);
}
uint64_t DatasetIndex::pointer_offset(int64_t sequence) const {
  return length_offset(sequences_) + 8 * static_cast<uint64_t>(sequence);
}
uint64_t DatasetIndex::border_offset(int64_t border) const {
  return pointer_offset(sequences_) + 8 * static_cast<uint64_t>(border);
}

DatasetIndex DatasetIndex::parse(std::span<const std::byte> idx, uint64_t bin_bytes,
                                 const std::string& name) {
  DatasetIndex index;
  index.bytes_ = idx;
  index.parse_header(name);
  index.check_sequences(bin_bytes, name);
  index.tokens_ = static_cast<int64_t>(bin_bytes) / token_bytes(index.type_);
  index.check_borders(name);
  return index;
}

void DatasetIndex::parse_header(const std::string& name) {
  const uint64_t size = bytes_.size();
  if (size < kHeaderBytes)
    fail(name, size, "header", format("the file ends; a header has {} bytes", kHeaderBytes));
  if (std::memcmp(bytes_.data(), kMagic.data(), kMagic.size()) != 0) {
    fail(name, 0, "magic", "not \"MMIDIDX\": this is no Megatron indexed dataset");
  }
  const auto version = at<uint64_t>(kVersionOffset);
  if (version != 1) fail(name, kVersionOffset, "version", format("{}; only version 1 is known", version));
  const auto code = at<uint8_t>(kTypeOffset);
  if (code != 1 && code != 4 && code != 8) {
    fail(name, kTypeOffset, "token type",
         format("code {} ({}); token ids are u8, u16 or i32", code, type_name(code)));
  }
  type_ = static_cast<TokenType>(code);

  // Each count alone must fit the file before they are multiplied: no product below can overflow.
  const auto sequences = at<uint64_t>(kSequencesOffset);
  const auto borders = at<uint64_t>(kBordersOffset);
  const uint64_t room = size - kHeaderBytes;
  if (sequences > room / 12) {
    fail(name, kSequencesOffset, "sequence count",
         format("{} sequences need more than the file's {} bytes", sequences, size));
  }
  if (borders > room / 8) {
    fail(name, kBordersOffset, "document count",
         format("{} borders need more than the file's {} bytes", borders, size));
  }
  if (borders == 0) fail(name, kBordersOffset, "document count", "0; the first border, 0, is always there");
  const uint64_t expected = kHeaderBytes + 12 * sequences + 8 * borders;
  if (sequences > 0 && size == expected + sequences) {
    fail(name, expected, "modes", "the index carries multimodal modes; only text datasets are read");
  }
  if (size != expected) {
    fail(name, std::min(size, expected), "end of file",
         format("{} sequences and {} borders make {} bytes, but the file has {}", sequences, borders,
                expected, size));
  }
  sequences_ = static_cast<int64_t>(sequences);
  borders_ = static_cast<int64_t>(borders);
}

void DatasetIndex::check_sequences(uint64_t bin_bytes, const std::string& name) const {
  const auto width = static_cast<uint64_t>(token_bytes(type_));
  uint64_t end = 0;  // never above bin_bytes, so adding one length cannot overflow
  for (int64_t sequence = 0; sequence < sequences_; ++sequence) {
    const auto length = at<int32_t>(length_offset(sequence));
    if (length < 0) {
      fail(name, length_offset(sequence), format("length of sequence {}", sequence),
           format("{} is negative", length));
    }
    const auto pointer = at<int64_t>(pointer_offset(sequence));
    if (pointer < 0 || static_cast<uint64_t>(pointer) != end) {
      fail(name, pointer_offset(sequence), format("offset of sequence {}", sequence),
           format("{}; sequences lie back to back, so it must be {}", pointer, end));
    }
    const uint64_t bytes = static_cast<uint64_t>(length) * width;
    if (bytes > bin_bytes - end) {
      fail(name, length_offset(sequence), format("length of sequence {}", sequence),
           format("{} tokens from byte {} pass the end of the .bin ({} bytes)", length, end, bin_bytes));
    }
    end += bytes;
  }
  if (end != bin_bytes) {
    fail(name, bytes_.size(), "total length",
         format("the sequences cover {} bytes, but the .bin has {}", end, bin_bytes));
  }
}

void DatasetIndex::check_borders(const std::string& name) const {
  int64_t previous = 0;
  for (int64_t border = 0; border < borders_; ++border) {
    const auto sequence = at<int64_t>(border_offset(border));
    const auto complain = [&](const std::string& fault) {
      fail(name, border_offset(border), format("document border {}", border), fault);
    };
    if (border == 0 && sequence != 0)
      complain(format("{}; the first document begins at sequence 0", sequence));
    if (sequence < previous) complain(format("{} comes after {}; borders ascend", sequence, previous));
    if (sequence > sequences_) complain(format("{}; there are only {} sequences", sequence, sequences_));
    previous = sequence;
  }
  if (previous != sequences_) {
    fail(name, border_offset(borders_ - 1), format("document border {}", borders_ - 1),
         format("{}; the last document ends with sequence {}", previous, sequences_));
  }
}

int64_t DatasetIndex::document_begin(int64_t document) const {
  const auto sequence = at<int64_t>(border_offset(document));
  return sequence == sequences_ ? tokens_ : at<int64_t>(pointer_offset(sequence)) / token_bytes(type_);
}

int64_t DatasetIndex::document_of(int64_t token) const {
  int64_t low = 0;  // document_begin(low) <= token < document_begin(high)
  int64_t high = documents();
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= token ? low : high) = middle;
  }
  return low;
}

IndexedDataset::IndexedDataset(const fs::path& path)
    : prefix_(dataset_prefix(path)),
      idx_(map_part(idx_path(prefix_), prefix_)),
      bin_(map_part(bin_path(prefix_), prefix_)),
      index_(DatasetIndex::parse(idx_.bytes(), bin_.bytes().size(), idx_path(prefix_).string())) {}

void IndexedDataset::read(int64_t first_token, std::span<int32_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  if (first_token < 0 || first_token > index_.tokens() || count > index_.tokens() - first_token) {
    throw Error(format("{}: tokens [{}, {} + {}) of {} asked for", bin_path(prefix_).string(), first_token,
                       first_token, count, index_.tokens()));
  }
  const auto bytes = bin_.bytes().subspan(static_cast<size_t>(first_token * token_bytes(index_.type())));
  switch (index_.type()) {
    case TokenType::u8:
      return widen<uint8_t>(bytes, out);
    case TokenType::u16:
      return widen<uint16_t>(bytes, out);
    case TokenType::i32:
      return widen<int32_t>(bytes, out);
  }
}

std::string IndexedDataset::content_key() const {
  constexpr size_t kSamples = 256;
  constexpr size_t kSampleBytes = 4096;
  const auto bytes = bin_.bytes();
  std::string parts = format("{}:{}:", content_hash(idx_.bytes()), bytes.size());
  if (bytes.size() <= kSamples * kSampleBytes) return content_hash(parts + content_hash(bytes));
  for (size_t sample = 0; sample < kSamples; ++sample) {
    const size_t begin = (bytes.size() - kSampleBytes) / (kSamples - 1) * sample;
    parts += content_hash(bytes.subspan(begin, kSampleBytes));
  }
  return content_hash(parts);
}

IndexedDatasetWriter::IndexedDatasetWriter(fs::path prefix, TokenType type)
    : prefix_(std::move(prefix)),
      type_(type),
      // The process number keeps two processes that write the same pair apart.
      bin_staging_(with_suffix(prefix_, format(".bin.tmp{}", getpid()))),
      idx_staging_(with_suffix(prefix_, format(".idx.tmp{}", getpid()))),
      bin_(std::make_unique<FileWriter>(bin_staging_)) {}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  if (published_) return;
  std::error_code ignored;
  fs::remove(bin_staging_, ignored);
  fs::remove(idx_staging_, ignored);
}

void IndexedDatasetWriter::add_document(std::span<const int32_t> tokens) {
  if (!std::in_range<int32_t>(tokens.size())) {
    throw Error(
        format("document {} has {} tokens; the format holds at most {} a document: cut the text into smaller "
               "documents",
               documents(), tokens.size(), std::numeric_limits<int32_t>::max()));
  }
  switch (type_) {
    case TokenType::u8:
      append_narrow<uint8_t>(buffer_, tokens, type_);
      break;
    case TokenType::u16:
      append_narrow<uint16_t>(buffer_, tokens, type_);
      break;
    case TokenType::i32:
      append_narrow<int32_t>(buffer_, tokens, type_);
      break;
  }
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  tokens_ += static_cast<int64_t>(tokens.size());
  if (buffer_.size() >= kBufferBytes) {
    bin_->write(buffer_);
    buffer_.clear();
  }
}

void IndexedDatasetWriter::write_index() {
  FileWriter writer(idx_staging_);
  std::string buffer(kMagic);
  const auto put = [&](const auto value) {
    append_bytes(buffer, &value, sizeof value);
    if (buffer.size() < kBufferBytes) return;
    writer.write(buffer);
    buffer.clear();
  };
  put(uint64_t{1});
  put(static_cast<uint8_t>(type_));
  put(uint64_t{lengths_.size()});
  put(uint64_t{lengths_.size() + 1});
  for (const int32_t length : lengths_) put(length);
  int64_t offset = 0;
  for (const int32_t length : lengths_) {
    put(offset);
    offset += length * token_bytes(type_);
  }
  for (int64_t border = 0; border <= documents(); ++border) put(border);
  writer.write(buffer);
  writer.finish();
}

void IndexedDatasetWriter::publish() {
  bin_->write(buffer_);
  buffer_.clear();
  bin_->finish();
  write_index();
  std::error_code missing;
  fs::remove(idx_path(prefix_), missing);
  rename_file(bin_staging_, bin_path(prefix_));
  rename_file(idx_staging_, idx_path(prefix_));
  published_ = true;
  fsync_path(prefix_.has_parent_path() ? prefix_.parent_path() : fs::path("."));
}

}  // namespace stepforge
