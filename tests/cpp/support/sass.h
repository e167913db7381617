// Looks into a cubin without a toolkit: which machine instructions a kernel has.
#pragma once

#include <cstdint>
#include <cstring>
#include <elf.h>
#include <string_view>
#include <vector>

namespace octofold::test {

// The low 9 bits of an instruction's first word, which name the operation; read off what nvdisasm
// shows for sm_90a.
enum class SassOperation : std::uint32_t {
  kQgmma = 0x1F3,          // FP8 product of a warpgroup
  kLdl = 0x183,            // load from local memory: a spilled register
  kStl = 0x187,            // store to it
  kEndCollective = 0x11B,  // after an exchange between lanes that were in different branches
};

/// How often the operation occurs in the code sections of a cubin (an ELF file of 16-byte
/// instructions).
inline int count_operations(const std::vector<char>& cubin, SassOperation operation) {
  const auto read = [&]<typename T>(T& value, std::size_t offset) {
    if (offset + sizeof(T) > cubin.size()) return false;
    std::memcpy(&value, cubin.data() + offset, sizeof(T));
    return true;
  };
  Elf64_Ehdr file{};
  Elf64_Shdr names{};
  if (!read(file, 0) || std::memcmp(file.e_ident, ELFMAG, SELFMAG) != 0 ||
      !read(names, file.e_shoff + file.e_shstrndx * sizeof(Elf64_Shdr))) {
    return -1;
  }
  int count = 0;
  for (int i = 0; i < file.e_shnum; ++i) {
    Elf64_Shdr section{};
    if (!read(section, file.e_shoff + static_cast<std::size_t>(i) * sizeof(section))) return -1;
    const std::string_view name(cubin.data() + names.sh_offset + section.sh_name);
    if (!name.starts_with(".text.")) continue;
    for (std::size_t offset = 0; offset + 16 <= section.sh_size; offset += 16) {
      std::uint64_t word = 0;
      if (!read(word, section.sh_offset + offset)) return -1;
      count += (word & 0x1FF) == static_cast<std::uint32_t>(operation);
    }
  }
  return count;
}

}  // namespace octofold::test
