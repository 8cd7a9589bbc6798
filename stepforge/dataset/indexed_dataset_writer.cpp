// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/indexed_dataset_writer.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

#include "stepforge/base/error.h"
#include "stepforge/base/file_writer.h"
#include "stepforge/base/format.h"
#include "stepforge/dataset/loss_mask.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr int64_t kLengthBytes = sizeof(int32_t);

void append_bytes(std::string& buffer, const void* bytes, size_t count) {
  buffer.append(static_cast<const char*>(bytes), count);
}

template <typename T>
void append_narrow(std::string& buffer, std::span<const int32_t> tokens, TokenType type) {
  uint32_t bits = 0;  // that any token has; the largest T has all of its bits set
  for (const int32_t token : tokens) bits |= static_cast<uint32_t>(token);
  if (!std::in_range<T>(bits)) {
    const auto bad = std::find_if(tokens.begin(), tokens.end(), [](int32_t token) {
      return !std::in_range<T>(static_cast<uint32_t>(token));
    });
    throw Error(format("token id {} does not fit the dataset's token type {}", *bad, token_type_name(type)));
  }
  if constexpr (std::is_same_v<T, int32_t>) {
    append_bytes(buffer, tokens.data(), tokens.size_bytes());
  } else {
    const std::vector<T> narrow(tokens.begin(), tokens.end());
    append_bytes(buffer, narrow.data(), narrow.size() * sizeof(T));
  }
}

/// Calls `use` with each number of a file of 32-bit lengths, which is read in blocks.
void for_each_length(const fs::path& path, const std::function<void(int32_t)>& use) {
  const FileReader file(path);
  std::vector<int32_t> block;
  for (int64_t begin = 0; begin < file.size(); begin += static_cast<int64_t>(kBufferBytes)) {
    const int64_t bytes = std::min(file.size() - begin, static_cast<int64_t>(kBufferBytes));
    block.resize(static_cast<size_t>(bytes / kLengthBytes));
    file.read(begin, std::as_writable_bytes(std::span(block)));
    for (const int32_t length : block) use(length);
  }
}

}  // namespace

void rename_file(const fs::path& from, const fs::path& to) {
  std::error_code failure;
  fs::rename(from, to, failure);
  if (failure)
    throw Error(format("cannot rename {} to {}: {}", from.string(), to.string(), failure.message()));
}

// The process id keeps apart two processes that write the same pair.
IndexedDatasetWriter::IndexedDatasetWriter(fs::path prefix, const DatasetContents& contents)
    : IndexedDatasetWriter(std::move(prefix), contents, {}, format(".tmp{}", getpid()), false) {}

IndexedDatasetWriter::IndexedDatasetWriter(fs::path prefix, const DatasetContents& contents,
                                           const Position& resume)
    : IndexedDatasetWriter(std::move(prefix), contents, resume, ".part", true) {}

IndexedDatasetWriter::IndexedDatasetWriter(fs::path prefix, const DatasetContents& contents,
                                           const Position& resume, const std::string& staging_suffix,
                                           bool keep_staging)
    : prefix_(std::move(prefix)),
      contents_(contents),
      bin_staging_(with_suffix(prefix_, ".bin" + staging_suffix)),
      idx_staging_(with_suffix(prefix_, ".idx" + staging_suffix)),
      lengths_staging_(with_suffix(prefix_, ".lengths" + staging_suffix)),
      mask_staging_(with_suffix(prefix_, ".mask" + staging_suffix)),
      counted_staging_(with_suffix(prefix_, ".counted" + staging_suffix)),
      bin_(std::make_unique<FileWriter>(bin_staging_, resume.tokens * token_bytes(contents.type))),
      lengths_(std::make_unique<FileWriter>(lengths_staging_, resume.documents * kLengthBytes)),
      documents_(resume.documents),
      tokens_(resume.tokens),
      keep_staging_(keep_staging) {
  check_lengths();
  if (contents_.loss_mask) counted_ = std::make_unique<FileWriter>(counted_staging_, resume.tokens);
}

void IndexedDatasetWriter::check_lengths() const {
  int64_t sum = 0;
  for_each_length(lengths_staging_, [&](int32_t length) { sum += length; });
  if (sum == tokens_) return;
  throw Error(format("{}: the first {} documents have {} tokens, not {}", lengths_staging_.string(),
                     documents_, sum, tokens_));
}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  if (published_ || keep_staging_) return;
  std::error_code ignored;
  for (const fs::path& staging :
       {bin_staging_, idx_staging_, lengths_staging_, mask_staging_, counted_staging_})
    fs::remove(staging, ignored);
}

