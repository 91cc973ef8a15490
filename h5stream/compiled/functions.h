/* The kernels as functions of Python: arguments are checked, the GIL is released, and the work is done.

Arrays come by the buffer protocol. Checked are their types, shapes and lengths, and numbers that nothing else would stop;
what addresses and row numbers lead to is the caller's promise. `_native.pyi` says what each argument is. */

/* --- Arguments ---------------------------------------------------------------------------------------------- */

/* An argument: a number where it has no codes, else an array of a type among these. */
typedef struct {
    const char *name, *codes; /* codes as Python's struct has them; `F` and `D` are complex */
    int axes, columns;        /* of an array; with `columns` 0 as many as there are */
    int same;                 /* one more than the place of the argument that has as many rows; 0 if it may have any */
    int is_written;
} Parameter;

typedef struct {
    union { int64_t number; void *at; };
    int64_t count, columns, nbytes; /* of an array: along the first axis, along the second, bytes of an element */
    char code;
} Value;

enum { MOST_ARGUMENTS = 24 };

typedef struct {
    Value value[MOST_ARGUMENTS];
    Py_buffer held[MOST_ARGUMENTS];
    int held_count;
} Call;

#define NUMBER(NAME) {.name = NAME}
#define PLACES(NAME, SAME) {.name = NAME, .codes = "iq", .axes = 1, .same = SAME}
#define LONGS(NAME, SAME) {.name = NAME, .codes = "q", .axes = 1, .same = SAME}
#define TABLE(NAME, COLUMNS) {.name = NAME, .codes = "q", .axes = 2, .columns = COLUMNS}
#define BYTES(NAME) {.name = NAME, .codes = "B", .axes = 1}
#define ARRAY(NAME, CODES, AXES, SAME) {.name = NAME, .codes = CODES, .axes = AXES, .same = SAME}
#define WRITTEN(NAME, CODES, AXES, SAME) {.name = NAME, .codes = CODES, .axes = AXES, .same = SAME, .is_written = 1}

/* The arguments with which scattering kernels end; the first of them has place `AT`. */
#define WHERE(AT) PLACES("rows", 0), PLACES("batch", AT + 1), PLACES("within", AT + 1), LONGS("slots", 0), \
                  NUMBER("field_offset"), NUMBER("row_nbytes")
#define WHERE_SPANS(AT) PLACES("rows", 0), PLACES("lengths", 0), PLACES("batch", AT + 1), PLACES("within", AT + 1), \
                        LONGS("slots", 0)

/* Return the code of an array's type, whatever the system calls it; 0 for one in a foreign byte order. */
static char code_of(const Py_buffer *view)
{
    const char *format = view->format ? view->format : "B";
    if (*format == '@' || *format == '=')
        format++;
    if (*format == 'l' || *format == 'L')
        return view->itemsize == 8 ? (char)(*format + 5) : *format == 'l' ? 'i' : 'I';
    if (*format == 'Z')
        return format[1] == 'f' ? 'F' : format[1] == 'd' ? 'D' : 0;
    return format[1] ? 0 : *format;
}

static int refuse(const char *function, const Parameter *of, const char *why)
{
    PyErr_Format(PyExc_ValueError, "%s: %s %s", function, of->name, why);
    return 0;
}

/* Take an array, and hold its buffer. */
static int take_array(Call *call, const char *function, const Parameter *of, PyObject *given, Value *value)
{
    Py_buffer *view = call->held + call->held_count;
    if (PyObject_GetBuffer(given, view, PyBUF_STRIDES | PyBUF_FORMAT) < 0)
        return 0;
    call->held_count++;
    value->code = code_of(view);
    if (!value->code || !strchr(of->codes, value->code)) {
        PyErr_Format(PyExc_TypeError, "%s: %s has type %s, and must be one of %s", function, of->name, view->format, of->codes);
        return 0;
    }
    if (view->ndim != of->axes || (of->axes == 2 && of->columns && view->shape[1] != of->columns))
        return refuse(function, of, "has another shape than it must have");
    if (view->len && !PyBuffer_IsContiguous(view, 'C'))
        return refuse(function, of, "is not contiguous: copy it by numpy.ascontiguousarray");
    if (view->len && (uintptr_t)view->buf % (uintptr_t)(view->itemsize < 8 ? view->itemsize : 8))
        return refuse(function, of, "is not aligned: copy it");
    if (of->is_written && view->readonly)
        return refuse(function, of, "cannot be written to");
    value->at = view->buf, value->count = view->shape[0], value->nbytes = view->itemsize;
    value->columns = of->axes == 2 ? view->shape[1] : 1;
    if (of->same && value->count != call->value[of->same - 1].count)
        return refuse(function, of, "has another length than what it belongs to");
    return 1;
}

