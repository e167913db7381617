// Looks into a cubin without a toolkit: which machine instructions a kernel has.
#pragma once

#include <elf.h>

#include "support/test.h"

namespace octofold::test {

// The low 9 bits of an instruction's first word, which name the operation; read off what nvdisasm
// shows for sm_90a.
enum class SassOperation : std::uint32_t {
  kQgmma = 0x1F3,          // FP8 product of a warpgroup
  kHgmma = 0x1F0,          // 16-bit product of a warpgroup
  kHmma = 0x03C,           // 16-bit product of a warp
  kQmma = 0x07A,           // FP8 product of a warp, on 8.9 and 12.0: known by its counts alone
  kLdl = 0x183,            // load from local memory: a spilled register
  kStl = 0x187,            // store to it
  kEndCollective = 0x11B,  // after an exchange between lanes that were in different branches
  kAcqbulk = 0x02E,        // griddepcontrol.wait
  kNop = 0x118,            // what fills up a section
};

/// The operations in the code sections of a cubin (an ELF file of 16-byte instructions), in their
/// order; nothing of what is no such file.
inline std::optional<std::vector<SassOperation>> operations(const std::vector<char>& cubin) {
  const auto read = [&]<typename T>(T& value, std::size_t offset) {
    if (offset + sizeof(T) > cubin.size()) return false;
    std::memcpy(&value, cubin.data() + offset, sizeof(T));
    return true;
  };
  Elf64_Ehdr file{};
  Elf64_Shdr names{};
  if (!read(file, 0) || std::memcmp(file.e_ident, ELFMAG, SELFMAG) != 0 ||
      !read(names, file.e_shoff + file.e_shstrndx * sizeof(Elf64_Shdr))) {
    return {};
  }
  std::vector<SassOperation> found;
  for (int i = 0; i < file.e_shnum; ++i) {
    Elf64_Shdr section{};
    if (!read(section, file.e_shoff + as_size(i) * sizeof(section))) return {};
    const std::string_view name(cubin.data() + names.sh_offset + section.sh_name);
    if (!name.starts_with(".text.")) continue;
    for (std::size_t offset = 0; offset + 16 <= section.sh_size; offset += 16) {
      std::uint64_t word = 0;
      if (!read(word, section.sh_offset + offset)) return {};
      found.push_back(static_cast<SassOperation>(word & 0x1FF));
    }
  }
  return found;
}

/// How often the operation occurs in a cubin; -1 for what is none.
inline int count_operations(const std::vector<char>& cubin, SassOperation operation) {
  const auto found = operations(cubin);
  return found ? static_cast<int>(std::ranges::count(*found, operation)) : -1;
}

/// How many instructions a cubin has, but for those that fill up; -1 for what is none.
inline int count_instructions(const std::vector<char>& cubin) {
  const auto found = operations(cubin);
  return found ? static_cast<int>(found->size() - std::ranges::count(*found, SassOperation::kNop))
               : -1;
}

}  // namespace octofold::test
