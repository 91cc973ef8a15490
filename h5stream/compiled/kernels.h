/* The kernels one after the other; what includes this has said for which processor, and how the table is called. */

#include "copy.h"
#include "given.h"
#include "scatter.h"
#include "planes.h"
#include "read.h"
#include "boxes.h"
#include "heap.h"
#include "files.h"
#include "order.h"
#include "sparse.h"
#include "moments.h"
#include "functions.h"
