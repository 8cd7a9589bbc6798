// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/sentencepiece_tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <new>
#include <utility>

#include <sentencepiece_processor.h>

#include "stepforge/base/error.h"
#include "stepforge/base/files.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"
#include "stepforge/base/json_reader.h"
#include "stepforge/base/utf8.h"
#include "stepforge/text/added_tokens.h"
#include "stepforge/text/tokenizer_files.h"

namespace stepforge {

namespace {

using Processor = sentencepiece::SentencePieceProcessor;

/// Removes a number of a protobuf message from the beginning of `bytes` and returns it.
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

/// What is added to the pieces of a model.
struct AddedPieces {
  std::vector<AddedToken> tokens;
  AddedTokenFinder finder;
  /// Encodes text that follows an added token, without the space that is put before a text.
  Processor inner;
};

class PieceEncoder final : public Encoder {
 public:
  PieceEncoder(const Processor& processor, const AddedPieces* added) : processor_(processor), added_(added) {}

  void append(std::string_view text, std::vector<int32_t>& ids) override {
    require_utf8(text, "text to tokenize");
    if (added_ == nullptr) return append_pieces(processor_, text, ids);
    size_t begin = 0;
    AddedTokenFinder::Search search(added_->finder, text);
    const auto section = [&](size_t end) {
      if (end > begin)
        append_pieces(begin == 0 ? processor_ : added_->inner, text.substr(begin, end - begin), ids);
    };
    while (const auto found = search.next()) {
      section(found->begin);
      ids.push_back(found->token->id);
      begin = found->end;
    }
    section(text.size());
  }

 private:
  static void append_pieces(const Processor& processor, std::string_view text, std::vector<int32_t>& ids) {
    std::vector<int> found;
    const auto status = processor.Encode(absl::string_view(text.data(), text.size()), &found);
    if (!status.ok()) throw Error(format("SentencePiece cannot encode a text: {}", status.ToString()));
    ids.insert(ids.end(), found.begin(), found.end());
  }

  const Processor& processor_;
  const AddedPieces* added_;
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(TokenizerFiles files, const std::string& name, const std::string& folder)
      : files_(std::move(files)), model_(std::move(files_.extract(name).mapped())) {
    const std::string source = folder.empty() ? name : folder + "/" + name;
    if (!has_all_parts(model_))
      throw FormatError(format("{}: not a model of SentencePiece, or cut off", source));
    const std::string fault = load(processor_, model_);
    if (!fault.empty()) throw FormatError(format("{}: not a model of SentencePiece: {}", source, fault));
    fingerprint_ = content_hash("sentencepiece " + model_);
    eos_ = role(processor_.eos_id());
    bos_ = role(processor_.bos_id());
    if (files_.contains("tokenizer_config.json") || files_.contains("special_tokens_map.json") ||
        files_.contains("added_tokens.json"))
      read_companions(folder);
  }

  int32_t vocab_size() const override {
    return processor_.GetPieceSize() + static_cast<int32_t>(further_.size());
  }
  std::unique_ptr<Encoder> encoder() const override {
    return std::make_unique<PieceEncoder>(processor_, added_.get());
  }
  std::unique_ptr<TokenDecoder> decoder(bool skip_special) const override;
  bool is_special(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) return false;
    if (const AddedToken* token = find_added(id)) return token->special;
    return processor_.IsControl(id) || processor_.IsUnknown(id);
  }
  bool is_added(int32_t id) const override { return find_added(id) != nullptr || is_special(id); }
  SpecialTokens special_tokens() const override { return around_; }
  std::optional<int32_t> eos_id() const override { return eos_; }
  std::optional<int32_t> bos_id() const override { return bos_; }
  const std::string& fingerprint() const override { return fingerprint_; }

  std::string_view token_bytes(int32_t id) const override {
    if (id < 0 || id >= vocab_size()) {
      throw Error(
          format("token id {} is not in the vocabulary of {} tokens; are these ids of another tokenizer?", id,
                 vocab_size()));
    }
    return is_piece(id) ? processor_.IdToPiece(id)
                        : further_[static_cast<size_t>(id - processor_.GetPieceSize())];
  }