static int take_number(const char *function, const Parameter *of, PyObject *given, Value *value)
{
    value->number = PyLong_AsLongLong(given);
    if (value->number != -1 || !PyErr_Occurred())
        return 1;
    if (!PyErr_ExceptionMatches(PyExc_OverflowError))
        return 0;
    PyErr_Clear();
    return refuse(function, of, "has more than 64 bits");
}

static void release(Call *call)
{
    while (call->held_count)
        PyBuffer_Release(call->held + --call->held_count);
}

/* Take all arguments of a call; return whether they are what they must be. */
static int take(Call *call, const char *function, const Parameter *parameters, Py_ssize_t count, PyObject *const *given,
                Py_ssize_t given_count)
{
    call->held_count = 0;
    if (given_count != count) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, and was given %zd", function, count, given_count);
        return 0;
    }
    for (Py_ssize_t k = 0; k < count; k++) {
        const Parameter *of = parameters + k;
        if (!(of->codes ? take_array(call, function, of, given[k], call->value + k)
                        : take_number(function, of, given[k], call->value + k))) {
            release(call);
            return 0;
        }
    }
    return 1;
}

/* Begin a function: its parameters follow, and `v` are their values. */
#define FUNCTION(NAME, ...)                                                                                            \
    static PyObject *py_##NAME(PyObject *module, PyObject *const *given, Py_ssize_t given_count)                       \
    {                                                                                                                  \
        static const Parameter parameters[] = {__VA_ARGS__};                                                           \
        static const char name[] = #NAME;                                                                              \
        Call call;                                                                                                     \
        const Value *const v = call.value;                                                                             \
        (void)module;                                                                                                  \
        if (!take(&call, name, parameters, sizeof parameters / sizeof *parameters, given, given_count))                \
            return NULL;

/* Refuse arguments that do not go together. */
#define MUST(CONDITION, WHY)                                                                                           \
    if (!(CONDITION)) {                                                                                                \
        release(&call);                                                                                                \
        PyErr_Format(PyExc_ValueError, "%s: %s", name, WHY);                                                           \
        return NULL;                                                                                                   \
    }

#define WITHOUT_GIL(...)                                                                                               \
    Py_BEGIN_ALLOW_THREADS;                                                                                            \
    __VA_ARGS__;                                                                                                       \
    Py_END_ALLOW_THREADS

/* Bring rows to their places, without the GIL, if each batch has a slot. */
#define TO_SLOTS(TO, ...)                                                                                              \
    int are_slots;                                                                                                     \
    WITHOUT_GIL(if ((are_slots = have_slots(TO))) { __VA_ARGS__; });                                                   \
    MUST(are_slots, "batch leads out of slots")

#define END_WITH(RESULT)                                                                                               \
        PyObject *const result = RESULT;                                                                               \
        release(&call);                                                                                                \
        return result;                                                                                                 \
    }

#define END END_WITH(Py_NewRef(Py_None))

/* End a function whose kernel gave a status. */
#define END_WITH_STATUS(STATUS, RESULT)                                                                                \
    if ((STATUS) == NO_MEMORY) {                                                                                       \
        release(&call);                                                                                                \
        return PyErr_NoMemory();                                                                                       \
    }                                                                                                                  \
    MUST((STATUS) != WRONG, "numbers in the arrays lead out of the arrays")                                            \
    END_WITH(RESULT)

static Longs longs(const Value *v) { return (Longs){v->at, v->count}; }

static Numbers numbers(const Value *v) { return (Numbers){v->at, v->count, v->nbytes == 8}; }

static char *address(const Value *v) { return (char *)(intptr_t)v->number; }

/* Return where rows go, from the arguments of `WHERE`. */
static Where where(const Value *v)
{
    return (Where){.rows = numbers(v), .batch = numbers(v + 1), .within = numbers(v + 2), .slots = longs(v + 3),
                   .offset = v[4].number, .row_nbytes = v[5].number};
}

/* Return where spans go, from the arguments of `WHERE_SPANS`. */
static Where where_spans(const Value *v)
{
    return (Where){.rows = numbers(v), .lengths = numbers(v + 1), .batch = numbers(v + 2), .within = numbers(v + 3),
                   .slots = longs(v + 4)};
}

/* Return whether lengths are given for each row, or for none. */
static int are_lengths_of(const Value *rows) { return !rows[1].count || rows[1].count == rows->count; }

#define LENGTHS_FIT "lengths must be as many as rows, or none"

/* Return whether all numbers are at least 0, and below a limit. */
static int are_below(const Value *v, int64_t limit)
{
    const int64_t *const each = v->at;
    int is_inside = 1;
    for (int64_t k = 0; k < v->count; k++)
        is_inside &= each[k] >= 0 && each[k] < limit;
    return is_inside;
}

