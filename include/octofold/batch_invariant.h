// The same bits at every batch size.
#pragma once

#include "octofold/export.h"

namespace octofold {

/// For all further calls of this process: whether a row of a result depends on that row of the
/// input alone, not on how many rows there are nor on which place it has. Arguments have a
/// `batch_invariant` of their own, for one call; either is enough. docs/batch-invariance.md says
/// what that holds for, what holds without it, and what it costs.
///
/// At first: OCTOFOLD_BATCH_INVARIANT, "1" or "0" (the default). Threads that multiply meanwhile
/// see the old value or the new one.
OCTOFOLD_API void set_batch_invariant(bool enabled);

/// True if it is on for all calls. Throws Error(kInvalidArgument) for a value of the variable that
/// cannot be used.
OCTOFOLD_API bool is_batch_invariant();

}  // namespace octofold
