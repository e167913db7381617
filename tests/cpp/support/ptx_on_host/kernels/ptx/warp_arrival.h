// Made of other functions of kernels/ptx, it is its own twin.
#pragma once

#include "../../../../../../kernels/ptx/mbarrier.h"
