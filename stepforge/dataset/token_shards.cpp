// SPDX-License-Identifier: Apache-2.0
#include "stepforge/dataset/token_shards.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/path_pattern.h"
#include "stepforge/base/threads.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

/// A kind of llm.c's token files.
struct LlmcKind {
  int32_t magic;
  int32_t version;
  TokenType type;
  int32_t end_of_text;
};

// Llama 3's files have <|begin_of_text|> between documents: what that tokenizer makes of an empty text.
constexpr std::array kLlmcKinds = {LlmcKind{20240520, 1, TokenType::u16, 50256},
                                   LlmcKind{20240801, 7, TokenType::i32, 128000}};

int32_t number_at(std::span<const std::byte> bytes, size_t number) {
  int32_t value = 0;
  std::memcpy(&value, bytes.data() + number * sizeof value, sizeof value);
  return value;
}

const LlmcKind* find_kind(std::span<const std::byte> beginning) {
  if (beginning.size() < sizeof(int32_t)) return nullptr;
  const int32_t magic = number_at(beginning, 0);
  const auto* found = std::find_if(kLlmcKinds.begin(), kLlmcKinds.end(),
                                   [&](const LlmcKind& kind) { return kind.magic == magic; });
  return found == kLlmcKinds.end() ? nullptr : found;
}

std::string beginning_of(const FileReader& file) {
  return file.text(0, std::min(file.size(), LlmcHeader::kBytes));
}

bool is_pair(const fs::path& path) {
  return fs::exists(idx_path(dataset_prefix(path)));
}

/// The files that `path` names; the path itself if it does not exist.
std::vector<fs::path> token_files_of(const fs::path& path) {
  if (names_pair_beside_folder(path)) return {path};
  if (!fs::is_directory(path)) return expand_path(path);
  std::vector<fs::path> files;
  for (const fs::path& entry : entries_of(path))
    if (lower_extension(entry) == ".bin" && !entry.filename().native().starts_with('.'))
      files.push_back(entry);
  if (files.empty()) throw UsageError(format("the folder {} contains no *.bin file", path.string()));
  std::sort(files.begin(), files.end());
  return files;
}

/// Opens files of one kind as one data set.
class ShardOpener {
 public:
  explicit ShardOpener(std::optional<int32_t> end_of_text) : end_of_text_(end_of_text) {}

  std::shared_ptr<const IndexedDataset> raw(const std::vector<fs::path>& paths, TokenType type) {
    for (const fs::path& path : paths) {
      FileReader file(path);
      const std::string beginning = beginning_of(file);
      if (has_llmc_magic(std::as_bytes(std::span(beginning)))) {
        throw UsageError(
            format("{} has the header of llm.c's token files; set format = \"bin\"", path.string()));
      }
      files_.push_back({std::move(file)});
    }
    std::optional<DocumentMark> mark;
    if (end_of_text_) mark = DocumentMark{*end_of_text_, false};
    return open(type, mark);
  }

  std::shared_ptr<const IndexedDataset> llmc(const std::vector<fs::path>& paths) {
    std::optional<LlmcHeader> first;
    for (const fs::path& path : paths) {
      FileReader file(path);
      const std::string beginning = beginning_of(file);
      const auto header = parse_llmc_header(std::as_bytes(std::span(beginning)), file.size(), path.string());
      if (!first) first = header;
      if (header.type != first->type) {
        throw UsageError(format("{} holds tokens of another tokenizer than {}; make them two sources",
                                path.string(), paths.front().string()));
      }
      files_.push_back({std::move(file), LlmcHeader::kBytes});
    }
    return open(first->type, DocumentMark{mark_of(*first), true});
  }

 private:
  /// Files with GPT-2's header are also written with other tokenizers; the id of Llama 3's is not its end of text.
  int32_t mark_of(const LlmcHeader& header) const {
    return header.type == TokenType::u16 ? end_of_text_.value_or(header.end_of_text) : header.end_of_text;
  }