/* --- scatter.c ---------------------------------------------------------------------------------------------- */

FUNCTION(scatter, NUMBER("source"), NUMBER("source_stride"), TABLE("segments", 3), WHERE(3))
    const Where to = where(v + 3);
    TO_SLOTS(&to, scatter(&to, address(v), v[1].number, v[2].at, v[2].count); fence());
END

FUNCTION(scatter_spans, NUMBER("source"), NUMBER("source_stride"), TABLE("segments", 3), WHERE_SPANS(3),
         NUMBER("field_offset"), NUMBER("row_nbytes"))
    Where to = where_spans(v + 3);
    MUST(v[4].count == v[3].count, "lengths must be as many as rows")
    to.offset = v[8].number, to.row_nbytes = v[9].number;
    TO_SLOTS(&to, scatter_spans(&to, address(v), v[1].number, v[2].at, v[2].count); fence());
END

FUNCTION(scatter_stack, NUMBER("source"), NUMBER("chunk_nbytes"), LONGS("source_stride", 0), TABLE("segments", 3),
         LONGS("edges", 0), LONGS("piece", 0), LONGS("low", 6), LONGS("high", 6), WHERE_SPANS(8), NUMBER("field_offset"),
         NUMBER("row_nbytes"))
    Where to = where_spans(v + 8);
    const Stack of = {
        .chunk_nbytes = v[1].number, .strides = longs(v + 2), .edges = longs(v + 4), .piece = longs(v + 5),
        .segments = v[3].at, .low = v[6].at, .high = v[7].at,
    };
    int status;
    MUST(are_lengths_of(v + 8), LENGTHS_FIT)
    to.offset = v[13].number, to.row_nbytes = v[14].number;
    TO_SLOTS(&to, status = scatter_stack(&to, address(v), of, v[3].count); fence());
END_WITH_STATUS(status, Py_NewRef(Py_None))

FUNCTION(gather_any, NUMBER("base"), WHERE(1))
    const Where to = where(v + 1);
    TO_SLOTS(&to, gather_any(&to, address(v)));
END

FUNCTION(spread, PLACES("rows", 0), PLACES("batch", 1), PLACES("within", 1), PLACES("lengths", 1),
         WRITTEN("every_row", "iq", 1, 0), WRITTEN("every_batch", "iq", 1, 5), WRITTEN("every_within", "iq", 1, 5))
    int status;
    WITHOUT_GIL(status = spread(numbers(v), numbers(v + 1), numbers(v + 2), numbers(v + 3), numbers(v + 4), numbers(v + 5),
                                numbers(v + 6)));
END_WITH_STATUS(status, Py_NewRef(Py_None))

FUNCTION(copy_past_cache, NUMBER("target"), NUMBER("source"), NUMBER("count"))
    MUST(v[2].number >= 0, "count is negative")
    WITHOUT_GIL(copy_past_cache(address(v), address(v + 1), v[2].number); fence());
END

FUNCTION(fill_behind, NUMBER("target"), NUMBER("stride"), LONGS("used", 0), NUMBER("fill"), NUMBER("fill_nbytes"))
    const int64_t *const used = v[2].at, stride = v[1].number;
    MUST(v[4].number > 0, "fill_nbytes must be positive")
    WITHOUT_GIL(for (int64_t i = 0; i < v[2].count; i++)
        copy_fill(address(v) + i * stride + used[i], stride - used[i], address(v + 3), v[4].number));
END

/* --- planes.c ----------------------------------------------------------------------------------------------- */

/* Return whether each byte plane has so many bytes in the source. */
static int are_planes_inside(const Value *source, const Value *planes, int64_t count)
{
    const int64_t *const each = planes->at;
    for (int64_t k = 0; k < planes->count; k++)
        if (each[k] < 0 || count < 0 || each[k] > source->count - count)
            return 0;
    return 1;
}

/* Return whether so many elements have room in memory. */
static int fits(const Value *out, int64_t count, int64_t width)
{
    int64_t nbytes;
    return count >= 0 && !__builtin_mul_overflow(count, width, &nbytes) && nbytes <= out->count;
}

FUNCTION(scatter_planes, BYTES("source"), LONGS("planes", 0), TABLE("segments", 3), NUMBER("row_elements"), WHERE(4))
    const Where to = where(v + 4);
    MUST(v[1].count == 2 || v[1].count == 4 || v[1].count == 8, "planes must be 2, 4 or 8")
    MUST(are_planes_inside(v, v + 1, 0), "planes begin outside of the source")
    TO_SLOTS(&to, scatter_planes(&to, v[0].at, longs(v + 1), v[2].at, v[2].count, v[3].number));
