// SPDX-License-Identifier: Apache-2.0
// Token ids in files, back to back, little-endian: the .bin of Megatron's pair, and the shards of other programs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stepforge/base/files.h"

namespace stepforge {

/// Supported token types, by their code in Megatron's .idx. u32 are read as i32: larger ids are in no vocabulary.
enum class TokenType : uint8_t { u8 = 1, i32 = 4, u16 = 8 };

/// Bytes of one token.
int64_t token_bytes(TokenType type);
/// "u8", "i32" or "u16".
std::string token_type_name(TokenType type);

/// One file of tokens.
struct TokenFile {
  FileReader file;
  int64_t header_bytes = 0;  ///< before the first token
};

/// The tokens of several files, numbered through. Safe to read from several threads.
class TokenFiles {
 public:
  /// Throws FormatError unless each file has whole tokens after its header.
  TokenFiles(std::vector<TokenFile> files, TokenType type);

  TokenType type() const { return type_; }
  int64_t tokens() const { return begins_.back(); }
  /// "a.bin", or "a.bin and 9 more files".
  const std::string& name() const { return name_; }
  /// The name of the file that holds this token, for messages.
  std::string file_of(int64_t token) const;
  /// Throws Error unless [first_token, first_token + count) are tokens of these files.
  void require(int64_t first_token, size_t count) const;
  /// Token ids [first_token, first_token + out.size()). Throws Error if there are not so many, or if a file cannot be
  /// read.
  void read(int64_t first_token, std::span<int32_t> out) const;
  /// The sizes of the files and hashes of a sample of their bytes.
  std::string sample() const;
  std::vector<std::filesystem::path> paths() const;

 private:
  size_t number_of(int64_t token) const;
  void read_part(size_t number, int64_t first_token, std::span<int32_t> out) const;

  std::vector<TokenFile> files_;
  TokenType type_;
  std::vector<int64_t> begins_;  ///< [files + 1] first token of each file
  std::string name_;
};

/// The size of a file and hashes of a sample of its bytes.
std::string sample_of(const FileReader& file);

}  // namespace stepforge
