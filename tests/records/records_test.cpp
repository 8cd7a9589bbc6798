// SPDX-License-Identifier: Apache-2.0
#include "stepforge/records/records.h"

#include <gtest/gtest.h>

#include "stepforge/dataset/tokenize.h"
#include "tests/records/test_support.h"

namespace stepforge::testing {
namespace {

constexpr const char* kTemplate =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

struct Opened {
  std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer();
  Records records;
};

Opened open(const TempFolder& folder, const std::string& lines, RecordOptions options) {
  Opened opened;
  options.chat_template = folder.write("template.jinja", kTemplate);
  opened.records = open_records({folder.write("in/data.jsonl", lines)}, *opened.tokenizer, options);
  return opened;
}

/// All documents as text with the counted tokens in capitals; "$" stands for the end-of-text token.
std::vector<std::string> documents_of(const TempFolder& folder, const Opened& opened) {
  const bool masked = opened.records.format->has_loss_mask();
  IndexedDatasetWriter writer(folder / "out", {TokenType::u16, masked});
  tokenize(*opened.records.source, *opened.records.format, {.workers = 2}, {writer});
  writer.publish();
  const IndexedDataset dataset(folder / "out");
  std::vector<std::string> documents;
  for (int64_t i = 0; i < dataset.index().documents(); ++i) {
    const int64_t begin = dataset.index().document_begin(i);
    std::vector<int32_t> tokens(static_cast<size_t>(dataset.index().document_begin(i + 1) - begin));
    std::vector<uint8_t> counted(tokens.size(), 1);
    dataset.read(begin, tokens);
    EXPECT_EQ(dataset.has_mask(), masked);
    if (masked) dataset.read_counted(begin, counted);
    documents.emplace_back();
    for (size_t t = 0; t < tokens.size(); ++t) {
      const char letter = tokens[t] == 256 ? '$' : static_cast<char>(tokens[t]);
      const bool is_small = letter >= 'a' && letter <= 'z';
      documents.back() += counted[t] != 0 && is_small ? static_cast<char>(letter - 'a' + 'A') : letter;
      if (counted[t] != 0 && letter == '$') documents.back() += '!';
    }
  }
  return documents;
}

using Texts = std::vector<std::string>;

TEST(Records, ConversationsBecomeDocumentsWithALossMask) {
  const TempFolder folder;
  const std::string lines =
      R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]})"
      "\n"
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},)"
      R"( {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})"
      "\n";
  const RecordOptions options{.format = "messages"};
  EXPECT_EQ(documents_of(folder, open(folder, lines, options)),
            (Texts{"[user]hi$[assistant]YO$!", "[user]a$[assistant]B$![user]c$[assistant]D$!"}));
  const RecordOptions last{.format = "messages", .loss_on = "last"};
  EXPECT_EQ(documents_of(folder, open(folder, lines, last))[1],
            "[user]a$[assistant]b$[user]c$[assistant]D$!");
  const RecordOptions all{.format = "messages", .loss_on = "all"};
  EXPECT_EQ(documents_of(folder, open(folder, lines, all))[0], "[USER]HI$![ASSISTANT]YO$!");
}

TEST(Records, PartsOfTextAreJoinedForATemplateThatWritesTexts) {
  const TempFolder folder;
  const auto with_content = [](const std::string& parts) {
    return R"({"messages": [{"role": "user", "content": )" + parts +
           R"(}, {"role": "assistant", "content": "b"}]})";
  };
  const Opened parts =
      open(folder, with_content(R"([{"type": "text", "text": "x"}, {"type": "text", "text": "y"}])"),
           {.format = "messages"});
  EXPECT_EQ(documents_of(folder, parts)[0], "[user]xy$[assistant]B$!");
  const Opened image =
      open(folder, with_content(R"([{"type": "image", "url": "u"}])"), {.format = "messages"});
  EXPECT_CONTAINS(message_of<FormatError>([&] { documents_of(folder, image); }), "messages[0].content[0] is",
                  "only parts of type \"text\" are read");
}