END

FUNCTION(gather_planes_stack, BYTES("source"), LONGS("planes", 0), NUMBER("count"), NUMBER("chunk_nbytes"), NUMBER("chunks"),
         WRITTEN("out", "B", 1, 0))
    const int64_t count = v[2].number, nbytes = v[3].number, chunks = v[4].number, width = v[1].count;
    const Value chunk = {.count = nbytes};
    MUST(fits(v, chunks, nbytes) && nbytes >= 0 && are_planes_inside(&chunk, v + 1, count), "planes lie outside of the source")
    MUST(fits(v + 5, count, width) && fits(v + 5, chunks, count * width), "out is too short")
    WITHOUT_GIL(for (int64_t c = 0; c < chunks; c++)
        gather_planes((char *)v[0].at + c * nbytes, longs(v + 1), count, (char *)v[5].at + c * count * width));
END

FUNCTION(gather_leaf, BYTES("source"), NUMBER("stride"), LONGS("places", 0), NUMBER("count"), WRITTEN("out", "B", 1, 0))
    const int64_t stride = v[1].number, count = v[3].number;
    MUST(fits(v + 4, count, v[2].count), "out is too short")
    MUST(!count || (stride >= 0 && fits(v, count - 1, stride)
                    && are_planes_inside(v, v + 2, (count - 1) * stride + 1)), "elements lie outside of the source")
    WITHOUT_GIL(gather_leaf(v[0].at, stride, longs(v + 2), count, v[4].at));
END

/* --- read.c ------------------------------------------------------------------------------------------------- */

/* Return whether every extent's runs are there, and every run has a field, and nothing is reversed in part. */
static int are_runs_sound(const Reading *of, int64_t fields)
{
    for (int64_t e = 0; e < of->extent_count; e++) {
        const int64_t *const extent = of->extents[e];
        if (extent[0] < 0 || extent[2] < 0 || extent[3] < 0 || extent[3] >= extent[4] || extent[4] > of->run_count)
            return 0;
    }
    for (int64_t r = 0; r < of->run_count; r++) {
        const int64_t *const run = of->runs[r];
        if (run[2] < 0 || run[5] < 1 || run[2] % run[5] || run[6] < 0 || run[6] >= fields || of->fill_nbytes[run[6]] < 1)
            return 0;
    }
    return 1;
}

#define RUNS_FIT "extents and runs do not fit one another, their fields and their fills"

FUNCTION(read_rows, NUMBER("descriptor"), LONGS("numbers", 0), LONGS("offsets", 0), NUMBER("across"), NUMBER("chunk_rows"),
         NUMBER("first_row"), NUMBER("stride"), TABLE("extents", 5), TABLE("runs", 7), LONGS("fills", 0), LONGS("fill_nbytes", 10),
         NUMBER("scratch"), NUMBER("room"), NUMBER("gap"), NUMBER("whole_rows"), WRITTEN("counts", "q", 1, 0), WHERE_SPANS(16),
         LONGS("field_offsets", 10), LONGS("row_nbytes", 10))
    Reading of = {
        .descriptor = (int)v[0].number, .numbers = longs(v + 1), .offsets = longs(v + 2), .across = v[3].number,
        .chunk_rows = v[4].number, .first_row = v[5].number, .stride = v[6].number, .extents = v[7].at,
        .extent_count = v[7].count, .runs = v[8].at, .run_count = v[8].count, .fills = v[9].at, .fill_nbytes = v[10].at,
        .scratch = address(v + 11), .room = v[12].number, .gap = v[13].number, .whole_rows = v[14].number,
        .counts = v[15].at, .to = where_spans(v + 16), .field_offsets = v[21].at, .row_nbytes = v[22].at};
    int status;
    MUST(of.chunk_rows > 0 && of.stride > 0 && of.gap >= 0, "chunk_rows and stride must be positive, gap not negative")
    MUST(v[15].count == 5, "counts must be 5")
    MUST(!of.numbers.count || of.numbers.count == of.offsets.count, "numbers must be as many as offsets, or none")
    MUST(are_lengths_of(v + 16), LENGTHS_FIT)
    MUST(are_runs_sound(&of, v[9].count), RUNS_FIT)
    TO_SLOTS(&of.to, status = read_rows(&of));
END_WITH_STATUS(status, PyBool_FromLong(status))

