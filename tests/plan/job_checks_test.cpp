// SPDX-License-Identifier: Apache-2.0
#include "stepforge/plan/job_checks.h"

#include <gtest/gtest.h>

#include "stepforge/base/error.h"
#include "stepforge/plan/job.h"
#include "stepforge/plan/job_data.h"
#include "tests/support/strings.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {
namespace {

LoadedConfig tiny(const Strings& settings) {
  Strings all = {"model.vocab_size=300"};
  all.insert(all.end(), settings.begin(), settings.end());
  return load_config({}, all);
}

std::string refusal_of_job(const Strings& settings) {
  const LoadedConfig loaded = tiny(settings);
  return message_of<UsageError>([&] { check_job(loaded, plan_model(loaded.config)); });
}

TEST(JobChecks, PatternsOfParameterGroupsMatchSomething) {
  EXPECT_CONTAINS(refusal_of_job({"optimizer.param_groups=[{pattern = \"nothing\", lr = 1}]"}),
                  "pattern \"nothing\" matches no parameter", "names look like ");
  EXPECT_CONTAINS(refusal_of_job({"optimizer.param_groups=[{pattern = \".\"}, {pattern = \"head\"}]"}),
                  "pattern \"head\" matches no parameter, or only");
  const LoadedConfig loaded = tiny({"optimizer.param_groups=[{pattern = \"head\", lr = 1}]"});
  EXPECT_NO_THROW(check_job(loaded, plan_model(loaded.config)));
}

TEST(JobChecks, ThePlantedBlockIsOneOfTheModel) {
  EXPECT_CONTAINS(
      refusal_of_job({"debug.plant_nan_step=1", "debug.plant_nan_block=layers.6"}),
      "command line: debug.plant_nan_block = \"layers.6\": the model has no such block; it has: ");
}

TEST(JobChecks, AWarmUpThatIsTooLongIsNamedWithOneThatIsNot) {
  const auto warning = [](int64_t steps, const Strings& settings) {
    return schedule_warning(tiny(settings).config, steps);
  };
  EXPECT_CONTAINS(warning(60, {"lr_scheduler.warmup_steps=100"}),
                  "the warm-up (100 steps) is not shorter than the schedule (60 steps)",
                  "(a tenth of the schedule is 6 steps)");
  EXPECT_EQ(warning(101, {"lr_scheduler.warmup_steps=100"}), "");
  EXPECT_CONTAINS(warning(100, {"lr_scheduler.warmup_steps=60", "lr_scheduler.decay_ratio=0.5"}),
                  "the decay is shortened");
  EXPECT_EQ(warning(60, {"lr_scheduler.warmup_steps=100", "lr_scheduler.total_steps=1000"}), "");
}

TEST(JobChecks, MoreThreadsThanCoresAreNamedAndFarTooManyRefused) {
  EXPECT_EQ(threads_warning("training.threads = 2", 2, 2), "");
  EXPECT_EQ(threads_warning("training.threads = 64", 64, 2),
            "training.threads = 64, but 2 cores can be used here: threads that share a core wait for each "
            "other; 2 would be faster");
  EXPECT_CONTAINS(message_of<UsageError>([] { threads_warning("training.threads = 4096", 4096, 2); }),
                  "training.threads = 4096, but 2 cores", "use at most 2");
}

TEST(JobChecks, TheVocabularyOfTheModelHoldsTheTokens) {
  EXPECT_CONTAINS(message_of<UsageError>([] { check_vocabulary(tiny({}), 301); }),
                  "model.vocab_size = 300, but the tokenizer has 301 tokens");
  EXPECT_NO_THROW(check_vocabulary(tiny({}), 300));
}

TEST(JobChecks, APlanWithoutATokenizerNeedsTheSizeOfTheVocabulary) {
  const auto vocabulary = [](const Strings& settings) {
    return planned_vocabulary(load_config({}, settings).config);
  };
  const TempFolder folder;
  const std::string run = "run_dir=" + (folder / "run").string();
  EXPECT_CONTAINS(message_of<UsageError>([&] { vocabulary({run, "tokenizer.type=hf"}); }),
                  "model.vocab_size = 0", "set tokenizer.path to its folder, or model.vocab_size");
  EXPECT_EQ(vocabulary({run, "tokenizer.type=hf", "model.vocab_size=77"}), 77);
  EXPECT_EQ(vocabulary({run, "tokenizer.type=bpe", "tokenizer.vocab_size=500"}), 500) << "to be trained";
  EXPECT_EQ(vocabulary({run}), make_byte_tokenizer()->vocab_size());
}

TEST(JobChecks, SourcesAreOpenedWithoutReadingThem) {
  const TempFolder folder;
  const auto path = [&](const char* name) { return (folder / name).string(); };
  write_text(folder / "a.txt", "some text\n");
  write_text(folder / "broken.jinja", "{% if %}");
  const auto tokenizer = make_byte_tokenizer();
  const auto check = [&](const Strings& settings) { check_sources(tiny(settings).config, tokenizer.get()); };
  const std::string text = format("data.sources=[{{path = \"{}\"}}]", path("a.txt"));
  EXPECT_NO_THROW(check({text}));
  EXPECT_THROW(check({text, format("data.chat_template={}", path("none.jinja"))}), Error);
  EXPECT_THROW(check({text, format("data.chat_template={}", path("broken.jinja"))}), Error);
  EXPECT_THROW(check({text, "data.split=9,x"}), UsageError);
  EXPECT_CONTAINS(message_of<UsageError>([&] {
                    check({format("data.sources=[{{path = \"{}\", format = \"messages\"}}]", path("a.txt"))});
                  }),
                  "template");
}

}  // namespace
}  // namespace stepforge::testing
