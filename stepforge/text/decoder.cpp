// SPDX-License-Identifier: Apache-2.0
#include "stepforge/text/decoder.h"

#include "stepforge/text/decoder_stages.h"
#include "stepforge/text/metaspace.h"
#include "stepforge/text/text_pattern.h"

namespace stepforge {

namespace {

using Next = std::unique_ptr<DecoderStage>;

/// A step without options.
template <typename Stage>
Next plain_stage(Next next) {
  return std::make_unique<Stage>(std::move(next));
}

std::string read_text(const JsonReader& decoder, const char* key) {
  const std::string& text = decoder[key].text();
  if (text.empty()) decoder[key].refuse("an empty text is not supported");
  return text;
}

}  // namespace

Decoder::Decoder() : steps_({plain_stage<JoinStage>}) {}

Decoder::Decoder(const JsonReader& decoder) {
  read(decoder, true);
  byte_level_ = byte_level_ && steps_.size() == 1;
}

std::unique_ptr<DecoderStage> Decoder::start(std::string& output) const {
  Next first = std::make_unique<TextSink>(output);
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) first = (*step)(std::move(first));
  return first;
}

void Decoder::read(const JsonReader& decoder, bool last) {
  const std::string& type = decoder["type"].text();
  if (type == "Sequence") {
    decoder.only_keys({"type", "decoders"});
    const JsonReader steps = decoder["decoders"];
    for (size_t i = 0; i < steps.size(); ++i) read(steps.at(i), last && i + 1 == steps.size());
  } else if (type == "ByteLevel") {
    decoder.only_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    steps_.emplace_back(
        [last](Next next) { return std::make_unique<ByteLevelStage>(std::move(next), last); });
    byte_level_ = true;
  } else if (type == "ByteFallback") {
    decoder.only_keys({"type"});
    steps_.emplace_back(plain_stage<ByteFallbackStage>);
  } else if (type == "Fuse") {
    decoder.only_keys({"type"});
    steps_.emplace_back(plain_stage<FuseStage>);
  } else if (type == "Strip") {
    decoder.only_keys({"type", "content", "start", "stop"});
    steps_.emplace_back([content = read_character(decoder["content"]),
                         start = static_cast<size_t>(decoder["start"].count()),
                         stop = static_cast<size_t>(decoder["stop"].count())](Next next) {
      return std::make_unique<StripStage>(std::move(next), content, start, stop);
    });
  } else if (type == "Replace") {
    decoder.only_keys({"type", "pattern", "content"});
    steps_.emplace_back(
        [pattern = read_text_pattern(decoder["pattern"]), content = decoder["content"].text()](Next next) {
          return std::make_unique<ReplaceStage>(std::move(next), pattern, content);
        });
  } else if (type == "Metaspace") {
    steps_.emplace_back([metaspace = Metaspace(decoder)](Next next) {
      return std::make_unique<MetaspaceStage>(std::move(next), metaspace.replacement,
                                              metaspace.prepend != Metaspace::Prepend::never);
    });
  } else if (type == "BPEDecoder") {
    decoder.only_keys({"type", "suffix"});
    steps_.emplace_back([suffix = read_text(decoder, "suffix")](Next next) {
      return std::make_unique<BpeStage>(std::move(next), suffix);
    });
  } else if (type == "WordPiece") {
    decoder.only_keys({"type", "prefix", "cleanup"});
    steps_.emplace_back(
        [prefix = decoder["prefix"].text(), cleanup = decoder["cleanup"].boolean()](Next next) {
          return std::make_unique<WordPieceStage>(std::move(next), prefix, cleanup);
        });
  } else if (type == "CTC") {
    decoder.only_keys({"type", "pad_token", "word_delimiter_token", "cleanup"});
    steps_.emplace_back([pad = decoder["pad_token"].text(),
                         delimiter = read_text(decoder, "word_delimiter_token"),
                         cleanup = decoder["cleanup"].boolean()](Next next) {
      return std::make_unique<CtcStage>(std::move(next), pad, delimiter, cleanup);
    });
  } else {
    decoder["type"].refuse(
        "only BPEDecoder, ByteFallback, ByteLevel, CTC, Fuse, Metaspace, Replace, Strip, "
        "WordPiece and Sequence are supported");
  }
}

}  // namespace stepforge