  void save_pretrained(const std::filesystem::path& folder) const override {
    TokenizerFiles files = files_;
    files["tokenizer.model"] = model_;
    write_tokenizer_files(files, folder);
  }

  /// Whether the library knows the id.
  bool is_piece(int32_t id) const { return id < processor_.GetPieceSize(); }

  /// The text of a sequence of pieces; the space before its first one is part of it only if it follows an added token.
  std::string text_of(const std::vector<int>& ids, bool follows_added) const {
    std::string text;
    const auto status = (follows_added ? added_->inner : processor_).Decode(ids, &text);
    if (!status.ok()) throw Error(format("SentencePiece cannot decode ids: {}", status.ToString()));
    return text;
  }
  bool is_byte(int32_t id) const { return processor_.IsByte(id); }

 private:
  /// The error in the model, or "". The library throws too: its trie refuses an empty piece.
  static std::string load(Processor& processor, const std::string& model) {
    try {
      const auto status = processor.LoadFromSerializedProto(absl::string_view(model.data(), model.size()));
      return status.ok() ? "" : status.ToString();
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  static std::optional<int32_t> role(int id) { return id < 0 ? std::nullopt : std::optional<int32_t>(id); }

  std::optional<int32_t> find_piece(const std::string& content) const {
    const int id = processor_.PieceToId(content);
    if (processor_.IdToPiece(id) == content) return id;
    return std::nullopt;
  }

  const AddedToken* find_added(int32_t id) const {
    if (added_ == nullptr) return nullptr;
    const auto found = std::ranges::find(added_->tokens, id, &AddedToken::id);
    return found == added_->tokens.end() ? nullptr : &*found;
  }

  /// The tokens that the files beside the model add, and its control symbols, are found in a text, as transformers finds them.
  void read_companions(const std::string& folder) {
    const ModelTokens tokens = read_model_tokens(files_, folder);
    added_ = std::make_unique<AddedPieces>();
    for (const ListedToken& token : tokens.listed) add(token);
    for (const ListedToken& token : tokens.further)
      if (!is_listed(token.content)) add(token);
    for (int32_t id = 0; id < processor_.GetPieceSize(); ++id) {
      const std::string& piece = processor_.IdToPiece(id);
      if (processor_.IsControl(id) && !is_listed(piece))
        add({.content = piece, .id = id, .where = folder, .special = true});
    }
    std::vector<const AddedToken*> found;
    for (const AddedToken& token : added_->tokens) found.push_back(&token);
    added_->finder = AddedTokenFinder(found);
    load_inner(folder);
    read_roles(tokens, folder);
    Json facts = Json::array({around_.before, around_.after, eos_.value_or(-1), bos_.value_or(-1)});
    for (const AddedToken& token : added_->tokens)
      facts.push_back(
          {token.id, token.content, token.special, token.single_word, token.lstrip, token.rstrip});
    fingerprint_ = content_hash(fingerprint_ + facts.dump());
  }

  bool is_listed(const std::string& content) const {
    return std::ranges::find(added_->tokens, content, &AddedToken::content) != added_->tokens.end();
  }

  void add(const ListedToken& token) {
    if (token.content.empty()) return;
    const std::optional<int32_t> piece = find_piece(token.content);
    const int32_t id = piece ? *piece : vocab_size();
    if ((token.id && *token.id != id) || (token.is_reference && !piece)) {
      throw FormatError(format(
          "{}: {} has {} here, but the model has {} pieces, {}; make the files of this tokenizer agree",
          token.where, json_excerpt(Json(token.content)), token.id ? format("the id {}", *token.id) : "no id",
          processor_.GetPieceSize(),
          piece ? format("and this is one with the id {}", *piece) : format("and the next id is {}", id)));
    }
    if (!piece) further_.push_back(token.content);
    AddedToken added{.id = id, .content = token.content, .special = token.special};
    added.single_word = token.single_word;
    added.lstrip = token.lstrip;
    added.rstrip = token.rstrip;
    added_->tokens.push_back(std::move(added));
  }

  /// The same model without the space before a text. Two concatenated messages of protobuf are one, in which the last
  /// values count. Source: NormalizerSpec of sentencepiece_model.proto.
  void load_inner(const std::string& folder) {
    constexpr std::string_view kNoDummyPrefixKeepSpaces("\x1a\x04\x18\x00\x20\x00", 6);
    const bool each_section_is_a_text = legacy(folder);
    const std::string fault =
        load(added_->inner, each_section_is_a_text ? model_ : model_ + std::string(kNoDummyPrefixKeepSpaces));
    if (!fault.empty()) throw FormatError(format("{}: not a model of SentencePiece: {}", folder, fault));
  }

  Json config() const {
    const auto file = files_.find("tokenizer_config.json");
    return file == files_.end() ? Json::object() : parse_json(file->second, "tokenizer_config.json");
  }

  bool legacy(const std::string& folder) const {
    const Json options = config();
    return JsonReader(options, folder + "/tokenizer_config.json").boolean_or("legacy", false);
  }

  void read_roles(const ModelTokens& tokens, const std::string& folder) {
    const auto id_of = [&](const char* name, std::optional<int32_t> otherwise) {
      const auto found = tokens.roles.find(name);
      if (found == tokens.roles.end()) return otherwise;
      return std::optional(std::ranges::find(added_->tokens, found->second, &AddedToken::content)->id);
    };
    eos_ = id_of("eos_token", eos_);
    bos_ = id_of("bos_token", bos_);
    const Json options = config();
    const JsonReader reader(options, folder + "/tokenizer_config.json");
    if (bos_ && reader.boolean_or("add_bos_token", false)) around_.before = {*bos_};
    if (eos_ && reader.boolean_or("add_eos_token", false)) around_.after = {*eos_};
  }

  TokenizerFiles files_;  ///< without the model
  std::string model_;
  Processor processor_;
  std::unique_ptr<AddedPieces> added_;  ///< null if there are no files beside the model
  std::vector<std::string> further_;    ///< the added tokens after the model's pieces
  std::optional<int32_t> eos_;
  std::optional<int32_t> bos_;
  SpecialTokens around_;
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
    if (!tokenizer_.is_piece(id)) {
      pass(bytes);
      ids_.clear();
      passed_ = 0;
      follows_added_ = true;
      bytes += tokenizer_.token_bytes(id);
      return;
    }
    ids_.push_back(id);
    if (tokenizer_.is_byte(id)) return;
    pass(bytes);
    const std::string alone = tokenizer_.text_of({id}, follows_added_);
    if (alone.empty()) return;
    ids_ = {id};
    passed_ = alone.size();
  }

  void finish(std::string& bytes) override { pass(bytes); }

 private:
  void pass(std::string& bytes) {
    const std::string text = tokenizer_.text_of(ids_, follows_added_);
    bytes += std::string_view(text).substr(passed_);
    passed_ = text.size();
  }

  const SentencePieceTokenizer& tokenizer_;
  bool skip_special_;
  std::vector<int> ids_;
  size_t passed_ = 0;           ///< how much of the text of ids_ was appended
  bool follows_added_ = false;  ///< whether an added token came before ids_
};

std::unique_ptr<TokenDecoder> SentencePieceTokenizer::decoder(bool skip_special) const {
  return std::make_unique<PieceDecoder>(*this, skip_special);
}

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(TokenizerFiles files, const std::string& name,
                                                        const std::string& folder) {
  return std::make_unique<SentencePieceTokenizer>(std::move(files), name, folder);
}

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string model, const std::string& source) {
  TokenizerFiles files;
  files[source] = std::move(model);
  return make_sentencepiece_tokenizer(std::move(files), source, "");
}

}  // namespace stepforge
