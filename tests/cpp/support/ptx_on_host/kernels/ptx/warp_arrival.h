// Made of other functions of kernels/ptx, it is its own twin.
#pragma once

#include "../../../../../../kernels/ptx/warp_arrival.h"
