// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/sentencepiece_tokenizer.h"

#include <cstdint>
#include <exception>
#include <new>
#include <system_error>
#include <utility>

#include <sentencepiece_processor.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/utf8.h"

namespace stepforge {

namespace {

using Processor = sentencepiece::SentencePieceProcessor;

/// A number of a protobuf message at the beginning of `bytes`, which it is removed from.
std::optional<uint64_t> take_number(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

/// The parts of a model, which the library would replace by defaults: trainer and normalizer settings. They come last,
/// so that a file that was cut off between two parts lacks them. Source: sentencepiece_model.proto.
bool has_all_parts(std::string_view model) {
  constexpr uint64_t kTrainerTag = 2 << 3 | 2;
  constexpr uint64_t kNormalizerTag = 3 << 3 | 2;
  bool trainer = false;
  bool normalizer = false;
  while (!model.empty()) {
    const auto tag = take_number(model);
    const auto size = take_number(model);
    if (!tag || (*tag & 7) != 2 || !size || *size > model.size()) return false;
    model.remove_prefix(*size);
    trainer = trainer || *tag == kTrainerTag;
    normalizer = normalizer || *tag == kNormalizerTag;
  }
  return trainer && normalizer;
}

class PieceEncoder final : public Encoder {
 public:
  explicit PieceEncoder(const Processor& processor) : processor_(processor) {}

  void append(std::string_view text, std::vector<int32_t>& ids) override {
    require_utf8(text, "text to tokenize");
    std::vector<int> found;
    const auto status = processor_.Encode(absl::string_view(text.data(), text.size()), &found);
    if (!status.ok()) throw Error(format("SentencePiece cannot encode a text: {}", status.ToString()));
    ids.insert(ids.end(), found.begin(), found.end());
  }

 private:
  const Processor& processor_;
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, const std::string& source) : model_(std::move(model)) {
    if (!has_all_parts(model_))
      throw FormatError(format("{}: not a model of SentencePiece, or cut off", source));
    const std::string fault = load();
    if (!fault.empty()) throw FormatError(format("{}: not a model of SentencePiece: {}", source, fault));
    fingerprint_ = content_hash("sentencepiece " + model_);
  }

  int32_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::unique_ptr<Encoder> encoder() const override { return std::make_unique<PieceEncoder>(processor_); }
  std::unique_ptr<TokenDecoder> decoder(bool skip_special) const override;
  bool is_special(int32_t id) const override {
    return id >= 0 && id < vocab_size() && (processor_.IsControl(id) || processor_.IsUnknown(id));
  }
  std::optional<int32_t> eos_id() const override { return role(processor_.eos_id()); }
  std::optional<int32_t> bos_id() const override { return role(processor_.bos_id()); }
  const std::string& fingerprint() const override { return fingerprint_; }

  std::string_view token_bytes(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) {
      throw Error(
          format("token id {} is not in the vocabulary of {} tokens; are these ids of another tokenizer?", id,
                 vocab_size()));
    }
    return processor_.IdToPiece(id);
  }

  void save_pretrained(const std::filesystem::path& folder) const override {
    std::error_code failure;
    std::filesystem::create_directories(folder, failure);
    if (failure) throw Error(format("cannot create the folder {}: {}", folder.string(), failure.message()));
    write_file_atomic(folder / "tokenizer.model", model_);
  }

  std::string text_of(const std::vector<int>& ids) const {
    std::string text;
    const auto status = processor_.Decode(ids, &text);
    if (!status.ok()) throw Error(format("SentencePiece cannot decode ids: {}", status.ToString()));
    return text;
  }
  bool is_byte(int32_t id) const { return processor_.IsByte(id); }

 private:
  /// What is wrong with the model, or "". The library throws too: its trie refuses an empty piece.
  std::string load() {
    try {
      const auto status = processor_.LoadFromSerializedProto(absl::string_view(model_.data(), model_.size()));
      return status.ok() ? "" : status.ToString();
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  static std::optional<int32_t> role(int id) { return id < 0 ? std::nullopt : std::optional<int32_t>(id); }

  std::string model_;
  Processor processor_;
  std::string fingerprint_;
};

/// The library decodes whole sequences. A token's text depends on those before it only at the beginning of a sequence
/// and in runs of byte tokens, so that all before the last other token with a text can be forgotten.
class PieceDecoder final : public TokenDecoder {
 public:
  PieceDecoder(const SentencePieceTokenizer& tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  void push(int32_t id, std::string& bytes) override {
    tokenizer_.token_bytes(id);  // refuses ids that do not exist
    if (skip_special_ && tokenizer_.is_special(id)) return;
    ids_.push_back(id);
    if (tokenizer_.is_byte(id)) return;
    pass(bytes);
    const std::string alone = tokenizer_.text_of({id});
    if (alone.empty()) return;
    ids_ = {id};
    passed_ = alone.size();
  }

  void finish(std::string& bytes) override { pass(bytes); }

 private:
  void pass(std::string& bytes) {
    const std::string text = tokenizer_.text_of(ids_);
    bytes += std::string_view(text).substr(passed_);
    passed_ = text.size();
  }

  const SentencePieceTokenizer& tokenizer_;
  bool skip_special_;
  std::vector<int> ids_;
  size_t passed_ = 0;  ///< how much of the text of ids_ was appended
};

std::unique_ptr<TokenDecoder> SentencePieceTokenizer::decoder(bool skip_special) const {
  return std::make_unique<PieceDecoder>(*this, skip_special);
}

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string model, const std::string& source) {
  return std::make_unique<SentencePieceTokenizer>(std::move(model), source);
}

}  // namespace stepforge