FUNCTION(place_rows, LONGS("sources", 0), NUMBER("stride"), TABLE("extents", 5), TABLE("runs", 7), LONGS("fills", 0),
         LONGS("fill_nbytes", 5), WHERE_SPANS(6), LONGS("offsets", 5), LONGS("row_nbytes", 5))
    Reading of = {.stride = v[1].number, .extents = v[2].at, .extent_count = v[2].count, .runs = v[3].at,
                  .run_count = v[3].count, .fills = v[4].at, .fill_nbytes = v[5].at, .to = where_spans(v + 6),
                  .field_offsets = v[11].at, .row_nbytes = v[12].at};
    MUST(v[0].count == v[2].count, "sources must be as many as extents")
    MUST(are_lengths_of(v + 6), LENGTHS_FIT)
    MUST(are_runs_sound(&of, v[4].count), RUNS_FIT)
    TO_SLOTS(&of.to, place_stretch(&of, of.extents, of.extent_count, v[0].at); fence());
END

FUNCTION(room_of_each, NUMBER("extents"), NUMBER("largest"), NUMBER("room"))
END_WITH(PyLong_FromLongLong(room_of_each(v[0].number, v[1].number, v[2].number)))

FUNCTION(count_reads, PLACES("rows", 0), PLACES("lengths", 0), NUMBER("most_gap"))
    int64_t reads, skipped;
    MUST(v[0].count && are_lengths_of(v), "rows must be some, and " LENGTHS_FIT)
    WITHOUT_GIL(count_reads(numbers(v), numbers(v + 1), v[2].number, &reads, &skipped));
END_WITH(Py_BuildValue("(LL)", (long long)reads, (long long)skipped))

FUNCTION(read_each, NUMBER("descriptor"), LONGS("offsets", 0), LONGS("nbytes", 2), NUMBER("target"))
    int64_t done;
    MUST(are_below(v + 2, INT64_MAX), "nbytes must not be negative")
    WITHOUT_GIL(done = read_each((int)v[0].number, longs(v + 1), v[2].at, address(v + 3)));
END_WITH(PyLong_FromLongLong(done))

FUNCTION(inflate_each, NUMBER("function"), NUMBER("decompressor"), NUMBER("source"), LONGS("at", 0), LONGS("nbytes", 4),
         NUMBER("target"), NUMBER("chunk_nbytes"))
    int64_t done;
    MUST(v[6].number >= 0 && are_below(v + 3, INT64_MAX) && are_below(v + 4, INT64_MAX), "at and nbytes must not be negative")
    WITHOUT_GIL(done = inflate_each(address(v), address(v + 1), address(v + 2), longs(v + 3), v[4].at, address(v + 5), v[6].number));
END_WITH(PyLong_FromLongLong(done))

/* --- boxes.c ------------------------------------------------------------------------------------------------ */

/* Return whether the tables of boxes have as many axes, and as many elements as they say. */
static int are_axes_sound(const Boxes *of, const Value *offsets, const Value *sizes, const Value *follow)
{
    if (of->axes < 1 || offsets->count != of->axes || (follow && follow->count != of->axes) || of->element < 1)
        return 0;
    for (int64_t axis = 0; axis < of->axes; axis++)
        if (((int64_t *)sizes->at)[axis] < 1 || ((int64_t *)sizes->at)[axis] > of->most)
            return 0;
    return 1;
}

FUNCTION(place_boxes, LONGS("sources", 0), TABLE("strides", 0), TABLE("low", 0), TABLE("high", 0), TABLE("shapes", 0),
         LONGS("begins", 1), LONGS("ends", 1), TABLE("offsets", 0), LONGS("sizes", 0), LONGS("follow", 0), NUMBER("mode"),
         NUMBER("element"), TABLE("origins", 0), PLACES("batch", 13), PLACES("within", 13), LONGS("slots", 0),
         NUMBER("field_offset"), NUMBER("row_nbytes"))
    const Boxes of = {
        .axes = v[8].count, .regions = v[0].count, .most = v[7].columns, .sources = v[0].at, .strides = v[1].at,
        .low = v[2].at, .high = v[3].at, .shapes = v[4].at, .begins = v[5].at, .ends = v[6].at, .offsets = v[7].at,
        .sizes = v[8].at, .follow = v[9].at, .mode = v[10].number, .element = v[11].number, .origins = v[12].at,
        .boxes = v[12].count,
        .to = {.batch = numbers(v + 13), .within = numbers(v + 14), .slots = longs(v + 15), .offset = v[16].number,
               .row_nbytes = v[17].number}};
    int status;
    MUST(are_axes_sound(&of, v + 7, v + 8, v + 9) && v[12].columns == of.axes, "offsets, sizes and origins do not fit")
    for (int k = 1; k <= 4; k++)
        MUST(v[k].count == of.regions && (v[k].columns == of.axes || !of.regions), "regions must have as many axes as boxes")
    for (int64_t r = 0; r < of.regions; r++)
        MUST(of.begins[r] >= 0 && of.ends[r] <= of.boxes, "begins and ends lead out of the boxes")
    TO_SLOTS(&of.to, status = place_boxes(&of));
