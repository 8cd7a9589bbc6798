// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/temp_folder.h"

namespace stepforge::testing {
namespace {

TEST(VectorInstructions, NamesTheWidest) {
  EXPECT_EQ(vector_instructions({.instruction_sets = {"sse4_2", "avx", "avx2", "fma", "avx512f"}}),
            "AVX-512");
  EXPECT_EQ(vector_instructions({.instruction_sets = {"sse4_2", "avx", "avx2", "fma"}}), "AVX2");
  EXPECT_EQ(vector_instructions({.instruction_sets = {"sse4_2", "avx"}}), "SSE");
  EXPECT_EQ(vector_instructions({.instruction_sets = {"asimd", "bf16"}}), "NEON");
}

TEST(CpuInfo, CountsThreadsAndCoresOverSockets) {
  std::string text;
  // Two sockets of two cores of two threads.
  for (int thread = 0; thread < 8; ++thread) {
    text += "processor\t: " + std::to_string(thread) +
            "\nmodel name\t: Test CPU @ 3GHz\nphysical id\t: " + std::to_string(thread / 4) +
            "\ncore id\t\t: " + std::to_string(thread % 2) +
            "\nflags\t\t: fpu sse4_2 avx avx2 avx512f avx512fancy\n\n";
  }
  const CpuFacts facts = parse_cpuinfo(text);
  EXPECT_EQ(facts.model, "Test CPU @ 3GHz");
  EXPECT_EQ(facts.threads, 8);
  EXPECT_EQ(facts.cores, 4);
  EXPECT_EQ(facts.instruction_sets, (std::vector<std::string>{"sse4_2", "avx", "avx2", "avx512f"}));
}

TEST(CpuInfo, CountsThreadsAsCoresIfTheKernelListsNoCores) {
  const CpuFacts facts =
      parse_cpuinfo("processor : 0\nFeatures : fp asimd\n\nprocessor : 1\nFeatures : fp asimd");
  EXPECT_EQ(facts.threads, 2);
  EXPECT_EQ(facts.cores, 2);
  EXPECT_EQ(facts.instruction_sets, (std::vector<std::string>{"asimd"}));
}

TEST(CpuInfo, AnEmptyTextGivesNoFacts) {
  const CpuFacts facts = parse_cpuinfo("");
  EXPECT_EQ(facts.threads, 0);
  EXPECT_EQ(facts.model, "");
}

TEST(MemInfo, ReadsKibibytes) {
  const MemoryFacts facts = parse_meminfo("MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable:   1024 kB\n");
  EXPECT_EQ(facts.total, 2048 * 1024);
  EXPECT_EQ(facts.available, 1024 * 1024);
  EXPECT_EQ(parse_meminfo("MemTotal: lots\nMemAvailable: -5 kB").total, 0);
  EXPECT_EQ(parse_meminfo("MemTotal: 9223372036854775807 kB").total, INT64_MAX / 1024 * 1024);
}

TEST(MemoryLimit, IsANumberOrAbsent) {
  EXPECT_EQ(parse_memory_limit("1073741824\n"), 1073741824);
  EXPECT_EQ(parse_memory_limit("max\n"), std::nullopt);
  EXPECT_EQ(parse_memory_limit(""), std::nullopt);
}

TEST(Machine, FactsOfThisMachineCanBeRead) {
  const MachineFacts facts = read_machine_facts();
  EXPECT_GT(facts.cpu.threads, 0);
  EXPECT_GT(facts.usable_threads, 0);
  EXPECT_GT(facts.memory.total, 0);
  EXPECT_TRUE(facts.kernel.starts_with("Linux "));
}

TEST(FreeDisk, IsThatOfTheNearestExistingFolder) {
  const TempFolder folder;
  EXPECT_TRUE(free_disk_bytes(folder / "not/yet/there").has_value());
  EXPECT_TRUE(free_disk_bytes("relative-and-missing").has_value());
}

TEST(MappedLibrary, FindsALoadedLibrary) {
  EXPECT_EQ(mapped_library("libc.so.6").filename(), "libc.so.6");
  EXPECT_EQ(mapped_library("libnothing.so"), "");
}

}  // namespace
}  // namespace stepforge::testing
