// SPDX-License-Identifier: Apache-2.0
// Finished data sets of other programs, in one file or several that are read as one: llm.c's .bin files and raw tokens
// as nanoGPT writes them. They do not say where documents begin, so their tokens are searched for the end-of-text id.
//
// Header of llm.c, 256 little-endian i32: magic 20240520 and version 1 (GPT-2, tokens are u16) or magic 20240801 and
// version 7 (Llama 3, u32); the number of tokens; zeros. Source: karpathy/llm.c, dev/data/data_common.py. It writes the
// end-of-text id before each document, nanoGPT after each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stepforge/dataset/indexed_dataset.h"

namespace stepforge {

/// The token between documents.
struct DocumentMark {
  int32_t id = 0;
  bool begins_document = false;  ///< else it ends one; either way it belongs to that document
};

struct LlmcHeader {
  static constexpr int64_t kBytes = 1024;
  TokenType type = TokenType::u16;
  int64_t tokens = 0;
  int32_t end_of_text = 0;  ///< of the tokenizer that this header stands for
};

/// Whether a file begins with a magic number of llm.c's token files.
bool has_llmc_magic(std::span<const std::byte> beginning);

/// `beginning`: the first LlmcHeader::kBytes of a file, or all of it if it is shorter. Throws FormatError naming `name`,
/// the field and the fault; also if the number of tokens does not fit `file_bytes`.
LlmcHeader parse_llmc_header(std::span<const std::byte> beginning, int64_t file_bytes,
                             const std::string& name);

/// Where documents begin, in ascending order, beginning with 0 and ending with the number of tokens. Without a mark
/// there is one document.
std::vector<int64_t> find_documents(const TokenFiles& tokens, const std::optional<DocumentMark>& mark);

/// Whether `format` is the word for a finished data set: "bin", "tokens_u16" or "tokens_u32".
bool is_token_format(std::string_view format);

/// Opens what `path` names: a Megatron pair, or token files: one, those that match a pattern, or all *.bin of a folder,
/// in sorted order. `format`: "tokens_u16" or "tokens_u32" for files without a header; anything else for pairs and
/// llm.c's files. `end_of_text`: that of the tokenizer, if there is one; GPT-2's and Llama 3's are known. Throws
/// UsageError if the files do not exist or are not of one kind, FormatError if one is malformed.
std::shared_ptr<const IndexedDataset> open_finished_dataset(const std::filesystem::path& path,
                                                            std::string_view format,
                                                            std::optional<int32_t> end_of_text);

}  // namespace stepforge
