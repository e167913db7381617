// Every source, for the kernels that take any.
#pragma once

#include "kernels/cast/sources/plain.h"