END_WITH_STATUS(status, Py_NewRef(Py_None))

FUNCTION(fill_outside, NUMBER("row"), TABLE("shapes", 0), TABLE("offsets", 0), LONGS("sizes", 0), NUMBER("element"),
         TABLE("origins", 0), PLACES("batch", 6), PLACES("within", 6), LONGS("slots", 0), NUMBER("field_offset"),
         NUMBER("row_nbytes"))
    const Boxes of = {
        .axes = v[3].count, .most = v[2].columns, .shapes = v[1].at, .offsets = v[2].at, .sizes = v[3].at,
        .element = v[4].number, .origins = v[5].at, .boxes = v[5].count,
        .to = {.batch = numbers(v + 6), .within = numbers(v + 7), .slots = longs(v + 8), .offset = v[9].number,
               .row_nbytes = v[10].number}};
    int status;
    MUST(are_axes_sound(&of, v + 2, v + 3, NULL) && v[5].columns == of.axes, "offsets, sizes and origins do not fit")
    MUST(v[1].count == of.boxes && v[1].columns == of.axes, "shapes must be those of the boxes")
    TO_SLOTS(&of.to, status = fill_outside(&of, address(v)));
END_WITH_STATUS(status, Py_NewRef(Py_None))

/* --- order.c ------------------------------------------------------------------------------------------------ */

FUNCTION(shuffled_into, WRITTEN("numbers", "iq", 1, 0), WRITTEN("edges", "q", 1, 0), WRITTEN("state", "Q", 1, 0))
    const int64_t count = v[0].count, buckets = v[1].count - 1;
    MUST(buckets > 0 && !(buckets & (buckets - 1)), "edges must be one more than a power of two")
    MUST(v[2].count == 4, "state must be 4 numbers")
    MUST(count <= (v[0].nbytes == 8 ? INT64_C(1) << 32 : INT64_C(1) << 31), "numbers have too few bits")
    WITHOUT_GIL(shuffled_into(v[0].at, count, v[0].nbytes == 8, v[1].at, buckets, v[2].at));
END

FUNCTION(deal_groups, LONGS("groups", 0), LONGS("edges", 0), LONGS("strata", 0), LONGS("samples", 3),
         ARRAY("weights", "d", 1, 0), LONGS("by_size", 0), NUMBER("total"), WRITTEN("lacks", "q", 2, 0), WRITTEN("homes", "q", 1, 0))
    int status;
    MUST(v[5].count && v[5].count == v[7].columns && are_below(v + 5, v[7].columns), "by_size must name the columns of lacks")
    MUST(are_below(v, v[1].count - 1) && are_below(v, v[8].count), "groups are not among edges and homes")
    MUST(are_below(v + 1, v[2].count + 1), "edges lead out of strata")
    MUST(are_below(v + 2, v[7].count) && are_below(v + 2, v[4].count), "strata are not among lacks and weights")
    WITHOUT_GIL(status = deal_groups(longs(v), v[1].at, v[2].at, v[3].at, v[4].at, longs(v + 5), v[6].number, v[7].at, v[8].at));
END_WITH_STATUS(status, Py_NewRef(Py_None))

FUNCTION(order_by_place, PLACES("batch", 0), PLACES("within", 1), WRITTEN("order", "i", 1, 1))
    const Where of = {.rows = numbers(v), .batch = numbers(v), .within = numbers(v + 1)};
    int status;
    MUST(v[0].count <= INT32_MAX, "samples are too many")
    WITHOUT_GIL(status = order_by_place(&of, v[2].at));
END_WITH_STATUS(status, PyBool_FromLong(status))

FUNCTION(lay_stretches, PLACES("order", 0), PLACES("batch", 1), PLACES("within", 1), PLACES("counts", 1),
         WRITTEN("edges", "q", 1, 0), WRITTEN("places", "iq", 1, 1), WRITTEN("lengths", "q", 1, 1), WRITTEN("starts", "q", 1, 0),
         WRITTEN("offsets", "q", 1, 0))
    int status;
    MUST(v[4].count > 0 && v[7].count == v[0].count + 1 && v[8].count == v[0].count + v[4].count - 1,
         "starts must be one more than samples, offsets as many as samples and batches")
    WITHOUT_GIL(status = lay_stretches(numbers(v), numbers(v + 1), numbers(v + 2), numbers(v + 3), v[4].at, v[4].count,
                                       numbers(v + 5), v[6].at, v[7].at, v[8].at));
END_WITH_STATUS(status, Py_NewRef(Py_None))

