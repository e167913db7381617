// Compiled by the door tests of tests/cpp/CMakeLists.txt, which name the header.
#include OCTOFOLD_HEADER
