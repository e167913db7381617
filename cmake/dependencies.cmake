# Third-party libraries. Header-only or linked statically, so that liboctofold.so needs nothing but
# the C++ run-time library.
find_package(Threads REQUIRED)

macro(octofold_require package debian_package)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "${package} was not found. On Debian or Ubuntu: "
                        "apt-get install ${debian_package}")
  endif()
endmacro()

octofold_require(fmt libfmt-dev 9)
octofold_require(nlohmann_json nlohmann-json3-dev 3.11)

# Header-only: XXH_INLINE_ALL.
find_path(XXHASH_INCLUDE_DIR xxhash.h)
if(NOT XXHASH_INCLUDE_DIR)
  message(FATAL_ERROR "xxhash.h was not found. On Debian or Ubuntu: apt-get install libxxhash-dev")
endif()
add_library(octofold_xxhash INTERFACE)
target_include_directories(octofold_xxhash SYSTEM INTERFACE ${XXHASH_INCLUDE_DIR})
target_compile_definitions(octofold_xxhash INTERFACE XXH_INLINE_ALL)

find_path(ZSTD_INCLUDE_DIR zstd.h)
find_library(ZSTD_LIBRARY libzstd.a)
if(NOT ZSTD_INCLUDE_DIR OR NOT ZSTD_LIBRARY)
  message(FATAL_ERROR "The static zstd was not found. On Debian or Ubuntu: "
                      "apt-get install libzstd-dev")
endif()
add_library(octofold_zstd INTERFACE)
target_include_directories(octofold_zstd SYSTEM INTERFACE ${ZSTD_INCLUDE_DIR})
target_link_libraries(octofold_zstd INTERFACE ${ZSTD_LIBRARY})
