// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/token_files.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

static_assert(std::endian::native == std::endian::little, "tokens are read in place");

namespace {

template <typename T>
void widen(std::span<const std::byte> bytes, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T token;
    std::memcpy(&token, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<int32_t>(token);
  }
}

}  // namespace

std::string sample_of(const FileReader& file) {
  constexpr int64_t kSamples = 256;
  constexpr int64_t kSampleBytes = 4096;
  const int64_t size = file.size();
  std::string parts = format("{}:", size);
  if (size <= kSamples * kSampleBytes) return parts + content_hash(file.text(0, size));
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    const int64_t begin = (size - kSampleBytes) / (kSamples - 1) * sample;
    parts += content_hash(file.text(begin, begin + kSampleBytes));
  }
  return parts;
}

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

std::string token_type_name(TokenType type) {
  return type == TokenType::i32 ? "i32" : format("u{}", 8 * token_bytes(type));
}

TokenFiles::TokenFiles(std::vector<TokenFile> files, TokenType type)
    : files_(std::move(files)), type_(type), begins_{0} {
  const int64_t width = token_bytes(type);
  for (const TokenFile& entry : files_) {
    const int64_t bytes = entry.file.size() - entry.header_bytes;
    if (bytes < 0 || bytes % width != 0) {
      throw FormatError(format("{} has {} bytes after a header of {}, which are not whole tokens of {} bytes",
                               entry.file.path().string(), bytes, entry.header_bytes, width));
    }
    begins_.push_back(begins_.back() + bytes / width);
  }
  name_ = files_.front().file.path().string();
  if (const size_t more = files_.size() - 1; more > 0)
    name_ += format(" and {} more file{}", more, more == 1 ? "" : "s");
}

size_t TokenFiles::number_of(int64_t token) const {
  return static_cast<size_t>(std::upper_bound(begins_.begin() + 1, begins_.end() - 1, token) -
                             begins_.begin() - 1);
}

std::string TokenFiles::file_of(int64_t token) const {
  return files_[number_of(token)].file.path().string();
}

void TokenFiles::require(int64_t first_token, size_t count) const {
  const auto wanted = static_cast<int64_t>(count);
  if (first_token >= 0 && first_token <= tokens() && wanted <= tokens() - first_token) return;
  throw Error(format("{}: tokens [{}, {} + {}) requested, but there are {}", name_, first_token, first_token,
                     wanted, tokens()));
}

void TokenFiles::read(int64_t first_token, std::span<int32_t> out) const {
  require(first_token, out.size());
  for (size_t number = number_of(first_token); !out.empty(); ++number) {
    const auto count = static_cast<size_t>(std::min(std::ssize(out), begins_[number + 1] - first_token));
    read_part(number, first_token, out.first(count));
    first_token += static_cast<int64_t>(count);
    out = out.subspan(count);
  }
}

void TokenFiles::read_part(size_t number, int64_t first_token, std::span<int32_t> out) const {
  const TokenFile& entry = files_[number];
  const int64_t width = token_bytes(type_);
  std::vector<std::byte> bytes(out.size() * static_cast<size_t>(width));
  entry.file.read(entry.header_bytes + (first_token - begins_[number]) * width, bytes);
  switch (type_) {
    case TokenType::u8:
      return widen<uint8_t>(bytes, out);
    case TokenType::u16:
      return widen<uint16_t>(bytes, out);
    case TokenType::i32:
      return widen<int32_t>(bytes, out);
  }
}

std::vector<std::filesystem::path> TokenFiles::paths() const {
  std::vector<std::filesystem::path> paths;
  for (const TokenFile& file : files_) paths.push_back(file.file.path());
  return paths;
}

std::string TokenFiles::sample() const {
  std::vector<std::string> samples;
  for (const TokenFile& entry : files_) samples.push_back(sample_of(entry.file));
  return join(samples, "\n");
}

}  // namespace stepforge