FUNCTION(begins_of_stretches, PLACES("order", 0), PLACES("batch", 1), LONGS("edges", 0), LONGS("starts", 0),
         WRITTEN("begins", "q", 1, 1))
    int status;
    MUST(v[3].count >= v[0].count, "starts must be as many as samples")
    WITHOUT_GIL(status = begins_of_stretches(numbers(v), numbers(v + 1), longs(v + 2), longs(v + 3), v[4].at));
END_WITH_STATUS(status, Py_NewRef(Py_None))

/* --- heap.h and files.h -------------------------------------------------------------------------------------- */

FUNCTION(read_objects, NUMBER("descriptor"), NUMBER("file_nbytes"), NUMBER("length_nbytes"), LONGS("address", 0),
         LONGS("index", 4), LONGS("nbytes", 4), LONGS("wanted", 4), LONGS("target", 4), WRITTEN("buffer", "B", 1, 0),
         NUMBER("gap_nbytes"), WRITTEN("failed", "?", 1, 4))
    const Heap of = {.descriptor = (int)v[0].number, .file_nbytes = v[1].number, .length_nbytes = v[2].number,
                     .count = v[3].count, .room = v[8].count, .gap_nbytes = v[9].number, .address = v[3].at,
                     .index = v[4].at, .nbytes = v[5].at, .wanted = v[6].at, .target = v[7].at, .buffer = v[8].at,
                     .failed = v[10].at};
    int64_t total = 0, ranges = 0;
    int status;
    MUST(v[2].number > 0 && v[2].number <= 8, "length_nbytes must be 1 to 8")
    WITHOUT_GIL(status = read_objects(&of, &total, &ranges));
END_WITH_STATUS(status, Py_BuildValue("(LL)", (long long)total, (long long)ranges))

FUNCTION(read_files, BYTES("paths"), LONGS("path_at", 0), LONGS("sizes", 2), LONGS("mtimes", 2), LONGS("inodes", 2),
         LONGS("which", 0), LONGS("offsets", 6), LONGS("nbytes", 6), LONGS("targets", 6))
    const Files of = {.paths = {v[0].at, v[0].count}, .path_at = v[1].at, .sizes = v[2].at, .mtimes = v[3].at, .inodes = v[4].at,
                      .count = v[1].count};
    int64_t done;
    MUST(v[0].count && !((const char *)v[0].at)[v[0].count - 1], "paths must end with a null")
    WITHOUT_GIL(done = read_files(&of, longs(v + 5), v[6].at, v[7].at, v[8].at));
END_WITH(PyLong_FromLongLong(done))

/* --- sparse.c ----------------------------------------------------------------------------------------------- */

#define COLUMN_CODES "bhiq"

/* Return whether each column that is wanted, and no other, has a place in a row of so many elements. */
static int are_places_of_columns(const int32_t *places, const uint8_t *is_wanted, int64_t count, int64_t wanted)
{
    int is_wrong = 0;
    for (int64_t k = 0; k < count; k++)
        is_wrong |= places[k] >= wanted || is_wanted[k] != (places[k] >= 0);
    return !is_wrong;
}

#define VALUE_CODES "?bBhHiIqQfdFD"

FUNCTION(least_and_most, ARRAY("columns", COLUMN_CODES, 1, 0))
    int64_t lowest, highest;
    MUST(v[0].count, "columns must be some")
    WITHOUT_GIL(extremes(v[0].at, v[0].code, v[0].count, &lowest, &highest));
END_WITH(Py_BuildValue("(LL)", (long long)lowest, (long long)highest))

FUNCTION(add_sparse, ARRAY("values", VALUE_CODES, 1, 0), ARRAY("columns", COLUMN_CODES, 1, 1), LONGS("offsets", 0),
         ARRAY("places", "i", 1, 0), NUMBER("longest"), WRITTEN("out", VALUE_CODES, 2, 0))
    int64_t wrong = NONE_WRONG;
    int status;
    MUST(v[5].code == v[0].code && v[5].count == v[2].count - 1, "out must have the type of values, and offsets are one more")
    MUST(v[4].number >= 0 && v[4].number < INT32_MAX / 2, "longest is too large")
    WITHOUT_GIL(status = add_sparse((Bytes){v[0].at, v[0].count}, v[0].code, v[0].nbytes, v[1].at, v[1].code, longs(v + 2),
                                    longs(v + 3), v[4].number, v[5].at, v[5].columns, &wrong));
END_WITH_STATUS(status, PyLong_FromLongLong(wrong))

