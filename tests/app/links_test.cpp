// SPDX-License-Identifier: Apache-2.0
// Links in a run folder that somebody else prepared: nothing is written where they point to.
#include "stepforge/base/files.h"
#include "tests/app/program.h"

namespace stepforge::testing {
namespace {

class Links : public ::testing::Test {
 protected:
  Links() {
    write_text(precious_, "data");
    fs::create_directory(target_);
    fs::create_directory(run_);
  }

  Strings train() const { return Strings{"train"} + small_run(run_) + Strings{"training.steps=1"}; }

  TempFolder folder_;
  fs::path precious_ = folder_ / "precious";
  fs::path target_ = folder_ / "target";
  fs::path run_ = folder_ / "run";
};

TEST_F(Links, OfFilesAreRefusedOrReplaced) {
  const Strings refused = {"log.txt", "run.lock"};
  for (const std::string& name : refused) {
    fs::create_symlink(precious_, run_ / name);
    EXPECT_CONTAINS(refusal_of(train()), (run_ / name).string() + " is a symbolic link");
    EXPECT_EQ(read_file(precious_), "data") << name;
    fs::remove_all(run_);
    fs::create_directory(run_);
  }
  for (const char* name : {"run.json.tmp", "config.toml.tmp", "config.toml", "generation_config.json.tmp"})
    fs::create_symlink(precious_, run_ / name);
  output_of(train());
  EXPECT_EQ(read_file(precious_), "data");
}

TEST_F(Links, OfFoldersAreRefusedExceptThatOfCheckpoints) {
  write_text(folder_ / "tale.txt", some_text(400));
  const Strings text = {format("data.sources=[{{path=\"{}\"}}]", (folder_ / "tale.txt").string()),
                        "tokenizer.type=bpe", "tokenizer.vocab_size=300", "checkpoint.last_save_in_hf=true"};
  for (const char* name : {"tokenizer", "hf"}) {
    fs::create_directory_symlink(target_, run_ / name);
    const ProgramResult result = run_program(train() + text);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_CONTAINS(result.err, (run_ / name).string() + " is a symbolic link");
    EXPECT_TRUE(fs::is_empty(target_)) << name;
    fs::remove_all(run_);
    fs::create_directory(run_);
  }
  fs::create_directory_symlink(target_, run_ / "checkpoint");
  EXPECT_CONTAINS(run_program(train() + Strings{"training.steps=2"}).err,
                  "checkpoints are kept in " + target_.string());
  EXPECT_TRUE(fs::exists(target_ / "step-2/manifest.json"));
}

TEST_F(Links, ToTheLogsOfALaunchAreRefused) {
  fs::create_directory_symlink(target_, run_ / "logs");
  EXPECT_CONTAINS(refusal_of(Strings{"launch", "--nproc", "1"} + train()),
                  (run_ / "logs").string() + " is a symbolic link");
  EXPECT_TRUE(fs::is_empty(target_));
}

}  // namespace
}  // namespace stepforge::testing
