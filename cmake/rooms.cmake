# A room is a folder of src/ and one object library. Its doors are the folders that it may include
# from: each room compiles with an include path of its own that holds links to just those, so that
# an include through a wall does not compile. docs/architecture.md draws the map.
#
#   octofold_room(cpu DOORS src/core kernels/config SOURCES gemm.cpp …  LIBRARIES …)
#
# Headers are included as "<room>/<file>" ("core/check.h", "kernels/config/cast_rule.h"); the
# public API is open to all.
function(octofold_room room)
  cmake_parse_arguments(ARG "" "" "DOORS;SOURCES;LIBRARIES" ${ARGN})
  list(TRANSFORM ARG_SOURCES PREPEND "${PROJECT_SOURCE_DIR}/src/${room}/")
  add_library(octofold_${room} OBJECT ${ARG_SOURCES})
  octofold_open_doors(octofold_${room} src/${room} ${ARG_DOORS})
  set_property(GLOBAL APPEND PROPERTY OCTOFOLD_ROOMS ${room})
  # A room's tests see what the room sees.
  set_property(TARGET octofold_${room} PROPERTY OCTOFOLD_DOORS src/${room} ${ARG_DOORS})
  target_link_libraries(octofold_${room} PUBLIC ${ARG_LIBRARIES} PRIVATE fmt::fmt-header-only)
  if(NOT room STREQUAL core)
    octofold_precompile(octofold_${room} octofold_core)
  endif()
endfunction()

# Gives a target an include path with links to these folders of the project only.
function(octofold_open_doors target)
  set(doors "${PROJECT_BINARY_DIR}/doors/${target}")
  file(REMOVE_RECURSE "${doors}")
  foreach(folder IN LISTS ARGN)
    string(REGEX REPLACE "^src/" "" link "${folder}")
    cmake_path(GET link PARENT_PATH parent)
    file(MAKE_DIRECTORY "${doors}/${parent}")
    file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${folder}" "${doors}/${link}" SYMBOLIC)
  endforeach()
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/include" "${doors}")
endfunction()
