// SPDX-License-Identifier: Apache-2.0
// From text to token ids and back. A Tokenizer is immutable and may be shared between threads; encoding needs
// working memory, which each thread owns in an Encoder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stepforge {

/// One thread's working memory for encoding, with its cache of words already seen. Must not outlive its
/// tokenizer.
class Encoder {
 public:
  virtual ~Encoder() = default;
  /// Appends the ids of `text` to `ids`. No token is added around the text; special tokens that are spelled
  /// out in the text become their ids, as in Hugging Face tokenizers. Throws FormatError with the byte offset
  /// if `text` is not UTF-8.
  virtual void append(std::string_view text, std::vector<int32_t>& ids) = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Ids are 0 .. vocab_size() - 1, added tokens included.
  virtual int32_t vocab_size() const = 0;

  virtual std::unique_ptr<Encoder> encoder() const = 0;

  /// The ids of one text. For many texts make one encoder() per thread and keep it.
  std::vector<int32_t> encode(std::string_view text) const;

  /// The bytes a token stands for; they need not be complete characters. Throws Error if there is no such id.
  virtual std::string_view token_bytes(int32_t id) const = 0;

  /// Exactly the bytes of all tokens, one after the other. Throws Error if an id is out of range.
  std::string decode(std::span<const int32_t> ids) const;

  /// The token for display: line breaks, control characters and incomplete characters as escapes (\n, \xE2).
  std::string token_text(int32_t id) const;

  /// True for tokens that mark structure, such as the end of a text; False for ordinary text and for ids out
  /// of range.
  virtual bool is_special(int32_t id) const = 0;

  /// The token that ends a text / begins a text, if the tokenizer names one.
  virtual std::optional<int32_t> eos_id() const = 0;
  virtual std::optional<int32_t> bos_id() const = 0;

  /// Hash of the whole definition (32 hex digits): equal exactly for tokenizers with the same definition,
  /// however loaded.
  virtual const std::string& fingerprint() const = 0;

  /// Writes the files that Hugging Face reads: tokenizer.json, tokenizer_config.json, special_tokens_map.json, and the
  /// other tokenizer files of the folder it was loaded from, unchanged. The folder is made if missing. Throws
  /// Error.
  virtual void save_pretrained(const std::filesystem::path& folder) const = 0;
};

/// The text every tokenizer made by Stepforge uses to end a document.
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

/// Loads `path`: a tokenizer.json, or a folder that holds one. eos and bos come from a tokenizer_config.json
/// beside it; without one, eos is the added token "<|endoftext|>" if there is one. Throws UsageError if
/// nothing is there, FormatError (naming file and component) if the definition is malformed or asks for
/// something that is not implemented exactly.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& path);

/// Ids 0 to 255 are the bytes, 256 is "<|endoftext|>". Saves as a byte-level BPE without merges.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// Turns a stream of ids into text as it comes: holds back the bytes of an incomplete character.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// The text that is complete after this token: always valid UTF-8; bytes that cannot become a character are
  /// given as U+FFFD. Throws Error if there is no such id.
  std::string push(int32_t id);

  /// The end of the stream: U+FFFD if an incomplete character was held back, else "".
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string held_;
};

}  // namespace stepforge
