# Wheels for any Linux since glibc 2.28 (PEP 600: manylinux_2_28), whatever this machine's is: Zig's C++
# compiler (Clang) knows the symbols of each glibc and links its C++ run-time library statically.
#
#   OCTOFOLD_WHEEL_MACHINE   x86_64 or aarch64
#   OCTOFOLD_WHEEL_ROOT      a folder with Debian's packages of the libraries for it, unpacked, and
#                            tvm-ffi's headers and library (scripts/manylinux_wheel.py makes it)
#   OCTOFOLD_ZIG             the program zig (`pip install ziglang`)
foreach(name IN ITEMS OCTOFOLD_WHEEL_MACHINE OCTOFOLD_WHEEL_ROOT OCTOFOLD_ZIG)
  if(NOT DEFINED ${name})
    message(FATAL_ERROR "cmake/toolchains/manylinux.cmake needs -D ${name}=… (`make release` gives it)")
  endif()
  list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ${name})
endforeach()

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${OCTOFOLD_WHEEL_MACHINE})
set(CMAKE_LIBRARY_ARCHITECTURE ${OCTOFOLD_WHEEL_MACHINE}-linux-gnu)
set(CMAKE_CXX_COMPILER ${OCTOFOLD_ZIG})
set(CMAKE_CXX_COMPILER_ARG1 "c++ -target ${OCTOFOLD_WHEEL_MACHINE}-linux-gnu.2.28")
set(CMAKE_CXX_FLAGS_INIT  # nothing of this machine goes along
    "-ffile-prefix-map=${OCTOFOLD_WHEEL_ROOT}/usr/= -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=")
set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)  # this machine's strip does not know others' files

# CMake calls these without arguments of their own.
foreach(tool IN ITEMS ar ranlib)
  set(script ${CMAKE_BINARY_DIR}/zig-${tool})
  file(WRITE ${script} "#!/bin/sh\nexec '${OCTOFOLD_ZIG}' ${tool} \"$@\"\n")
  file(CHMOD ${script} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  string(TOUPPER ${tool} name)
  set(CMAKE_${name} ${script})
endforeach()

set(CMAKE_FIND_ROOT_PATH ${OCTOFOLD_WHEEL_ROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