TEST(Records, AMaskThatLearningEverythingWouldIgnoreIsRefused) {
  const TempFolder folder;
  const std::string line =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "train": false},)"
      R"( {"role": "assistant", "content": "c"}]})";
  const Opened masked = open(folder, line, {.format = "messages"});
  EXPECT_EQ(documents_of(folder, masked)[0], "[user]a$[assistant]b$[assistant]C$!");
  const Opened all = open(folder, line, {.format = "messages", .loss_on = "all"});
  EXPECT_CONTAINS(message_of<FormatError>([&] { documents_of(folder, all); }),
                  "messages[1] is excluded by its mask, but loss_on = \"all\" learns every token");
}

TEST(Records, APromptIsFollowedByItsCompletionWithoutATemplate) {
  const TempFolder folder;
  const RecordOptions options{.format = "prompt_completion"};
  EXPECT_EQ(
      documents_of(folder, open(folder, R"({"prompt": "two and two", "completion": " is four"})", options)),
      (Texts{"two and two IS FOUR$!"}));
}

TEST(Records, InstructionsAreConversations) {
  const TempFolder folder;
  const RecordOptions options{.format = "alpaca"};
  EXPECT_EQ(
      documents_of(folder, open(folder, R"({"instruction": "add", "input": "1", "output": "two"})", options)),
      (Texts{"[user]add\n1$[assistant]TWO$!"}));
}

TEST(Records, ABadRecordIsNamedByFileAndLine) {
  const TempFolder folder;
  const std::string good =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
      "\n";
  const auto fault = [&](const std::string& line) {
    const Opened opened = open(folder, good + "\n" + good + line + "\n", {.format = "messages"});
    return message_of<FormatError>([&] { documents_of(folder, opened); });
  };
  EXPECT_CONTAINS(fault(R"({"text": "a"})"), "in/data.jsonl:4: no \"messages\"; it has \"text\"");
  EXPECT_CONTAINS(fault(R"({"messages": [)"), "in/data.jsonl:4: the record: ");
  EXPECT_CONTAINS(fault(R"({"messages": [{"role": "assistant", "content": "\ud800"}]})"),
                  "in/data.jsonl:4: the record: ");
  EXPECT_CONTAINS(fault(R"({"messages": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}"),
                  "in/data.jsonl:4: the record: ");
  EXPECT_CONTAINS(fault("{\"messages\": \"\xFF\"}"), "not valid UTF-8");
}

TEST(Records, WithoutATemplateConversationsAreRefusedWithTheRemedy) {
  const TempFolder folder;
  const auto tokenizer = make_byte_tokenizer();
  Opened opened;
  opened.records =
      open_records({folder.write("data.jsonl", R"({"messages": [{"role": "assistant", "content": "b"}]})")},
                   *opened.tokenizer, {.format = "messages", .tokenizer_folder = folder.path()});
  EXPECT_CONTAINS(
      message_of<FormatError>([&] { documents_of(folder, opened); }),
      "there is no chat template: name a folder that has one in tokenizer.path, or set data.chat_template");
}

TEST(Records, TheFingerprintKnowsLayoutLossAndTemplate) {
  const TempFolder folder;
  const auto print = [&](const RecordOptions& options) {
    return open(folder, "{}", options).records.format->fingerprint();
  };
  const std::string plain = print({.format = "messages"});
  EXPECT_EQ(print({.format = "messages"}), plain);
  EXPECT_NE(print({.format = "sharegpt"}), plain);
  EXPECT_NE(print({.format = "messages", .loss_on = "last"}), plain);
  EXPECT_NE(print({.format = "jsonl"}), plain);
  EXPECT_NE(print({.format = "jsonl", .ends = {.eos = false}}), print({.format = "jsonl"}));
}

TEST(Records, ConversationsMayBeRowsOfATable) {
  const TempFolder folder;
  Opened opened;
  folder.write("in/b.csv", "instruction,input,output\nadd,\"1,\n2\",three\n");
  folder.write("in/a.jsonl", "{\"instruction\": \"say\", \"output\": \"so\"}\n");
  opened.records =
      open_records({folder / "in"}, *opened.tokenizer,
                   {.format = "alpaca", .chat_template = folder.write("template.jinja", kTemplate)});
  EXPECT_EQ(documents_of(folder, opened),
            (Texts{"[user]say$[assistant]SO$!", "[user]add\n1,\n2$[assistant]THREE$!"}));
}

}  // namespace
}  // namespace stepforge::testing
