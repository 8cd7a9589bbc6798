// SPDX-License-Identifier: Apache-2.0
// A program that was built with another libtorch than it finds, as in an archive of `make dist`.
#include <sstream>

#include "tests/app/program.h"
#include "tests/support/paths.h"

namespace stepforge::testing {
namespace {

/// The folder of PyTorch that this build uses, from the folders in its library.
fs::path built_with() {
  const std::string dynamic =
      Child({"-d", (binary_dir() / "libstepforge_torch.so").string()}, "", {}, "readelf").wait().out;
  std::istringstream parts(dynamic);
  for (std::string part; std::getline(parts, part, ':');)
    if (part.ends_with("/torch/lib")) return fs::path(part).parent_path();
  ADD_FAILURE() << dynamic;
  return {};
}

fs::path another_torch(const TempFolder& folder) {
  return folder.write("torch/version.py", "__version__ = '1.13.1'\n").parent_path();
}

/// A copy of the program and its libraries that knows no folder of libtorch, and a virtual environment with PyTorch.
class Moved : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* file : {"stepforge", "libstepforge_core.so", "libstepforge_torch.so"})
      fs::copy(binary_dir() / file, folder_ / file);
    const fs::path script = folder_.write(
        "forget.cmake", format("file(RPATH_SET FILE {} NEW_RPATH \"$ORIGIN\")\n", library().string()));
    ASSERT_EQ(Child({"-P", script.string()}, "", {}, "cmake").wait().exit_code, 0);
    const fs::path packages = folder_ / "env" / "lib" / "python3.11" / "site-packages";
    fs::create_directories(packages);
    fs::create_directory_symlink(built_with(), packages / "torch");
    fs::create_directory_symlink(built_with().parent_path() / "nvidia", packages / "nvidia");
  }

  fs::path library() const { return folder_ / "libstepforge_torch.so"; }

  /// Where it finds PyTorch is stated in full.
  ProgramResult run(const Strings& args, const Strings& environment) const {
    const Strings nothing = {"STEPFORGE_TORCH=", "VIRTUAL_ENV=", "PATH=", "HOME=" + folder_.path().string()};
    return Child(args, "", environment + nothing, folder_ / "stepforge").wait();
  }

  Strings virtual_env() const { return {"VIRTUAL_ENV=" + (folder_ / "env").string()}; }

  TempFolder folder_;
};

TEST_F(Moved, TrainsWithThePyTorchOfTheEnvironmentToTheSameBits) {
  const ProgramResult here = run_program(Strings{"train"} + small_run(folder_ / "here"));
  ASSERT_EQ(here.exit_code, 0) << here.err;
  const ProgramResult there = run(Strings{"train"} + small_run(folder_ / "there"), virtual_env());
  ASSERT_EQ(there.exit_code, 0) << there.err;
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(read_file(folder_ / "here" / "checkpoint" / "step-8" / file),
              read_file(folder_ / "there" / "checkpoint" / "step-8" / file));
}

TEST_F(Moved, TakesTheGivenPyTorch) {
  const ProgramResult result = run({"doctor"}, {"STEPFORGE_TORCH=" + built_with().string()});
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_CONTAINS(result.out, built_with().string());
}

TEST_F(Moved, GivesMklOurChoiceOfKernelsThoughLibtorchIsLoadedFirst) {
  const ProgramResult result = run({"doctor"}, virtual_env() + Strings{"LD_DEBUG=bindings"});
  ASSERT_EQ(result.exit_code, 0) << result.out;
  std::istringstream lines(result.err);
  int bindings = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!contains(line, "symbol `mkl_serv_intel_cpu")) continue;
    ++bindings;
    EXPECT_FALSE(contains(line.substr(line.find(" to ")), "libtorch")) << line;
  }
  EXPECT_GT(bindings, 0);
}

TEST_F(Moved, WithoutAPyTorchNamesTheVersionAndTheRemedy) {
  const ProgramResult result = run(Strings{"train"} + small_run(folder_ / "run"), {});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_CONTAINS(result.err, "no PyTorch 2.", "set STEPFORGE_TORCH");
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(Moved, RefusesAPyTorchOfAnotherMinorVersion) {
  const ProgramResult result = run(Strings{"train"} + small_run(folder_ / "run"),
                                   {"STEPFORGE_TORCH=" + another_torch(folder_).string()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_CONTAINS(result.err, "is PyTorch 1.13.1, but this program was built for 2.");
}

TEST(InItsBuildFolder, TheProgramToldOfAPyTorchOfAnotherMinorVersionRefusesItThoughItsOwnIsThere) {
  const TempFolder folder;
  const ProgramResult result = run_program(Strings{"train"} + small_run(folder / "run"), "",
                                           {"STEPFORGE_TORCH=" + another_torch(folder).string()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_CONTAINS(result.err, "is PyTorch 1.13.1, but this program was built for 2.");
  EXPECT_FALSE(fs::exists(folder / "run"));
}

}  // namespace
}  // namespace stepforge::testing
