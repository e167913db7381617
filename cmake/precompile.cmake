# Precompiled headers: what most files include of others' libraries, parsed once for a build. Headers
# of our own are not in them, so that each file still compiles by its own includes of those.
option(OCTOFOLD_PRECOMPILE_HEADERS "Parse the headers of other libraries once" ON)

set(OCTOFOLD_STANDARD_HEADERS
  <algorithm> <array> <bit> <cmath> <cstddef> <cstdint> <cstring> <filesystem> <functional>
  <initializer_list> <limits> <map> <memory> <mutex> <optional> <set> <span> <string> <string_view>
  <thread> <tuple> <type_traits> <unordered_map> <unordered_set> <utility> <variant> <vector>)

# Compiles a target with the headers of another. GCC takes them only where the flags agree and the
# owner has no definitions that the target lacks.
function(octofold_precompile target owner)
  if(OCTOFOLD_PRECOMPILE_HEADERS)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()