FUNCTION(read_dense, NUMBER("descriptor"), LONGS("value_offsets", 0), NUMBER("value_chunk"), LONGS("column_offsets", 0),
         NUMBER("column_chunk"), NUMBER("row_start"), PLACES("rows", 0), PLACES("lengths", 7), PLACES("batch", 7),
         PLACES("within", 7), LONGS("slots", 0), WRITTEN("values", VALUE_CODES, 1, 0), WRITTEN("columns", COLUMN_CODES, 1, 12),
         ARRAY("places", "i", 1, 0), ARRAY("is_wanted", "B", 1, 14), WRITTEN("row", VALUE_CODES, 1, 0),
         WRITTEN("counts", "q", 1, 0))
    Reading of = {.descriptor = (int)v[0].number, .offsets = longs(v + 1), .chunk_rows = v[2].number,
                  .first_row = v[5].number, .counts = v[16].at, .to = where_spans(v + 6)};
    int64_t wrong = NONE_WRONG;
    int status;
    MUST(v[15].code == v[11].code, "row must have the type of values")
    MUST(are_places_of_columns(v[13].at, v[14].at, v[13].count, v[15].count), "places and is_wanted do not fit row")
    MUST(v[2].number > 0 && v[4].number > 0, "value_chunk and column_chunk must be positive")
    MUST(v[11].count < INT32_MAX / 2 && v[16].count == 5, "values must be fewer, and counts 5")
    of.to.row_nbytes = v[15].nbytes;
    TO_SLOTS(&of.to, status = read_dense(&of, longs(v + 3), v[4].number, v[11].at, v[11].code, v[11].nbytes, v[11].count, v[12].at,
                                    v[12].code, v[12].nbytes, v[13].at, v[13].count, v[14].at, v[15].at, v[15].count, &wrong));
END_WITH_STATUS(status, PyLong_FromLongLong(wrong))

/* --- moments.c ---------------------------------------------------------------------------------------------- */

FUNCTION(add_moments, ARRAY("values", "fd", 2, 0), ARRAY("shift", "d", 1, 0), WRITTEN("sums", "d", 1, 2),
         WRITTEN("squares", "d", 1, 2), WRITTEN("least", "fd", 1, 2), WRITTEN("most", "fd", 1, 2))
    MUST(v[1].count == v[0].columns, "sums must be as many as columns")
    MUST(v[4].code == v[0].code && v[5].code == v[0].code, "least and most must have the type of values")
    WITHOUT_GIL(add_moments(v[0].at, v[0].code == 'd', v[0].count, v[0].columns, v[1].at, v[2].at, v[3].at, v[4].at, v[5].at));
END

FUNCTION(add_short_integers, ARRAY("values", "bBhH", 2, 0), WRITTEN("sums", "q", 1, 0), WRITTEN("squares", "q", 1, 2))
    MUST(v[1].count == v[0].columns, "sums must be as many as columns")
    WITHOUT_GIL(add_short_integers(v[0].at, v[0].code, v[0].count, v[0].columns, v[1].at, v[2].at));
END

FUNCTION(add_integers, ARRAY("values", "iIqQ", 2, 0), WRITTEN("sums", "q", 2, 0), WRITTEN("squares", "q", 2, 0))
    MUST(v[1].count == 3 && v[2].count == 5, "sums must have 3 limbs, squares 5")
    MUST(v[1].columns == v[0].columns && v[2].columns == v[0].columns, "sums must be as many as columns")
    WITHOUT_GIL(add_integers(v[0].at, v[0].code, v[0].count, v[0].columns, v[1].at, v[2].at));
END

FUNCTION(count_bytes, BYTES("values"), WRITTEN("counts", "q", 1, 0))
    MUST(v[1].count == 256, "counts must be 256")
    WITHOUT_GIL(count_bytes(v[0].at, v[0].count, v[1].at));
END

/* --- All of them --------------------------------------------------------------------------------------------- */

#define METHOD(NAME) {#NAME, (PyCFunction)(void (*)(void))py_##NAME, METH_FASTCALL, NULL}

PyMethodDef FUNCTIONS[] = {
    METHOD(add_integers), METHOD(add_moments), METHOD(add_short_integers), METHOD(add_sparse), METHOD(begins_of_stretches),
    METHOD(copy_past_cache), METHOD(count_bytes), METHOD(count_reads), METHOD(deal_groups), METHOD(fill_behind),
    METHOD(fill_outside), METHOD(gather_any), METHOD(gather_leaf),
    METHOD(gather_planes_stack), METHOD(inflate_each), METHOD(lay_stretches), METHOD(least_and_most), METHOD(order_by_place),
    METHOD(place_boxes), METHOD(place_rows), METHOD(read_dense), METHOD(read_each), METHOD(read_files),
    METHOD(read_objects), METHOD(read_rows), METHOD(room_of_each),
    METHOD(scatter), METHOD(scatter_planes), METHOD(scatter_spans), METHOD(scatter_stack),
    METHOD(shuffled_into), METHOD(spread), {0}};
