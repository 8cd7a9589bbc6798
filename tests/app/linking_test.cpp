// SPDX-License-Identifier: Apache-2.0
// Which libraries the program, the core and the torch library need and map.
#include <array>
#include <cstdio>
#include <sstream>

#include "tests/app/program.h"
#include "tests/support/paths.h"

namespace stepforge::testing {
namespace {

/// The NEEDED entries of an ELF file.
Strings needed(const fs::path& file) {
  FILE* pipe = popen(format("readelf -d '{}'", file.string()).c_str(), "r");
  std::string text;
  std::array<char, 4096> part{};
  while (const size_t size = fread(part.data(), 1, part.size(), pipe)) text.append(part.data(), size);
  EXPECT_EQ(pclose(pipe), 0);
  Strings names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t open = line.find('[');
    if (contains(line, "(NEEDED)") && open != std::string::npos) {
      names.push_back(line.substr(open + 1, line.find(']') - open - 1));
    }
  }
  EXPECT_FALSE(names.empty()) << text;
  return names;
}

bool any_contains(const Strings& names, const std::vector<std::string>& parts) {
  for (const auto& name : names) {
    for (const auto& part : parts) {
      if (contains(name, part)) return true;
    }
  }
  return false;
}

TEST(Linking, TheProgramAndTheCoreNeedNoTorch) {
  for (const char* file : {"stepforge", "libstepforge_core.so"}) {
    const Strings names = needed(binary_dir() / file);
    EXPECT_FALSE(any_contains(names, {"torch", "libc10", "cuda"})) << join(names, ", ");
  }
}

TEST(Linking, TheTorchLibraryNeedsLibtorchCpuButNoCuda) {
  const Strings names = needed(binary_dir() / "libstepforge_torch.so");
  EXPECT_TRUE(any_contains(names, {"libtorch_cpu.so"}));
  EXPECT_FALSE(any_contains(names, {"cuda", "libtorch_python"})) << join(names, ", ");
}

TEST(Linking, PlanConfigAndHelpMapNoLibtorch) {
  for (const Strings& args : {Strings{"plan", "--preset", "debug"}, Strings{"config", "show"},
                              Strings{"--help"}, Strings{"version"}}) {
    const ProgramResult result = run_program(args, "", {"LD_DEBUG=files"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_CONTAINS(result.err, "libstepforge_core.so");
    EXPECT_FALSE(contains(result.err, "libtorch")) << join(args, " ");
    EXPECT_FALSE(contains(result.err, "libstepforge_torch")) << join(args, " ");
  }
}

TEST(Linking, TrainMapsLibtorchCpuAndNeverLibtorchCuda) {
  const TempFolder folder;
  Child child(Strings{"train"} + small_run(folder / "run") + Strings{"training.steps=100000"});
  ASSERT_TRUE(child.wait_until([&] { return fs::exists(folder / "run" / "run.json"); })) << child.err();
  std::ifstream file(format("/proc/{}/maps", child.pid()));
  const std::string maps((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  child.signal(SIGKILL);
  child.wait();
  EXPECT_CONTAINS(maps, "libtorch_cpu.so");
  EXPECT_FALSE(contains(maps, "libtorch_cuda"));
  EXPECT_FALSE(contains(maps, "libtorch_python"));
}

}  // namespace
}  // namespace stepforge::testing
