// Reads the build ID of a shared object from its file, without opening it as one.
#pragma once

#include <string>

namespace octofold::jit {

/// The GNU build ID of an ELF file in hexadecimal digits; empty where the file is none, has none or
/// cannot be read. Format: elf(5), "Notes (Nhdr)", NT_GNU_BUILD_ID.
std::string build_id(const std::string& file);

}  // namespace octofold::jit
