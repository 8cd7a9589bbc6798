// SPDX-License-Identifier: Apache-2.0
#include "stepforge/base/shared_library.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include <elf.h>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"

namespace stepforge {

namespace {

constexpr uint64_t kMaxSectionBytes = 4096;

#if defined(__x86_64__)
constexpr unsigned kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr unsigned kMachine = EM_AARCH64;
#else
#error "add the processor's number in ELF files"
#endif

/// A table that the loader reads: the tags of its address and its length. A length tag of 0: no entry states the length.
struct LoaderTable {
  int64_t address_tag;
  int64_t bytes_tag;
  uint64_t least_bytes;
};
constexpr auto kLoaderTables = std::to_array<LoaderTable>({
    {DT_STRTAB, DT_STRSZ, 1},
    {DT_SYMTAB, 0, sizeof(Elf64_Sym)},
    {DT_GNU_HASH, 0, 16},
    {DT_HASH, 0, 8},
    {DT_VERSYM, 0, 2},
    {DT_VERNEED, 0, sizeof(Elf64_Verneed)},
    {DT_VERDEF, 0, sizeof(Elf64_Verdef)},
    {DT_RELA, DT_RELASZ, 0},
    {DT_JMPREL, DT_PLTRELSZ, 0},
    {DT_RELR, DT_RELRSZ, 0},
    {DT_INIT_ARRAY, DT_INIT_ARRAYSZ, 0},
    {DT_FINI_ARRAY, DT_FINI_ARRAYSZ, 0},
    {DT_INIT, 0, 1},
    {DT_FINI, 0, 1},
});

bool fits(uint64_t begin, uint64_t bytes, uint64_t size) {
  return begin <= size && bytes <= size - begin;
}

class LibraryReader {
 public:
  explicit LibraryReader(const FileReader& file) : file_(file) {}

  std::optional<std::string> section(std::string_view name) {
    read_header();
    read_segments();
    read_dynamic();
    check_loader_tables();
    check_symbols(std::max(used_symbols(DT_RELA, DT_RELASZ), used_symbols(DT_JMPREL, DT_PLTRELSZ)));
    return find_section(name);
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    throw FormatError(format("{} {}", file_.path().string(), reason));
  }

  /// `count` items of a table, which must be inside the file.
  template <typename Item>
  std::vector<Item> table(uint64_t offset, uint64_t count, std::string_view what) const {
    const auto size = static_cast<uint64_t>(file_.size());
    if (!fits(offset, 0, size) || count > (size - offset) / sizeof(Item)) {
      refuse(format("is cut off or damaged: {} should be at byte {}, but the file has {} bytes", what, offset,
                    size));
    }
    std::vector<Item> items(count);
    file_.read(static_cast<int64_t>(offset), std::as_writable_bytes(std::span(items)));
    return items;
  }

  void read_header() {
    if (file_.size() < static_cast<int64_t>(sizeof header_)) refuse("is not a shared library: too short");
    file_.read(0, std::as_writable_bytes(std::span(&header_, 1)));
    if (std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0)
      refuse("is not a shared library: it does not begin as an ELF file");
    if (header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_ident[EI_DATA] != ELFDATA2LSB ||
        header_.e_machine != kMachine)
      refuse("is for another kind of processor");
    if (header_.e_type != ET_DYN || header_.e_phentsize != sizeof(Elf64_Phdr) ||
        header_.e_shentsize != sizeof(Elf64_Shdr))
      refuse("is an ELF file, but not a shared library");
  }

  void read_segments() {
    for (const auto& segment : table<Elf64_Phdr>(header_.e_phoff, header_.e_phnum, "the list of segments")) {
      if (!fits(segment.p_offset, segment.p_filesz, static_cast<uint64_t>(file_.size()))) {
        refuse(format("is cut off or damaged: a segment has {} bytes from byte {}, but the file has {} bytes",
                      segment.p_filesz, segment.p_offset, file_.size()));
      }
      if (segment.p_type == PT_DYNAMIC) dynamic_segment_ = segment;
      if (segment.p_type != PT_LOAD) continue;
      const uint64_t page = std::max<uint64_t>(segment.p_align, 1);
      const uint64_t least = loaded_.empty() ? 0 : loaded_.back().p_vaddr + loaded_.back().p_memsz;
      if (segment.p_filesz > segment.p_memsz || segment.p_vaddr < least ||
          !fits(segment.p_vaddr, segment.p_memsz, uint64_t{1} << 40) || (page & (page - 1)) != 0 ||
          segment.p_vaddr % page != segment.p_offset % page)
        refuse("is damaged: its segments do not fit together");
      loaded_.push_back(segment);
    }
    if (loaded_.empty() || dynamic_segment_.p_type != PT_DYNAMIC)
      refuse("is cut off or damaged: it has no segments to load");
  }

  /// The offset in the file of `bytes` bytes at an address; nullopt if they are not all loaded from the file.
  std::optional<uint64_t> place_of(uint64_t address, uint64_t bytes) const {
    for (const Elf64_Phdr& segment : loaded_) {
      if (address >= segment.p_vaddr && fits(address - segment.p_vaddr, bytes, segment.p_filesz))
        return segment.p_offset + (address - segment.p_vaddr);
    }
    return std::nullopt;
  }

  bool is_writable(uint64_t address, uint64_t bytes) const {
    return std::any_of(loaded_.begin(), loaded_.end(), [&](const Elf64_Phdr& segment) {
      return (segment.p_flags & PF_W) != 0 && address >= segment.p_vaddr &&
             fits(address - segment.p_vaddr, bytes, segment.p_memsz);
    });
  }

