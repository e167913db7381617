#include "octofold/batch_invariant.h"

#include <tvm/ffi/function.h>

#include "error.h"

namespace octofold::bindings {

void set_batch_invariant(bool enabled) { octofold::set_batch_invariant(enabled); }

bool is_batch_invariant() { return octofold::is_batch_invariant(); }

OCTOFOLD_EXPORT(set_batch_invariant)
OCTOFOLD_EXPORT(is_batch_invariant)

}  // namespace octofold::bindings
