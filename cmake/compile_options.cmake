# What every target of this project is compiled with.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE}")
endif()

# Casts are specified to the bit: the compiler may not fuse x * y + z behind our back.
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
                    -ffp-contract=off)
# A unique symbol binds a library to its process: dlclose() would not unmap it.
add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>)
if(OCTOFOLD_SANITIZE)
  add_compile_options(-fsanitize=${OCTOFOLD_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${OCTOFOLD_SANITIZE})
  if(OCTOFOLD_SANITIZE MATCHES address)  # it stops at null too, and checks of it take minutes
    add_compile_options(-fno-sanitize=null)
  endif()
endif()
