// Every source, for the kernels that take any.
#pragma once

#include "kernels/cast/sources/activation.h"
#include "kernels/cast/sources/activation_gradient.h"
#include "kernels/cast/sources/gathered.h"
#include "kernels/cast/sources/normed.h"
#include "kernels/cast/sources/source.h"
