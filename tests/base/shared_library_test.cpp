// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/shared_library.h"

#include <filesystem>

#include <elf.h>
#include <gtest/gtest.h>
#include <link.h>

#include "stepforge/base/error.h"
#include "tests/support/dice.h"
#include "tests/support/temp_folder.h"
#include "tests/support/throws.h"
#include "tests/support/write_text.h"

namespace stepforge::testing {
namespace {

/// A library that every program of this project has loaded.
const std::string& a_library() {
  static const std::string bytes = [] {
    std::string path;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* found) {
          const std::string name = info->dlpi_name;
          if (name.find("libstdc++") != std::string::npos) *static_cast<std::string*>(found) = name;
          return 0;
        },
        &path);
    return read_file(path);
  }();
  return bytes;
}

class SharedLibrary : public ::testing::Test {
 protected:
  std::optional<std::string> section(const std::string& library, const std::string& name) const {
    write_text(folder_ / "x.so", library);
    return library_section(FileReader(folder_ / "x.so"), name);
  }
  std::string refusal(const std::string& library) const {
    return message_of<FormatError>([&] { section(library, ".dynamic"); });
  }
  TempFolder folder_;
};

/// The library with another number at a byte of the file's header.
template <typename Number>
std::string with(size_t at, Number number) {
  std::string changed = a_library();
  changed.replace(at, sizeof number, reinterpret_cast<const char*>(&number), sizeof number);
  return changed;
}

TEST_F(SharedLibrary, HasTheSectionsThatItsListNames) {
  const auto dynamic = section(a_library(), ".dynamic");
  ASSERT_TRUE(dynamic.has_value());
  EXPECT_EQ(dynamic->size() % sizeof(Elf64_Dyn), 0U);
  EXPECT_EQ(section(a_library(), ".stepforge_plugin"), std::nullopt);
  EXPECT_EQ(section(a_library(), ".text"), std::nullopt) << "too large";
}

TEST_F(SharedLibrary, CutOffAnywhereIsRefused) {
  const size_t size = a_library().size();
  for (size_t kept = 0; kept < size; kept += size / 40) {
    const std::string reason = refusal(a_library().substr(0, kept));
    EXPECT_TRUE(contains(reason, "is cut off") || contains(reason, "too short")) << kept << ": " << reason;
  }
  EXPECT_CONTAINS(refusal(a_library().substr(0, size - 1)), "x.so is cut off");
}

TEST_F(SharedLibrary, CopiedInHalfIsRefused) {
  std::string half = a_library();
  half.replace(half.size() / 2, std::string::npos, std::string(half.size() - half.size() / 2, '\0'));
  EXPECT_CONTAINS(refusal(half), "x.so is cut off or damaged");
}

TEST_F(SharedLibrary, OfAnotherKindIsRefused) {
  EXPECT_CONTAINS(refusal(std::string(4096, 'x')), "does not begin as an ELF file");
  EXPECT_CONTAINS(refusal(with(EI_CLASS, char{ELFCLASS32})), "another kind of processor");
  EXPECT_CONTAINS(refusal(with(offsetof(Elf64_Ehdr, e_machine), uint16_t{EM_S390})),
                  "another kind of processor");
  EXPECT_CONTAINS(refusal(with(offsetof(Elf64_Ehdr, e_type), uint16_t{ET_REL})), "not a shared library");
  EXPECT_CONTAINS(refusal(with(offsetof(Elf64_Ehdr, e_phoff), ~uint64_t{0})), "the list of segments");
  EXPECT_CONTAINS(refusal(with(offsetof(Elf64_Ehdr, e_shoff), ~uint64_t{0})), "the list of sections");
}

TEST_F(SharedLibrary, DamagedAnywhereIsReadOrRefused) {
  Dice dice(1);
  int refused = 0;
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::string damaged = a_library();
    for (int i = 0; i < 4; ++i)
      damaged.at(static_cast<size_t>(dice.below(4096))) = static_cast<char>(dice.below(256));
    try {
      section(damaged, ".dynamic");
    } catch (const FormatError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 10);
}

}  // namespace
}  // namespace stepforge::testing
