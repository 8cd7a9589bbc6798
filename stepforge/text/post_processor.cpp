// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/post_processor.h"

#include "stepforge/base/format.h"

namespace stepforge {

namespace {

int32_t read_id(const JsonReader& id, int32_t vocab_size) {
  return static_cast<int32_t>(id.integer(0, vocab_size - 1));
}

/// ["[SEP]", 102]
int32_t read_pair(const JsonReader& token, int32_t vocab_size) {
  if (token.size() != 2) token.refuse("a token and its id are expected");
  return read_id(token.at(1), vocab_size);
}

void append_template_token(const JsonReader& piece, const JsonReader& tokens, int32_t vocab_size,
                           std::vector<int32_t>& ids) {
  piece.only_keys({"SpecialToken"});
  const JsonReader special = piece["SpecialToken"];
  special.only_keys({"id", "type_id"});
  const JsonReader token_ids = tokens[special["id"].text()]["ids"];
  for (size_t i = 0; i < token_ids.size(); ++i) ids.push_back(read_id(token_ids.at(i), vocab_size));
}

/// "single" lists the special tokens and, once, the text: {"Sequence": {"id": "A"}}. "pair" is for two texts.
SpecialTokens read_template(const JsonReader& processor, int32_t vocab_size) {
  processor.only_keys({"type", "single", "pair", "special_tokens"});
  const JsonReader single = processor["single"];
  SpecialTokens tokens;
  bool after = false;
  for (size_t i = 0; i < single.size(); ++i) {
    const JsonReader piece = single.at(i);
    if (!piece.has("Sequence")) {
      append_template_token(piece, processor["special_tokens"], vocab_size,
                            after ? tokens.after : tokens.before);
      continue;
    }
    piece.only_keys({"Sequence"});
    if (piece["Sequence"]["id"].text() != "A" || after) piece.refuse("only one text, \"A\", is supported");
    after = true;
  }
  if (!after) single.refuse("the text, \"A\", is missing");
  return tokens;
}

SpecialTokens read_sequence(const JsonReader& processor, int32_t vocab_size) {
  processor.only_keys({"type", "processors"});
  const JsonReader steps = processor["processors"];
  SpecialTokens all;
  for (size_t i = 0; i < steps.size(); ++i) {
    const SpecialTokens outer = read_post_processor(steps.at(i), vocab_size);
    all.before.insert(all.before.begin(), outer.before.begin(), outer.before.end());
    all.after.insert(all.after.end(), outer.after.begin(), outer.after.end());
  }
  return all;
}

}  // namespace

SpecialTokens read_post_processor(const JsonReader& processor, int32_t vocab_size) {
  const std::string& type = processor["type"].text();
  if (type == "TemplateProcessing") return read_template(processor, vocab_size);
  if (type == "Sequence") return read_sequence(processor, vocab_size);
  if (type == "ByteLevel") {
    processor.only_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return {};
  }
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    processor.only_keys({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    return {{read_pair(processor["cls"], vocab_size)}, {read_pair(processor["sep"], vocab_size)}};
  }
  processor["type"].refuse(
      "only TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel and Sequence are supported");
}

}  // namespace stepforge
