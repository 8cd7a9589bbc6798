// SPDX-License-Identifier: Apache-2.0
// `stepforge chat`, with a small model that was trained on conversations.
#include "stepforge/base/error.h"
#include "tests/app/program.h"

namespace stepforge::testing {
namespace {

constexpr const char* kTemplate =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

std::string conversations() {
  std::string lines;
  for (int i = 0; i < 60; ++i) {
    lines += format(
        R"({{"messages": [{{"role": "user", "content": "say {0}"}}, {{"role": "assistant", "content": "{0}{0}"}}]}})"
        "\n",
        std::string(1, static_cast<char>('a' + i % 26)));
  }
  return lines;
}

class Chat : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    write_text(*folder_ / "chat.jsonl", conversations());
    write_text(*folder_ / "template.jinja", kTemplate);
    const Strings training =
        Strings{"train"} + small_run(*folder_ / "run") +
        Strings{
            format("data.sources=[{{path=\"{}\",format=\"messages\"}}]", (*folder_ / "chat.jsonl").string()),
            format("data.chat_template=\"{}\"", (*folder_ / "template.jinja").string()),
            "data.packing=best_fit", "training.steps=2"};
    ASSERT_EQ(run_program(training).exit_code, 0);
    output_of({"export", run(), exported()});
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string run() { return (*folder_ / "run").string(); }
  static std::string exported() { return (*folder_ / "exported").string(); }

  /// The model may end an answer after a few tokens; to which messages depends on the processor.
  static std::string message_with_long_answer() {
    constexpr size_t kTokens = 300;
    for (char letter = 'a'; letter <= 'z'; ++letter) {
      const std::string message = std::string("say ") + letter;
      const Strings command = {"chat", run(), "--max-tokens", std::to_string(kTokens), "--temperature", "0"};
      if (output_of(command, message + "\n").size() > kTokens) return message;
    }
    throw Error("all answers are short");
  }
  /// What follows the prompt.
  static std::string continued(const std::string& prompt) {
    return output_of({"generate", run(), "--prompt", prompt, "--max-tokens", "6", "--temperature", "0"})
        .substr(prompt.size());
  }

 private:
  static inline std::unique_ptr<TempFolder> folder_;
};

const Strings kShort = {"--max-tokens", "6", "--temperature", "0"};

TEST_F(Chat, AnswersInTheWordsOfTheTemplateAndRemembersTheConversation) {
  const std::string first = continued("[user]say a<|endoftext|>[assistant]");
  const std::string second =
      continued("[user]say a<|endoftext|>[assistant]" + first.substr(0, first.size() - 1) +
                "<|endoftext|>[user]say b<|endoftext|>[assistant]");
  EXPECT_EQ(output_of(Strings{"chat", run()} + kShort, "say a\nsay b\n"), first + second);
}

TEST_F(Chat, AnExportedFolderHasTheTemplate) {
  EXPECT_EQ(output_of(Strings{"chat", exported()} + kShort, "say a\n"),
            output_of(Strings{"chat", run()} + kShort, "say a\n"));
}

TEST_F(Chat, ResetForgetsAllButTheSystemMessage) {
  const std::string alone = continued("[system]be kind<|endoftext|>[user]say b<|endoftext|>[assistant]");
  const std::string told =
      output_of(Strings{"chat", run(), "--system", "be kind"} + kShort, "say a\n/reset\nsay b\n");
  EXPECT_TRUE(told.ends_with(alone)) << told;
  EXPECT_EQ(output_of(Strings{"chat", run()} + kShort, "/system be kind\nsay b\n/exit\nnever read\n"), alone);
}

TEST_F(Chat, AnUnknownCommandIsExplained) {
  EXPECT_CONTAINS(output_of(Strings{"chat", run()} + kShort, "/help\n"),
                  "/help is not a command; /reset forgets the conversation");
}

TEST_F(Chat, AMessageThatDoesNotFitIsRefusedAndTheConversationGoesOn) {
  const ProgramResult result =
      run_program(Strings{"chat", run(), "--context", "40"} + kShort, std::string(100, 'x') + "\nsay a\n");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_CONTAINS(result.err, "the model's context holds 40");
  EXPECT_EQ(result.out, continued("[user]say a<|endoftext|>[assistant]"));
}

TEST_F(Chat, CtrlCEndsTheAnswerAndNotTheProgram) {
  const std::string message = message_with_long_answer();
  Child child({"chat", run(), "--max-tokens", "100000", "--context", "8000", "--temperature", "0"},
              message + "\n/bogus\n");
  ASSERT_TRUE(child.wait_until([&] { return child.out().size() > 3; }));
  child.signal(SIGINT);
  const ProgramResult result = child.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_CONTAINS(result.out, "/bogus is not a command");
  EXPECT_LT(result.out.size(), 7000U);
}

TEST_F(Chat, AModelWithoutATemplateIsRefusedWithTheRemedy) {
  const TempFolder folder;
  ASSERT_EQ(
      run_program(Strings{"train"} + small_run(folder / "plain") + Strings{"training.steps=1"}).exit_code, 0);
  const std::string refusal = refusal_of({"chat", (folder / "plain").string()}, "hi\n");
  EXPECT_CONTAINS(refusal, "has no chat template");
}

}  // namespace
}  // namespace stepforge::testing
