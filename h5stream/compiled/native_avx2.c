/* The kernels for processors of x86 with AVX2. */

#include "native.h"

#ifdef __x86_64__
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif

#define WITH_AVX2
#define FUNCTIONS functions_avx2
#define TYPES types_avx2
#include "kernels.h"

#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
