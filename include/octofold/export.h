// Marks what the shared library shows to the outside; everything else is hidden.
#pragma once

#if defined(_WIN32)
#error "Octofold builds on Linux only"
#endif

#define OCTOFOLD_API __attribute__((visibility("default")))