  void read_dynamic() {
    const Elf64_Phdr& segment = dynamic_segment_;
    if (place_of(segment.p_vaddr, segment.p_filesz) != segment.p_offset)
      refuse("is damaged: the loader's table is not loaded");
    dynamic_ = table<Elf64_Dyn>(segment.p_offset, segment.p_filesz / sizeof(Elf64_Dyn), "the loader's table");
    const auto end = std::find_if(dynamic_.begin(), dynamic_.end(),
                                  [](const Elf64_Dyn& entry) { return entry.d_tag == DT_NULL; });
    if (end == dynamic_.end()) refuse("is damaged: the loader's table has no end");
    dynamic_.erase(end, dynamic_.end());
  }

  std::optional<uint64_t> dynamic(int64_t tag) const {
    const auto last = std::find_if(dynamic_.rbegin(), dynamic_.rend(),
                                   [&](const Elf64_Dyn& entry) { return entry.d_tag == tag; });
    return last == dynamic_.rend() ? std::nullopt : std::optional(last->d_un.d_val);
  }

  void check_loader_tables() const {
    for (const LoaderTable& kind : kLoaderTables) {
      const auto address = dynamic(kind.address_tag);
      if (!address) continue;
      const uint64_t bytes = std::max(dynamic(kind.bytes_tag).value_or(0), kind.least_bytes);
      if (!place_of(*address, bytes)) {
        refuse(format("is cut off or damaged: table {} of the loader is not in the file", kind.address_tag));
      }
    }
    if (!dynamic(DT_STRTAB) || !dynamic(DT_SYMTAB) || !dynamic(DT_STRSZ) ||
        (!dynamic(DT_GNU_HASH) && !dynamic(DT_HASH)))
      refuse("is cut off or damaged: it has no symbols");
    for (const Elf64_Dyn& entry : dynamic_) {
      const bool names = entry.d_tag == DT_NEEDED || entry.d_tag == DT_SONAME || entry.d_tag == DT_RPATH ||
                         entry.d_tag == DT_RUNPATH;
      if (names && entry.d_un.d_val >= *dynamic(DT_STRSZ)) refuse("is damaged: a name is outside its table");
    }
  }

  /// Checks a table of relocations, and returns the number of symbols that it needs.
  uint64_t used_symbols(int64_t address_tag, int64_t bytes_tag) const {
    const auto address = dynamic(address_tag);
    const uint64_t bytes = dynamic(bytes_tag).value_or(0);
    uint64_t symbols = 0;
    if (!address || bytes == 0) return symbols;
    const uint64_t offset = *place_of(*address, bytes);  // checked before
    for (const auto& change :
         table<Elf64_Rela>(offset, bytes / sizeof(Elf64_Rela), "a table of relocations")) {
      if (ELF64_R_TYPE(change.r_info) == 0) continue;  // none
      if (!is_writable(change.r_offset, sizeof(uint64_t)))
        refuse("is damaged: a relocation is not in its memory");
      symbols = std::max<uint64_t>(symbols, ELF64_R_SYM(change.r_info) + 1);
    }
    return symbols;
  }

  void check_symbols(uint64_t symbols) const {
    const uint64_t bytes = *dynamic(DT_STRSZ);
    const auto offset = place_of(*dynamic(DT_SYMTAB), symbols * sizeof(Elf64_Sym));
    if (!offset) refuse("is cut off or damaged: the symbols are not in the file");
    for (const auto& symbol : table<Elf64_Sym>(*offset, symbols, "the table of symbols")) {
      if (symbol.st_name >= bytes) refuse("is damaged: a symbol's name is outside its table");
    }
    const auto strings = table<char>(*place_of(*dynamic(DT_STRTAB), bytes), bytes, "the table of names");
    if (strings.back() != '\0') refuse("is damaged: the table of names has no end");
  }

  std::optional<std::string> find_section(std::string_view name) const {
    const auto sections = table<Elf64_Shdr>(header_.e_shoff, header_.e_shnum, "the list of sections");
    for (const Elf64_Shdr& section : sections) {
      if (section.sh_type != SHT_NOBITS &&
          !fits(section.sh_offset, section.sh_size, static_cast<uint64_t>(file_.size())))
        refuse("is cut off or damaged: a section is not in the file");
    }
    if (header_.e_shstrndx >= sections.size()) return std::nullopt;
    const Elf64_Shdr& names = sections[header_.e_shstrndx];
    if (names.sh_type != SHT_STRTAB) refuse("is cut off or damaged: the list of sections has no names");
    const auto letters = table<char>(names.sh_offset, names.sh_size, "the names of sections");
    const std::string_view all(letters.data(), letters.size());
    const std::string wanted = std::string(name) + '\0';
    for (const Elf64_Shdr& section : sections) {
      if (section.sh_name > all.size() || all.substr(section.sh_name, wanted.size()) != wanted ||
          section.sh_type == SHT_NOBITS || section.sh_size > kMaxSectionBytes)
        continue;
      const auto bytes = table<char>(section.sh_offset, section.sh_size, "a section");
      return std::string(bytes.begin(), bytes.end());
    }
    return std::nullopt;
  }

  const FileReader& file_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Phdr> loaded_;
  Elf64_Phdr dynamic_segment_{};
  std::vector<Elf64_Dyn> dynamic_;  ///< without the end
};

}  // namespace

std::optional<std::string> library_section(const FileReader& file, std::string_view name) {
  return LibraryReader(file).section(name);
}

}  // namespace stepforge
