// All of Octofold's public API.
#pragma once

#include "octofold/activations.h"
#include "octofold/casts.h"
#include "octofold/checkpoint.h"
#include "octofold/error.h"
#include "octofold/gemm.h"
#include "octofold/gemm_form.h"
#include "octofold/info.h"
#include "octofold/kernel_cache.h"
#include "octofold/log.h"
#include "octofold/scale_layout.h"
#include "octofold/scaled_matrix.h"
#include "octofold/stream.h"
#include "octofold/tensor.h"
#include "octofold/tuning.h"
#include "octofold/types.h"
#include "octofold/vocabulary.h"
