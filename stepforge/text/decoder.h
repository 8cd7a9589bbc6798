// SPDX-License-Identifier: Apache-2.0
// Decoders of tokenizer.json: from the spellings of tokens to text.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/base/json_reader.h"

namespace stepforge {

/// One step of decoding. Tokens arrive in pieces, so that a text can be shown while it grows.
class DecoderStage {
 public:
  virtual ~DecoderStage() = default;
  /// A part of the present token; complete characters, except from the last ByteLevel.
  virtual void text(std::string_view part) = 0;
  /// The present token is complete, and may have been empty.
  virtual void end_token() = 0;
  /// No token follows.
  virtual void finish() = 0;
};

/// Immutable; may be shared between threads.
class Decoder {
 public:
  /// Writes a space between tokens, as Hugging Face does where a tokenizer.json has no decoder.
  Decoder();

  /// Reads BPEDecoder, ByteFallback, ByteLevel, CTC, Fuse, Metaspace, Replace, Strip, WordPiece and Sequence. Throws
  /// FormatError naming file and component for others.
  explicit Decoder(const JsonReader& decoder);

  /// It writes the bytes that tokens spell in the byte alphabet, one after the other.
  bool is_byte_level() const { return byte_level_; }

  /// A new chain of the steps, which appends the text to `output`. `output` must outlive it.
  std::unique_ptr<DecoderStage> start(std::string& output) const;

 private:
  /// Makes a stage in front of another.
  using Step = std::function<std::unique_ptr<DecoderStage>(std::unique_ptr<DecoderStage>)>;

  void read(const JsonReader& decoder, bool last);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace stepforge
