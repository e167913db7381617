#include "jit/build_id.h"

#include <algorithm>
#include <cstring>
#include <elf.h>
#include <fstream>
#include <string_view>

#include "core/format.h"

namespace octofold::jit {
namespace {

template <typename T>
bool read_at(std::ifstream& file, std::uint64_t offset, T& value) {
  file.seekg(static_cast<std::streamoff>(offset));
  return static_cast<bool>(file.read(reinterpret_cast<char*>(&value), sizeof(value)));
}

// The note of a build ID: this, "GNU", the ID.
struct NoteHead {
  Elf64_Nhdr sizes;
  char owner[4];
};

}  // namespace

std::string build_id(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr head{};
  if (!read_at(file, 0, head) || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return "";
  for (int i = 0; i < head.e_phnum; ++i) {
    Elf64_Phdr segment{};
    if (!read_at(file, head.e_phoff + i * sizeof(segment), segment)) return "";
    if (segment.p_type != PT_NOTE) continue;
    NoteHead note{};
    if (!read_at(file, segment.p_offset, note)) return "";
    // Linkers give it a segment of its own, or put it first.
    const bool is_build_id = note.sizes.n_type == NT_GNU_BUILD_ID &&
                             std::string_view(note.owner, sizeof(note.owner)) ==
                                 std::string_view(ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU));
    if (!is_build_id) continue;
    std::string id;
    constexpr std::uint32_t kLongest = 64;
    for (std::uint32_t left = std::min(note.sizes.n_descsz, kLongest); left > 0; --left) {
      const int byte = file.get();
      if (byte == std::ifstream::traits_type::eof()) return "";
      id += core::format("{:02x}", byte);
    }
    return id;
  }
  return "";
}

}  // namespace octofold::jit
