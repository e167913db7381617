#include <elf.h>
#include <filesystem>
#include <fstream>
#include <unistd.h>

#include "core/shared_object.h"
#include "support/test.h"

namespace octofold::core {
namespace {

template <typename T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

std::string note(Elf64_Word type, const std::string& content) {
  return bytes_of(Elf64_Nhdr{4, static_cast<Elf64_Word>(content.size()), type}) +
         std::string("GNU\0", 4) + content;
}

// A shared object that is nothing but its notes, a segment for each.
std::string elf_with(const std::vector<std::string>& notes) {
  Elf64_Ehdr head{};
  std::memcpy(head.e_ident, ELFMAG, SELFMAG);
  head.e_phoff = sizeof(head);
  head.e_phnum = static_cast<Elf64_Half>(notes.size());
  std::string segments, contents;
  for (const std::string& content : notes) {
    Elf64_Phdr segment{};
    segment.p_type = PT_NOTE;
    segment.p_offset = sizeof(head) + notes.size() * sizeof(segment) + contents.size();
    segments += bytes_of(segment);
    contents += content;
  }
  return bytes_of(head) + segments + contents;
}

std::string id_in(const std::string& bytes) {
  std::string file = (std::filesystem::temp_directory_path() / "octofold-id-XXXXXX").string();
  close(mkstemp(file.data()));
  std::ofstream(file, std::ios::binary) << bytes;
  std::string id = build_id(file);
  std::filesystem::remove(file);
  return id;
}

const std::string kId("\x00\x1f\xff", 3);

TEST(BuildIdTest, IsFoundBehindOtherNotes) {
  EXPECT_EQ(id_in(elf_with({note(NT_GNU_BUILD_ID, kId)})), "001fff");
  EXPECT_EQ(id_in(elf_with({note(NT_GNU_PROPERTY_TYPE_0, "property"), note(NT_GNU_BUILD_ID, kId)})),
            "001fff");
}

TEST(BuildIdTest, IsEmptyWhereThereIsNone) {
  EXPECT_EQ(id_in(elf_with({})), "");
  EXPECT_EQ(id_in(elf_with({note(NT_GNU_PROPERTY_TYPE_0, "property")})), "");
  EXPECT_EQ(id_in("not an object file, but longer than the head of one would be"), "");
  EXPECT_EQ(build_id("/no/such/file"), "");
}

TEST(BuildIdTest, NoFileCutShortHasOne) {
  const std::string whole = elf_with({note(NT_GNU_BUILD_ID, kId)});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(id_in(whole.substr(0, size)), "") << size;
  }
}

}  // namespace
}  // namespace octofold::core
