// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back. A Tokenizer is immutable and may be shared between threads; each thread encodes
// with an Encoder of its own.
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

/// The ids before and after those of a single text.
struct SpecialTokens {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

/// One thread's working memory for encoding, with its cache of words already seen. Must not outlive its
/// tokenizer.
class Encoder {
 public:
  virtual ~Encoder() = default;
  /// Appends the ids of `text` to `ids`. No token is added around the text. The spelling of a special token
  /// in the text becomes its id, as in Hugging Face tokenizers. Throws FormatError with the byte offset if
  /// `text` is not UTF-8.
  virtual void append(std::string_view text, std::vector<int32_t>& ids) = 0;
};

/// Decodes one sequence of ids from beginning to end.
class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  /// Appends what is certain after this token. Throws Error if there is no such id.
  virtual void push(int32_t id, std::string& bytes) = 0;
  /// Appends what was held back because of tokens that might have followed.
  virtual void finish(std::string& bytes) {}
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Ids are 0 to vocab_size() - 1, including added tokens.
  virtual int32_t vocab_size() const = 0;

  virtual std::unique_ptr<Encoder> encoder() const = 0;

  /// The ids of one text. For many texts make one encoder() per thread and keep it.
  std::vector<int32_t> encode(std::string_view text) const;

  /// The ids that the post-processor of tokenizer.json puts before and after a text, such as <s>; none if there is
  /// no post-processor.
  virtual SpecialTokens special_tokens() const { return {}; }

  /// The bytes of a token, or, where tokens do not stand for bytes, its spelling. They need not be complete characters.
  /// Throws Error if there is no such id.
  virtual std::string_view token_bytes(int32_t id) const = 0;

  /// The decoder of tokenizer.json; it must not outlive the tokenizer. A tokenizer of bytes gives the bytes of each
  /// token, which need not be UTF-8 together. `skip_special` leaves special tokens out.
  virtual std::unique_ptr<TokenDecoder> decoder(bool skip_special = false) const;

  /// `ids` decoded by decoder(). Throws Error if there is no such id.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  /// The token for display: line breaks, control characters and incomplete characters as escapes (\n, \xE2).
  std::string token_text(int32_t id) const;

  /// True for tokens that mark structure, such as the end of a text; false for others and for ids out of
  /// range.
  virtual bool is_special(int32_t id) const = 0;

  /// True for tokens that are found in a text before it is split, such as special ones, and for special tokens.
  virtual bool is_added(int32_t id) const { return is_special(id); }

  /// The tokens that end and begin a text in training data, if the tokenizer names them. A model may have further ends:
  /// end_tokens() in text_ends.h.
  virtual std::optional<int32_t> eos_id() const = 0;
  virtual std::optional<int32_t> bos_id() const = 0;

  /// Hash of the whole definition (32 hex digits): equal if and only if the definitions are equal, however
  /// they were loaded.
  virtual const std::string& fingerprint() const = 0;

  /// Contents of its files that it does not use, one line each, for the user.
  virtual std::vector<std::string> notes() const { return {}; }

  /// Writes the files that Hugging Face reads: tokenizer.json, tokenizer_config.json,
  /// special_tokens_map.json, and, unchanged, the other tokenizer files of the folder it was loaded from
  /// (tokenizer_files.h).
  /// Creates the folder if necessary. Throws Error.
  virtual void save_pretrained(const std::filesystem::path& folder) const = 0;
};

/// The end-of-text token of all tokenizers that Stepforge trains.
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

/// Loads `path`: a tokenizer.json, a .tiktoken file (see tokenizer_import.h), a .model file of SentencePiece, or
/// a folder that holds a tokenizer.json, a tokenizer.model or, as GPT-2 had it, vocab.json and merges.txt. The files beside it
/// add tokens and name eos and bos (model_tokens.h); without a tokenizer_config.json and a role, eos is the added token
/// "<|endoftext|>" if there is one. Throws UsageError if
/// `path` does not exist, FormatError (naming file and component) if the definition is malformed or asks for
/// something that is not implemented exactly.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& path);

/// Whether load_tokenizer() finds one of those in the folder.
bool holds_tokenizer(const std::filesystem::path& folder);

/// Ids 0 to 255 are the bytes, 256 is "<|endoftext|>". Saves as a byte-level BPE without merges.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// Decodes a stream of ids piece by piece; holds back the bytes of an incomplete character.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : decoder_(tokenizer.decoder()) {}

  /// The text that is complete after this token. Always valid UTF-8: bytes that cannot become a character are
  /// replaced by U+FFFD. Throws Error if there is no such id.
  std::string push(int32_t id);

  /// Ends the stream: returns what was held back, with U+FFFD for an incomplete character.
  std::string finish();

 private:
  std::unique_ptr<TokenDecoder> decoder_;
  std::string held_;
};

}  // namespace stepforge