IndexedDatasetWriter::Position IndexedDatasetWriter::save() {
  write_buffers();
  bin_->flush();
  if (counted_) counted_->flush();
  lengths_->flush();
  return {documents_, tokens_};
}

void IndexedDatasetWriter::add_document(std::span<const int32_t> tokens, std::span<const uint8_t> counted) {
  if (!std::in_range<int32_t>(tokens.size())) {
    throw Error(
        format("document {} has {} tokens; the format allows at most {} per document: "
               "cut the text into smaller documents",
               documents(), tokens.size(), std::numeric_limits<int32_t>::max()));
  }
  switch (contents_.type) {
    case TokenType::u8:
      append_narrow<uint8_t>(buffer_, tokens, contents_.type);
      break;
    case TokenType::u16:
      append_narrow<uint16_t>(buffer_, tokens, contents_.type);
      break;
    case TokenType::i32:
      append_narrow<int32_t>(buffer_, tokens, contents_.type);
      break;
  }
  const auto length = static_cast<int32_t>(tokens.size());
  append_bytes(lengths_buffer_, &length, sizeof length);
  ++documents_;
  tokens_ += static_cast<int64_t>(tokens.size());
  add_counted(tokens.size(), counted);
  if (std::max(buffer_.size(), lengths_buffer_.size()) >= kBufferBytes) write_buffers();
}

void IndexedDatasetWriter::add_counted(size_t tokens, std::span<const uint8_t> counted) {
  if (!counted.empty() && counted.size() != tokens)
    throw Error(format("document {}: {} loss flags for {} tokens", documents() - 1, counted.size(), tokens));
  if (!counted_) {
    if (std::find(counted.begin(), counted.end(), 0) == counted.end()) return;
    throw Error(
        format("document {} has tokens that do not count in the loss, but the dataset has no loss mask",
               documents() - 1));
  }
  if (counted.empty()) {
    counted_buffer_.append(tokens, '\1');
  } else {
    append_bytes(counted_buffer_, counted.data(), counted.size());
  }
}

void IndexedDatasetWriter::write_buffers() {
  bin_->write(buffer_);
  buffer_.clear();
  lengths_->write(lengths_buffer_);
  lengths_buffer_.clear();
  if (counted_) counted_->write(counted_buffer_);
  counted_buffer_.clear();
}

void IndexedDatasetWriter::write_index() {
  FileWriter writer(idx_staging_);
  std::string buffer(kIndexMagic);
  const auto put = [&](const auto value) {
    append_bytes(buffer, &value, sizeof value);
    if (buffer.size() < kBufferBytes) return;
    writer.write(buffer);
    buffer.clear();
  };
  put(uint64_t{1});
  put(static_cast<uint8_t>(contents_.type));
  put(static_cast<uint64_t>(documents_));
  put(static_cast<uint64_t>(documents_) + 1);
  for_each_length(lengths_staging_, put);
  int64_t offset = 0;
  for_each_length(lengths_staging_, [&](int32_t length) {
    put(offset);
    offset += length * token_bytes(contents_.type);
  });
  for (int64_t boundary = 0; boundary <= documents_; ++boundary) put(boundary);
  writer.write(buffer);
  writer.finish();
}

void IndexedDatasetWriter::publish() {
  write_buffers();
  bin_->finish();
  lengths_->finish();
  write_index();
  if (counted_) {
    counted_->finish();
    write_loss_mask(mask_staging_, FileReader(counted_staging_));
  }
  std::error_code missing;
  fs::remove(idx_path(prefix_), missing);
  // The mask of an older pair must not remain beside the new one.
  fs::remove(mask_path(prefix_), missing);
  if (counted_) rename_file(mask_staging_, mask_path(prefix_));
  rename_file(bin_staging_, bin_path(prefix_));
  rename_file(idx_staging_, idx_path(prefix_));
  published_ = true;
  fs::remove(lengths_staging_, missing);
  if (counted_) fs::remove(counted_staging_, missing);
  fsync_path(prefix_.has_parent_path() ? prefix_.parent_path() : fs::path("."));
}

}  // namespace stepforge
