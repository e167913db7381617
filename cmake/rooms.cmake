# A room is a folder of src/ and one object library. Its doors are the folders that it may include
# from, as doors.json has them: each room compiles with an include path of its own that holds links
# to just those, so that an include through a wall does not compile.
#
#   octofold_room(cpu SOURCES gemm.cpp …  LIBRARIES …)
#
# Headers are included as "<room>/<file>" ("core/check.h", "kernels/shared/cast_rule.h"); the
# public API is open to all.
#
# A room's files compile several as one, which takes half the time. With OCTOFOLD_BUNDLE_ROOMS=OFF,
# as in the preset dev and in the wheel for x86_64, each compiles alone: by its own includes, and by
# itself when it is what changes.
option(OCTOFOLD_BUNDLE_ROOMS "Compile several files of a room as one" ON)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/doors.json")
file(READ "${PROJECT_SOURCE_DIR}/doors.json" OCTOFOLD_DOORS_JSON)

# A JSON array of texts, found by its keys, as a list.
function(octofold_json_list result)
  set(list "")
  string(JSON length LENGTH "${OCTOFOLD_DOORS_JSON}" ${ARGN})
  if(length GREATER 0)
    math(EXPR last "${length} - 1")
    foreach(index RANGE ${last})
      string(JSON item GET "${OCTOFOLD_DOORS_JSON}" ${ARGN} ${index})
      list(APPEND list "${item}")
    endforeach()
  endif()
  set(${result} "${list}" PARENT_SCOPE)
endfunction()

function(octofold_room room)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  octofold_json_list(doors rooms src/${room} doors)
  list(TRANSFORM ARG_SOURCES PREPEND "${PROJECT_SOURCE_DIR}/src/${room}/")
  add_library(octofold_${room} OBJECT ${ARG_SOURCES})
  set_target_properties(octofold_${room} PROPERTIES
    UNITY_BUILD ${OCTOFOLD_BUNDLE_ROOMS} UNITY_BUILD_BATCH_SIZE 6)
  if(OCTOFOLD_BUNDLE_ROOMS)  # an included file's unnamed namespace is taken for a header's
    target_compile_options(octofold_${room} PRIVATE
      $<IF:$<CXX_COMPILER_ID:GNU>,-Wno-subobject-linkage,-Wno-shadow>)
  endif()
  octofold_open_doors(octofold_${room} src/${room} ${doors})
  set_property(GLOBAL APPEND PROPERTY OCTOFOLD_ROOMS ${room})
  # A room's tests see what the room sees.
  set_property(TARGET octofold_${room} PROPERTY OCTOFOLD_DOORS src/${room} ${doors})
  target_link_libraries(octofold_${room} PUBLIC ${ARG_LIBRARIES} PRIVATE fmt::fmt-header-only)
  if(NOT room STREQUAL core)
    octofold_precompile(octofold_${room} octofold_core)
  endif()
endfunction()

# Gives a target an include path with links to these folders of the project only. `config` stands
# for the folders that the map of doors says: those that host and device share.
function(octofold_open_doors target)
  set(folders ${ARGN})
  if("config" IN_LIST folders)
    list(REMOVE_ITEM folders config)
    octofold_json_list(shared groups config)
    foreach(folder IN LISTS shared)
      cmake_path(GET folder PARENT_PATH family)
      if(NOT family IN_LIST folders)  # else it is there already, inside its family
        list(APPEND folders ${folder})
      endif()
    endforeach()
  endif()
  set(doors "${PROJECT_BINARY_DIR}/doors/${target}")
  file(REMOVE_RECURSE "${doors}")
  foreach(folder IN LISTS folders)
    string(REGEX REPLACE "^src/" "" link "${folder}")
    cmake_path(GET link PARENT_PATH parent)
    file(MAKE_DIRECTORY "${doors}/${parent}")
    file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${folder}" "${doors}/${link}" SYMBOLIC)
  endforeach()
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/include" "${doors}")
endfunction()