  std::shared_ptr<const IndexedDataset> open(TokenType type, const std::optional<DocumentMark>& mark) {
    TokenFiles tokens(std::move(files_), type);
    std::vector<int64_t> begins = find_documents(tokens, mark);
    return std::make_shared<IndexedDataset>(std::move(tokens), std::move(begins));
  }

  std::optional<int32_t> end_of_text_;
  std::vector<TokenFile> files_;
};

}  // namespace

bool has_llmc_magic(std::span<const std::byte> beginning) {
  return find_kind(beginning) != nullptr;
}

LlmcHeader parse_llmc_header(std::span<const std::byte> beginning, int64_t file_bytes,
                             const std::string& name) {
  const auto fail = [&](std::string_view field, const std::string& fault) {
    throw FormatError(format("{}: {}: {}", name, field, fault));
  };
  const LlmcKind* kind = find_kind(beginning);
  if (kind == nullptr) {
    fail("magic",
         "not a token file of llm.c; there is no .idx beside it either. "
         "If it holds only token ids, set format = \"tokens_u16\" or \"tokens_u32\"");
  }
  if (std::ssize(beginning) < LlmcHeader::kBytes)
    fail("header",
         format("the file ends at byte {}; a header has {} bytes", beginning.size(), LlmcHeader::kBytes));
  if (const int32_t version = number_at(beginning, 1); version != kind->version)
    fail("version", format("{}; only version {} is known", version, kind->version));
  const LlmcHeader header{kind->type, number_at(beginning, 2), kind->end_of_text};
  const int64_t expected = LlmcHeader::kBytes + header.tokens * token_bytes(kind->type);
  if (header.tokens < 0 || expected != file_bytes) {
    fail("number of tokens",
         format("{}; they and the header make {} bytes, but the file has {}: it is truncated or damaged",
                header.tokens, expected, file_bytes));
  }
  return header;
}

std::vector<int64_t> find_documents(const TokenFiles& tokens, const std::optional<DocumentMark>& mark) {
  std::vector<int64_t> begins = {0};
  if (mark) {
    constexpr int64_t kBlock = int64_t{1} << 22;
    const int64_t blocks = (tokens.tokens() + kBlock - 1) / kBlock;
    std::vector<std::vector<int64_t>> found(static_cast<size_t>(blocks));
    const int64_t offset = mark->begins_document ? 0 : 1;
    parallel_for_each(blocks, 0, [&](int64_t block) {
      const int64_t first = block * kBlock;
      std::vector<int32_t> ids(static_cast<size_t>(std::min(kBlock, tokens.tokens() - first)));
      tokens.read(first, ids);
      for (size_t i = 0; i < ids.size(); ++i)
        if (ids[i] == mark->id)
          found[static_cast<size_t>(block)].push_back(first + static_cast<int64_t>(i) + offset);
    });
    for (const auto& part : found) begins.insert(begins.end(), part.begin(), part.end());
  }
  begins.push_back(tokens.tokens());
  // A mark at the beginning or at the end makes no empty document.
  begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
  return begins;
}

bool is_token_format(std::string_view format) {
  return format == "bin" || format == "tokens_u16" || format == "tokens_u32";
}

std::shared_ptr<const IndexedDataset> open_finished_dataset(const fs::path& path, std::string_view format,
                                                            std::optional<int32_t> end_of_text) {
  const std::vector<fs::path> files = token_files_of(path);
  ShardOpener opener(end_of_text);
  if (format == "tokens_u16") return opener.raw(files, TokenType::u16);
  if (format == "tokens_u32") return opener.raw(files, TokenType::i32);
  const auto pair = std::find_if(files.begin(), files.end(), is_pair);
  if (pair != files.end() && files.size() > 1) {
    throw UsageError(stepforge::format(
        "{} names several files, of which {} belongs to a Megatron pair; make each pair a source",
        path.string(), pair->string()));
  }
  const bool is_shard =
      pair == files.end() && files.front().extension() == ".bin" && fs::exists(files.front());
  if (is_shard) return opener.llmc(files);
  return std::make_shared<IndexedDataset>(files.front());
}

}  // namespace stepforge
