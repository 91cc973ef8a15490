/* All of the kernels, of one kind of processor: `FUNCTIONS` and `TYPES` are what Python has of them.

They are one translation unit, so that loops have inside them what they call. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <complex.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#define NONE_WRONG (-(INT64_C(1) << 62)) /* what `add_sparse` returns where each value is in a column that there is */

extern PyMethodDef functions[], functions_avx2[];

enum { SCRATCH_TYPE, PIPELINE_TYPE, POOL_TYPE, QUEUE_TYPE, TYPE_COUNT };

extern PyType_Spec types[TYPE_COUNT], types_avx2[TYPE_COUNT];

/* What a module has of its own. */
typedef struct { PyObject *types[TYPE_COUNT]; } State;
