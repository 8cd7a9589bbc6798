// SPDX-License-Identifier: Apache-2.0
// `stepforge tokenizer train | encode | decode`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace stepforge {

struct TokenizerTrainOptions {
  /// Text files, .jsonl files, folders of them.
  std::vector<std::filesystem::path> inputs;
  /// Tokens wanted, "<|endoftext|>" included.
  int32_t vocab_size = 4096;
  /// Folder that tokenizer.json and its companions are written to; made if missing.
  std::filesystem::path output;
  /// The field of a JSON line that holds the text.
  std::string field = "text";
};

struct TokenizerCodecOptions {
  /// A tokenizer.json or a folder that holds one.
  std::filesystem::path tokenizer;
  /// Empty or "-": standard input.
  std::filesystem::path input;
  bool jsonl = false;
};

/// Learns a byte-level BPE, saves it, and reports to standard error. These return the exit code 0 or throw
/// Error.
int tokenizer_train(const TokenizerTrainOptions& options);

/// From text to ids on standard output; see text/line_codec.h for the forms.
int tokenizer_encode(const TokenizerCodecOptions& options);

/// From ids to text on standard output.
int tokenizer_decode(const TokenizerCodecOptions& options);

}  // namespace stepforge
