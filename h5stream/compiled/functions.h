/* The kernels as functions of Python: arguments are checked, the GIL is released, and the work is done.

Arrays come by the buffer protocol. Checked are their types, shapes and lengths, and numbers that nothing else would stop;
what addresses and row numbers lead to is the caller's promise. `_native.pyi` says what each argument is. */

/* --- Arguments ---------------------------------------------------------------------------------------------- */

/* An argument: what an earlier call made where it has a kind, a number where it has no codes, else an array of a type among
these. */
typedef struct {
    const char *name, *codes; /* codes as Python's struct has them; `F` and `D` are complex */
    const char *kind;         /* the name of a capsule */
    int axes, columns;        /* of an array; with `columns` 0 as many as there are */
    int same;                 /* one more than the place of the argument that has as many rows; 0 if it may have any */
    int is_written;
} Parameter;

typedef struct {
    union { int64_t number; void *at; };
    int64_t count, columns, nbytes; /* of an array: along the first axis, along the second, bytes of an element */
    char code;
} Value;

enum { MOST_ARGUMENTS = 26 };

typedef struct {
    Value value[MOST_ARGUMENTS];
    Py_buffer held[MOST_ARGUMENTS];
    int held_count;
} Call;

#define NUMBER(NAME) {.name = NAME}
#define MADE(NAME, KIND) {.name = NAME, .kind = KIND}
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

static int take_made(const char *function, const Parameter *of, PyObject *given, Value *value)
{
    if (!PyCapsule_IsValid(given, of->kind))
        return refuse(function, of, "is none that this module made");
    value->at = PyCapsule_GetPointer(given, of->kind);
    return 1;
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
        if (!(of->codes  ? take_array(call, function, of, given[k], call->value + k)
              : of->kind ? take_made(function, of, given[k], call->value + k)
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
        _Static_assert(sizeof parameters / sizeof *parameters <= MOST_ARGUMENTS, "more arguments than there is room for"); \
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

/* Numbers that a planner works on with the GIL, at most: a few hundred microseconds. A thread that lets it go must wait for it
as long as the one that runs Python is let, which is 5 ms, and a window takes dozens of such steps. */
enum { BRIEF = 1 << 18 };

#define WITHOUT_GIL_IF_LONG(COUNT, ...)                                                                                \
    PyThreadState *const released = (COUNT) > BRIEF ? PyEval_SaveThread() : NULL;                                      \
    __VA_ARGS__;                                                                                                       \
    if (released)                                                                                                      \
    PyEval_RestoreThread(released)

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

FUNCTION(unshuffle, BYTES("source"), NUMBER("element"), WRITTEN("out", "B", 1, 1))
    MUST(v[1].number > 0, "element must be positive")
    WITHOUT_GIL(unshuffle(v[0].at, v[0].count, v[1].number, v[2].at));
END

FUNCTION(renumber, WRITTEN("numbers", "B", 1, 0), NUMBER("kind"), LONGS("moved", 0))
    const int64_t kind = v[1].number, width = kind < 0 ? -kind : kind;
    MUST(width == 1 || width == 2 || width == 4 || width == 8, "kind must be the bytes of a whole number, below 0 without a sign")
    WITHOUT_GIL(renumber(v[0].at, v[0].count, kind, longs(v + 2)));
END

/* --- land.h -------------------------------------------------------------------------------------------------- */

/* What a call made for later ones: memory in one piece, the arrays that it was made of, and what an earlier call made. */
typedef struct {
    Py_buffer held[MOST_ARGUMENTS];
    int held_count;
    PyObject *earlier;
} Held;

static void let_go(PyObject *capsule)
{
    Held *const held = PyCapsule_GetContext(capsule);
    free(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)));
    while (held && held->held_count)
        PyBuffer_Release(held->held + --held->held_count);
    if (held)
        Py_XDECREF(held->earlier);
    free(held);
}

/* Give memory to Python, with the arrays of a call, which are let go of with it. */
static PyObject *made(Call *call, void *memory, const char *kind, PyObject *earlier)
{
    Held *const held = calloc(1, sizeof *held);
    PyObject *const capsule = held && memory ? PyCapsule_New(memory, kind, let_go) : NULL;
    if (!capsule) {
        free(held), free(memory);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    memcpy(held->held, call->held, (size_t)call->held_count * sizeof *held->held);
    held->held_count = call->held_count, call->held_count = 0, held->earlier = Py_XNewRef(earlier);
    PyCapsule_SetContext(capsule, held);
    return capsule;
}

/* Return whether sums of a few of the numbers of a table have 64 bits. */
static int are_near(const Value *table)
{
    const int64_t *const each = table->at, far = INT64_MAX / 8;
    int is_near = 1;
    for (int64_t k = 0; k < table->count * table->columns; k++)
        is_near &= each[k] >= -far && each[k] <= far;
    return is_near;
}

/* Return whether the tables of boxes have as many axes, and as many elements as they say. */
static int are_axes_sound(const Boxes *of, const Value *offsets, const Value *sizes, const Value *follow)
{
    if (of->axes < 1 || offsets->count != of->axes || (follow && follow->count != of->axes) || of->element < 1)
        return 0;
    for (int64_t axis = 0; axis < of->axes; axis++)
        if (((int64_t *)sizes->at)[axis] < 1 || ((int64_t *)sizes->at)[axis] > of->most)
            return 0;
    return are_near(offsets);
}

#define FIELDS "h5stream.ChunkFields"
#define PLAN "h5stream.Plan"

/* Return whether edges ascend from 0 to the end of what they divide. */
static int are_edges(const Value *edges, int64_t parts, int64_t end)
{
    const int64_t *const each = edges->at;
    if (edges->count != parts + 1 || each[0] != 0 || each[parts] != end)
        return 0;
    for (int64_t k = 0; k < parts; k++)
        if (each[k] > each[k + 1])
            return 0;
    return 1;
}

/* Return whether runs lie within the rows of their pieces, and these within a chunk. */
static int are_pieces_sound(const Value *segments, const int64_t *edges, const Value *row_elements, int64_t chunk_rows,
                            int64_t elements)
{
    const int64_t(*const each)[3] = segments->at;
    for (int64_t piece = 0; piece < row_elements->count; piece++) {
        const int64_t width = ((int64_t *)row_elements->at)[piece];
        if (width < 1 || width > elements / chunk_rows)
            return 0;
        for (int64_t s = edges[piece]; s < edges[piece + 1]; s++)
            if (each[s][0] < 0 || each[s][1] < 0 || each[s][2] < 1 || each[s][2] > width || each[s][0] > width - each[s][2]
                || each[s][1] > INT64_MAX / 64)
                return 0;
    }
    return 1;
}

/* Return whether each program's places lie inside of an element, and its fill value is one of whole elements. */
static int are_programs_sound(const Value *programs, const Value *places, const Value *fill_edges, int64_t stored_nbytes)
{
    const int64_t(*const each)[4] = programs->at, *const fills = fill_edges->at;
    int64_t total = 0;
    for (int64_t p = 0; p < programs->count; p++) {
        const int64_t nbytes = each[p][0], width = each[p][3] < 0 ? -each[p][3] : each[p][3];
        if (nbytes < 1 || nbytes > stored_nbytes || nbytes > places->count - total || (each[p][1] && nbytes != stored_nbytes)
            || (each[p][2] && nbytes != 2 && nbytes != 4 && nbytes != 8) || fills[p + 1] == fills[p]
            || (fills[p + 1] - fills[p]) % nbytes || (width && width != nbytes) || width > 8 || (width & (width - 1)))
            return 0;
        total += nbytes;
    }
    return total == places->count && are_below(places, stored_nbytes);
}

FUNCTION(chunk_fields, LONGS("pipelines", 0), NUMBER("chunk_nbytes"), NUMBER("chunk_rows"), NUMBER("stored_nbytes"),
         TABLE("programs", 4), LONGS("places", 0), TABLE("segments", 3), LONGS("edges", 0), LONGS("row_elements", 0),
         BYTES("fills"), LONGS("fill_edges", 0), LONGS("moved", 0))
    const int64_t chunk_nbytes = v[1].number, chunk_rows = v[2].number, stored = v[3].number;
    const int64_t *const pipelines = v[0].at;
    MUST(stored > 0 && chunk_rows > 0 && chunk_nbytes >= stored, "a chunk has at least an element")
    for (int64_t k = 0; k < v[0].count; k++)
        MUST(((const Pipeline *)pipelines[k])->raw_nbytes == chunk_nbytes, "a pipeline is one of other chunks")
    MUST(are_edges(v + 7, v[8].count, v[6].count) && are_edges(v + 10, v[4].count, v[9].count), "edges do not fit")
    MUST(are_pieces_sound(v + 6, v[7].at, v + 8, chunk_rows, chunk_nbytes / stored), "segments lie outside of their rows")
    MUST(are_programs_sound(v + 4, v + 5, v + 10, stored), "programs, places and fills do not fit")
    const size_t long_count = (size_t)(v[5].count + 3 * v[4].count * v[6].count);
    ChunkFields *of = calloc(1, sizeof *of + (size_t)v[4].count * sizeof(Program) + long_count * 8 + (size_t)v[8].count);
    if (of) {
        *of = (ChunkFields){
            .pipelines = longs(v), .chunk_nbytes = chunk_nbytes, .chunk_rows = chunk_rows, .stored_nbytes = stored,
            .piece_count = v[8].count, .program_count = v[4].count, .edges = v[7].at, .row_elements = v[8].at,
            .programs = (Program *)(of + 1), .moved = longs(v + 11)};
        int64_t *next = (int64_t *)(of->programs + of->program_count);
        const int64_t(*const each)[4] = v[4].at, (*const segments)[3] = v[6].at, *places = v[5].at, *fills = v[10].at;
        for (int64_t p = 0; p < of->program_count; p++) {
            Program *const one = of->programs + p;
            *one = (Program){.nbytes = each[p][0], .is_whole = each[p][1] != 0, .may_fuse = each[p][2] != 0,
                             .moved_nbytes = (int)each[p][3], .places = places, .planes = next,
                             .fill = (char *)v[9].at + fills[p], .fill_nbytes = fills[p + 1] - fills[p]};
            of->widest = most(of->widest, one->nbytes);
            for (int64_t k = 0; k < one->nbytes; k++)
                one->planes[k] = places[k] * (chunk_nbytes / stored);
            places += one->nbytes, next += one->nbytes;
            one->segments = (int64_t(*)[3])next, next += 3 * v[6].count;
            for (int64_t s = 0; s < v[6].count; s++)
                for (int column = 0; column < 3; column++)
                    one->segments[s][column] = segments[s][column] * one->nbytes;
        }
        of->are_long = (uint8_t *)next;
        for (int64_t piece = 0; piece < of->piece_count; piece++) {
            of->are_long[piece] = 1;
            for (int64_t s = of->edges[piece]; s < of->edges[piece + 1]; s++)
                of->are_long[piece] &= segments[s][2] >= FUSE_ELEMENTS;
        }
    }
END_WITH(made(&call, of, FIELDS, NULL))

/* Return whether each chunk's numbers have their places in the tables of a plan. */
static int are_chunks_sound(const ChunkPlan *plan)
{
    int is_wrong = 0;
    for (int64_t k = 0; k < plan->plan.count; k++)
        is_wrong |= plan->offset[k] < -1 || plan->offset[k] > INT64_MAX / 4 || plan->nbytes[k] < 0
            || plan->nbytes[k] > INT64_MAX / 4 || plan->pipeline[k] >= most(1, plan->fields->pipelines.count) || plan->piece[k] < 0
            || plan->piece[k] >= plan->fields->piece_count || plan->low[k] < 0 || plan->low[k] > plan->high[k]
            || plan->high[k] > plan->plan.to.batch.count;
    return !is_wrong;
}

/* Return whether what stays of each chunk is rows of it. */
static int are_kept_sound(const ChunkPlan *plan, int64_t count)
{
    int is_wrong = plan->kept_row < 0;
    for (int64_t k = 0; k < plan->plan.count && plan->kept.count; k++) {
        is_wrong |= plan->kept_count[k] < 0 || plan->kept_count[k] > plan->fields->chunk_rows;
        /* What is taken as it is may be read in part. */
        is_wrong |= plan->kept_count[k] > 0 && !plan->fields->pipelines.count && plan->pipeline[k] >= 0 && plan->offset[k] >= 0;
        is_wrong |= plan->kept_count[k] > 0 && (plan->kept_number[k] < 0 || plan->kept_number[k] >= count);
    }
    return !is_wrong;
}

/* Return whether each chunk has the rows, or the elements, that are taken of it, and no more than its bytes. */
static int are_bytes_enough(const ChunkPlan *plan)
{
    const ChunkFields *const of = plan->fields;
    /* Of what lies as it is a plan may have chunks of several datasets, and takes no more than was read of each. */
    const int64_t axes = plan->boxes.axes, most_nbytes = of->pipelines.count ? of->chunk_nbytes : INT64_MAX / 64;
    const int64_t most_elements = most_nbytes / of->stored_nbytes;
    int64_t is_wrong = 0;
    for (int64_t k = 0; k < plan->plan.count; k++) {
        const int64_t row_nbytes = of->row_elements[plan->piece[k]] * of->stored_nbytes;
        if (!axes && !of->pipelines.count && plan->offset[k] >= 0 && plan->pipeline[k] >= 0)
            for (int64_t i = plan->low[k]; i < plan->high[k]; i++)
                is_wrong |= row_at(&plan->plan.to, i) + length_at(&plan->plan.to, i) > plan->nbytes[k] / row_nbytes;
        int64_t elements = 1;
        for (int64_t axis = k * axes; axis < (k + 1) * axes && !is_wrong; axis++) {
            const int64_t side = plan->chunk_shape[axis];
            is_wrong |= plan->begin[axis] < 0 || plan->begin[axis] > INT64_MAX / 4 || side < 1 || side > most_elements / elements;
            elements *= is_wrong ? 1 : side;
        }
        is_wrong |= axes && (plan->skipped[k] < 0 || plan->skipped[k] > most_nbytes || (of->pipelines.count && plan->skipped[k]));
    }
    return !is_wrong;
}

/* Return whether rows lie inside of so many, as far as they are counted, and all their places are some; note the last batch. */
static int are_places_sound(Plan *plan, int64_t row_count)
{
    int64_t is_wrong = 0, last = -1; /* without leaving early, and each loop with one condition: so they are vector loops */
    FOR_EACH_WIDTH(&plan->to, to, {
        for (int64_t i = 0; i < to.batch.count; i++) {
            is_wrong |= number_at(to.batch, i) | number_at(to.within, i);
            last = most(last, number_at(to.batch, i));
        }
        is_wrong = is_wrong < 0;
        if (row_count >= 0 && !to.lengths.count)
            for (int64_t i = 0; i < to.rows.count; i++)
                is_wrong |= (uint64_t)number_at(to.rows, i) >= (uint64_t)row_count;
        for (int64_t i = 0; row_count >= 0 && i < to.lengths.count; i++) {
            const int64_t row = number_at(to.rows, i), length = number_at(to.lengths, i);
            is_wrong |= row < 0 || length < 0 || length > row_count || row > row_count - length;
        }
    });
    plan->most_batch = last;
    return !is_wrong;
}

FUNCTION(plan_chunks, MADE("fields", FIELDS), LONGS("offset", 0), LONGS("nbytes", 2), LONGS("piece", 2), LONGS("low", 2),
         LONGS("high", 2), ARRAY("pipeline", "b", 1, 2), NUMBER("most_gap"), PLACES("rows", 0), PLACES("lengths", 0),
         PLACES("batch", 9), PLACES("within", 9), TABLE("begin", 0), TABLE("chunk_shape", 0), TABLE("shape", 0),
         LONGS("skipped", 0), TABLE("origins", 0), TABLE("offsets", 0), LONGS("sizes", 0), LONGS("follow", 19), NUMBER("mode"),
         LONGS("kept", 0), LONGS("kept_number", 0), LONGS("kept_count", 23), NUMBER("kept_row"), ARRAY("is_filled", "?", 1, 0))
    const int64_t axes = v[18].count;
    const Boxes boxes = {.axes = axes, .most = v[17].columns, .offsets = v[17].at, .sizes = v[18].at, .follow = v[19].at,
                         .origins = v[16].at, .mode = v[20].number, .element = 1, .boxes = v[16].count};
    MUST(are_lengths_of(v + 8), LENGTHS_FIT)
    if (axes) {
        MUST(axes <= MOST_AXES && are_axes_sound(&boxes, v + 17, v + 18, v + 19), "offsets and sizes do not fit")
        MUST(v[16].columns == axes && v[16].count == v[8].count && !v[9].count && are_near(v + 16) && are_near(v + 14),
             "origins must be those of the boxes")
        for (int k = 12; k < 15; k++)
            MUST(v[k].count == v[1].count && v[k].columns == axes, "chunks must have as many axes as boxes")
        MUST(v[15].count == v[1].count, "skipped must be of each chunk")
    }
    MUST(!v[21].count || (v[22].count == v[1].count && v[21].count == ((const ChunkFields *)v[0].at)->program_count && !axes),
         "what is kept must be all fields of whole chunks")
    ChunkPlan *plan = calloc(1, sizeof *plan);
    int is_sound = 1;
    if (plan) {
        const ChunkFields *const fields = v[0].at;
        *plan = (ChunkPlan){
            .plan = {.land = land_chunks, .count = v[1].count, .field_count = fields->program_count, .to = where_spans(v + 8)},
            .fields = fields, .most_gap = v[7].number, .offset = v[1].at, .nbytes = v[2].at, .piece = v[3].at, .low = v[4].at,
            .high = v[5].at, .pipeline = v[6].at, .boxes = boxes, .begin = v[12].at, .chunk_shape = v[13].at,
            .shape = v[14].at, .skipped = v[15].at, .kept = longs(v + 21), .kept_number = v[22].at, .kept_count = v[23].at,
            .kept_row = v[24].number, .is_filled = v[25].at};
        plan->plan.to.slots = (Longs){0};
        WITHOUT_GIL_IF_LONG(v[8].count, is_sound = are_chunks_sound(plan) && are_kept_sound(plan, v[25].count) && are_places_sound(&plan->plan, axes ? -1 : fields->chunk_rows)
                                                    && are_bytes_enough(plan));
        if (!is_sound)
            free(plan);
    }
    MUST(is_sound, "rows lie outside of their chunks, or chunks outside of the tables")
END_WITH(made(&call, plan, PLAN, given[0]))

FUNCTION(plan_memory, LONGS("sources", 0), LONGS("nbytes", 1), LONGS("are_asked_for", 1), NUMBER("row_count"), PLACES("rows", 0),
         PLACES("lengths", 0), PLACES("batch", 5), PLACES("within", 5))
    MUST(are_lengths_of(v + 4), LENGTHS_FIT)
    MUST(are_below(v + 1, INT64_MAX), "nbytes must not be negative")
    for (int64_t field = 0; field < v[2].count; field++)
        MUST(!v[5].count || !((int64_t *)v[2].at)[field], "spans are not asked for ahead")
    MemoryPlan *plan = calloc(1, sizeof *plan);
    int is_sound = 1;
    if (plan) {
        *plan = (MemoryPlan){
            .plan = {.land = land_memory, .count = v[4].count, .field_count = v[0].count, .is_copy = 1, .to = where_spans(v + 4)},
            .sources = v[0].at, .nbytes = v[1].at, .are_asked_for = v[2].at};
        plan->plan.to.slots = (Longs){0};
        WITHOUT_GIL_IF_LONG(v[4].count, is_sound = are_places_sound(&plan->plan, v[3].number));
        if (!is_sound)
            free(plan);
    }
    MUST(is_sound, "rows lie outside of the memory")
END_WITH(made(&call, plan, PLAN, NULL))

/* Return where a plan's rows go, from the arguments that follow it. */
static Landing landing(const Value *v, const Value *scratch)
{
    return (Landing){.descriptor = -1, .slots = longs(v), .offsets = v[1].at, .row_nbytes = v[2].at,
                     .scratch = scratch->at};
}

#define SLOTS_FIT "slots must be those of all batches and fields"

/* Return whether there is a slot for each batch of a plan, and a place in it for each field; no slot where rows only stay. */
static int have_places(const Plan *plan, const Value *slots)
{
    const int are_kept = !slots->count && plan->land == land_chunks && ((const ChunkPlan *)plan)->kept.count;
    return slots[1].count == plan->field_count && (plan->most_batch < slots->count || are_kept);
}

FUNCTION(land, MADE("plan", PLAN), NUMBER("first"), NUMBER("last"), NUMBER("descriptor"), LONGS("at", 0), LONGS("slots", 0),
         LONGS("offsets", 0), LONGS("row_nbytes", 7), NUMBER("scratch"), ARRAY("stop", "i", 1, 0), WRITTEN("counts", "q", 1, 0))
    const Plan *const plan = v[0].at;
    const int64_t first = v[1].number, last = v[2].number;
    Landing into = landing(v + 5, v + 8);
    int64_t done;
    into.descriptor = (int)v[3].number, into.stop = v[9].at, into.counts = v[10].at;
    MUST(first >= 0 && first <= last && last <= plan->count, "first and last must be parts of the plan")
    if (plan->land == land_chunks)
        MUST(into.descriptor >= 0 ? !v[4].count : v[4].count == last - first, "without a descriptor each chunk must be at an address")
    MUST(have_places(plan, v + 5), SLOTS_FIT)
    MUST(v[9].count == 1 && v[10].count == COUNTS, "stop must be one number, counts as many as they are")
    into.at = (const int64_t *)v[4].at - first;
    WITHOUT_GIL(done = plan->land(plan, first, last, &into));
END_WITH(PyLong_FromLongLong(done))

FUNCTION(land_decoded, MADE("plan", PLAN), NUMBER("chunk"), BYTES("data"), NUMBER("shuffled"), LONGS("slots", 0),
         LONGS("offsets", 0), LONGS("row_nbytes", 6), NUMBER("scratch"))
    const ChunkPlan *const plan = v[0].at;
    const int64_t k = v[1].number, shuffled = v[3].number;
    Landing into = landing(v + 4, v + 7);
    int status;
    MUST(plan->plan.land == land_chunks && k >= 0 && k < plan->plan.count && v[2].count == plan->fields->chunk_nbytes,
         "it is no chunk of the plan")
    MUST(shuffled >= 0 && (!shuffled || v[2].count % shuffled == 0), "elements of the shuffle do not fill a chunk")
    MUST(have_places(&plan->plan, v + 4), SLOTS_FIT)
    WITHOUT_GIL(status = land_decoded(plan, &into, k, v[2].at, shuffled));
END_WITH_STATUS(status, Py_NewRef(Py_None))

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

#define ROWS_FIT "chunk_rows and stride must be positive, gap not negative"
#define RUNS_FIT "extents and runs do not fit one another, their fields and their fills"

FUNCTION(plan_rows, LONGS("numbers", 0), LONGS("offsets", 0), NUMBER("across"), NUMBER("chunk_rows"), NUMBER("first_row"),
         NUMBER("stride"), TABLE("extents", 5), TABLE("runs", 7), LONGS("fills", 0), LONGS("fill_nbytes", 9), NUMBER("room"),
         NUMBER("gap"), NUMBER("whole_rows"), PLACES("rows", 0), PLACES("lengths", 0), PLACES("batch", 14), PLACES("within", 14))
    const Reading of = {
        .numbers = longs(v), .offsets = longs(v + 1), .across = v[2].number, .chunk_rows = v[3].number,
        .first_row = v[4].number, .stride = v[5].number, .extents = v[6].at, .extent_count = v[6].count, .runs = v[7].at,
        .run_count = v[7].count, .fills = v[8].at, .fill_nbytes = v[9].at, .room = v[10].number, .gap = v[11].number,
        .whole_rows = v[12].number};
    MUST(of.chunk_rows > 0 && of.stride > 0 && of.gap >= 0 && of.room > 0, ROWS_FIT)
    MUST(!of.numbers.count || of.numbers.count == of.offsets.count, "numbers must be as many as offsets, or none")
    MUST(are_lengths_of(v + 13), LENGTHS_FIT)
    MUST(are_runs_sound(&of, v[8].count), RUNS_FIT)
    RowPlan *plan = calloc(1, sizeof *plan);
    int is_sound = 1;
    if (plan) {
        *plan = (RowPlan){.plan = {.land = land_rows, .count = v[13].count, .field_count = v[8].count, .to = where_spans(v + 13)},
                          .reading = of};
        plan->plan.to.slots = (Longs){0};
        WITHOUT_GIL_IF_LONG(v[13].count, is_sound = are_places_sound(&plan->plan, -1));
        if (!is_sound)
            free(plan);
    }
    MUST(is_sound, "places must not be negative")
END_WITH(made(&call, plan, PLAN, NULL))

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

/* --- boxes.c ------------------------------------------------------------------------------------------------ */

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
    MUST(are_near(v + 2) && are_near(v + 3) && are_near(v + 4) && are_near(v + 12), "regions or origins are too far")
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
    MUST(are_near(v + 1) && are_near(v + 5), "shapes or origins are too far")
    MUST(v[1].count == of.boxes && v[1].columns == of.axes, "shapes must be those of the boxes")
    TO_SLOTS(&of.to, status = fill_outside(&of, address(v)));
END_WITH_STATUS(status, Py_NewRef(Py_None))

/* --- order.c ------------------------------------------------------------------------------------------------ */

FUNCTION(shuffled_into, WRITTEN("numbers", "iq", 1, 0), WRITTEN("edges", "q", 1, 0), WRITTEN("state", "Q", 1, 0))
    const int64_t count = v[0].count, buckets = v[1].count - 1;
    MUST(buckets > 0 && !(buckets & (buckets - 1)), "edges must be one more than a power of two")
    MUST(v[2].count == 4, "state must be 4 numbers")
    MUST(count <= (v[0].nbytes == 8 ? INT64_C(1) << 32 : INT64_C(1) << 31), "numbers have too few bits")
    WITHOUT_GIL_IF_LONG(count, shuffled_into(v[0].at, count, v[0].nbytes == 8, v[1].at, buckets, v[2].at));
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

/* --- lay.h --------------------------------------------------------------------------------------------------- */

FUNCTION(locate, PLACES("output", 0), LONGS("edges", 0), NUMBER("size"), NUMBER("last"), NUMBER("last_begin"),
         WRITTEN("batch", "iq", 1, 1), WRITTEN("within", "iq", 1, 1))
    int status;
    MUST(v[1].count ? v[1].count > 1 : v[2].number > 0, "edges must be at least two, or size positive")
    WITHOUT_GIL_IF_LONG(v[0].count, status = locate(numbers(v), longs(v + 1), v[2].number, v[3].number, v[4].number,
                                                    numbers(v + 5), numbers(v + 6)));
END_WITH_STATUS(status, Py_NewRef(Py_None))

FUNCTION(range_of, PLACES("numbers", 0))
    int64_t low, high;
    WITHOUT_GIL_IF_LONG(v[0].count, range_of(numbers(v), &low, &high));
END_WITH(Py_BuildValue("(LL)", (long long)low, (long long)high))

FUNCTION(subtract, PLACES("numbers", 0), NUMBER("amount"), WRITTEN("out", "iq", 1, 1))
    WITHOUT_GIL_IF_LONG(v[0].count, subtract(numbers(v), v[1].number, numbers(v + 2)));
END

FUNCTION(count_batches, PLACES("batch", 0), PLACES("lengths", 0), WRITTEN("counts", "q", 1, 0))
    int status;
    MUST(are_lengths_of(v), LENGTHS_FIT)
    WITHOUT_GIL_IF_LONG(v[0].count, status = count_batches(numbers(v), numbers(v + 1), longs(v + 2)));
END_WITH_STATUS(status, Py_NewRef(Py_None))

FUNCTION(in_ranges, LONGS("begins", 0), LONGS("counts", 1), LONGS("every", 0), WRITTEN("out", "iq", 1, 0))
    int status;
    MUST(v[2].count == 1 || v[2].count == v[0].count, "every must be one, or as many as begins")
    WITHOUT_GIL_IF_LONG(v[3].count, status = in_ranges(longs(v), v[1].at, longs(v + 2), numbers(v + 3)));
END_WITH_STATUS(status, Py_NewRef(Py_None))

FUNCTION(in_turn, PLACES("rows", 0), PLACES("outputs", 1), NUMBER("base"), WRITTEN("out", "iq", 1, 1))
    int status;
    WITHOUT_GIL_IF_LONG(v[0].count, status = in_turn(numbers(v), numbers(v + 1), v[2].number, numbers(v + 3)));
END_WITH_STATUS(status, Py_NewRef(Py_None))

FUNCTION(into_chunks, PLACES("rows", 0), NUMBER("first_row"), NUMBER("chunk_rows"), WRITTEN("inside", "iq", 1, 1),
         WRITTEN("begins", "q", 1, 0), WRITTEN("numbers", "q", 1, 5))
    int64_t count;
    MUST(v[2].number > 0 && v[2].number < INT64_MAX / 4, "chunk_rows must be positive")
    WITHOUT_GIL_IF_LONG(v[0].count, count = into_chunks(numbers(v), v[1].number, v[2].number, numbers(v + 3), longs(v + 4), v[5].at));
    MUST(count >= 0, "rows must ascend, and lie in no more chunks than there is room for")
END_WITH(PyLong_FromLongLong(count))

FUNCTION(lay_chunks, LONGS("stored", 0), LONGS("offset", 1), LONGS("nbytes", 1), NUMBER("all_count"), LONGS("numbers", 0),
         LONGS("low", 5), LONGS("high", 5), LONGS("across", 0), NUMBER("columns"), NUMBER("chunk_nbytes"), NUMBER("most_gap"), NUMBER("most_work"),
         WRITTEN("table", "q", 2, 0), WRITTEN("cuts", "q", 1, 0))
    const int64_t count = v[4].count * v[7].count;
    int64_t *const at = v[12].at, cut_count = 0;
    const ChunkColumns table = {at, at + count, at + 2 * count, at + 3 * count, at + 4 * count, at + 5 * count, at + 6 * count};
    int status;
    MUST(v[12].count == 7 && v[12].columns == count && v[13].count == count + 1,
         "table and cuts do not fit numbers and across")
    MUST(v[11].number > 0 && v[8].number > 0, "most_work and columns must be positive")
    MUST(are_below(v + 4, INT64_MAX / v[8].number - 1) && are_below(v + 7, v[8].number), "numbers lead out of the grid")
    WITHOUT_GIL_IF_LONG(count, status = lay_chunks(longs(v), v[1].at, v[2].at, v[3].number, longs(v + 4), v[5].at, v[6].at, longs(v + 7),
                                                   v[8].number, &table);
                        if (status == DONE) cut_count = cut_chunks(&table, count, v[9].number, v[10].number, v[11].number, v[13].at));
END_WITH_STATUS(status, PyLong_FromLongLong(cut_count))

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
    int64_t counts[COUNTS] = {0};
    int status;
    MUST(v[2].number > 0 && v[2].number <= 8, "length_nbytes must be 1 to 8")
    WITHOUT_GIL(status = read_objects(&of, counts));
END_WITH_STATUS(status, Py_BuildValue("(LL)", (long long)counts[READ_NBYTES], (long long)counts[READS]))

FUNCTION(plan_heap, NUMBER("file_nbytes"), NUMBER("length_nbytes"), NUMBER("item_nbytes"), NUMBER("most_nbytes"), NUMBER("room"),
         NUMBER("gap_nbytes"), LONGS("address", 0), ARRAY("index", "I", 1, 7), ARRAY("length", "I", 1, 7), NUMBER("first_row"),
         PLACES("rows", 0), PLACES("batch", 11), PLACES("within", 11))
    MUST(v[1].number > 0 && v[1].number <= 8, "length_nbytes must be 1 to 8")
    MUST(v[2].number > 0 && v[2].number < INT32_MAX && v[3].number >= 0, "item_nbytes must be positive, most_nbytes not negative")
    MUST(v[4].number > 0 && v[5].number >= 0 && v[9].number >= 0, "room must be positive, gap_nbytes and first_row not negative")
    HeapPlan *plan = calloc(1, sizeof *plan);
    int is_sound = 1;
    if (plan) {
        *plan = (HeapPlan){
            .plan = {.land = land_heap, .count = v[10].count, .field_count = 1,
                     .to = {.rows = numbers(v + 10), .batch = numbers(v + 11), .within = numbers(v + 12)}},
            .file_nbytes = v[0].number, .length_nbytes = v[1].number, .item_nbytes = v[2].number, .most_nbytes = v[3].number,
            .room = v[4].number, .gap_nbytes = v[5].number, .first_row = v[9].number, .address = v[6].at, .index = v[7].at,
            .length = v[8].at};
        WITHOUT_GIL_IF_LONG(v[10].count, is_sound = are_values_there(plan, v[6].count) && are_places_sound(&plan->plan, -1));
        if (!is_sound)
            free(plan);
    }
    MUST(is_sound, "rows lie outside of the values, or not in the order of their addresses")
END_WITH(made(&call, plan, PLAN, NULL))

FUNCTION(read_files, BYTES("paths"), LONGS("path_at", 0), LONGS("sizes", 2), LONGS("mtimes", 2), LONGS("inodes", 2),
         LONGS("which", 0), LONGS("offsets", 6), LONGS("nbytes", 6), LONGS("targets", 6))
    const Files of = {.paths = {v[0].at, v[0].count}, .path_at = v[1].at, .sizes = v[2].at, .mtimes = v[3].at, .inodes = v[4].at,
                      .count = v[1].count};
    int64_t done;
    MUST(v[0].count && !((const char *)v[0].at)[v[0].count - 1], "paths must end with a null")
    MUST(are_below(v + 7, INT64_MAX), "nbytes must not be negative")
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

/* Return whether the values of each row are among those that there are, and fit where they are read to. */
static int are_rows_there(const DensePlan *plan)
{
    const Where *const to = &plan->plan.to;
    const int64_t values = least(plan->value_offsets.count, INT32_MAX) * plan->value_chunk;
    const int64_t most_values = least(values, least(plan->column_offsets.count, INT32_MAX) * plan->column_chunk);
    for (int64_t k = 0; k < to->rows.count; k++) {
        const int64_t length = length_at(to, k), first = row_at(to, k);
        if (length < 0 || length > plan->room || first < plan->first_row)
            return 0;
        if (length > 0 && first - plan->first_row > most_values - length)
            return 0;
    }
    return 1;
}

FUNCTION(plan_dense, LONGS("value_offsets", 0), NUMBER("value_chunk"), LONGS("column_offsets", 0), NUMBER("column_chunk"),
         NUMBER("first_row"), NUMBER("room"), ARRAY("value", VALUE_CODES, 1, 0), ARRAY("column", COLUMN_CODES, 1, 0),
         ARRAY("places", "i", 1, 0), ARRAY("is_wanted", "B", 1, 9), NUMBER("wanted"), PLACES("rows", 0), PLACES("lengths", 12),
         PLACES("batch", 12), PLACES("within", 12))
    MUST(v[10].number >= 0 && are_places_of_columns(v[8].at, v[9].at, v[8].count, v[10].number), "places and is_wanted do not fit a row")
    MUST(v[1].number > 0 && v[3].number > 0 && v[1].number < INT32_MAX && v[3].number < INT32_MAX,
         "value_chunk and column_chunk must be positive, and have few values")
    MUST(v[4].number >= 0, "first_row must not be negative")
    MUST(v[5].number > 0 && v[5].number < INT32_MAX / 16 && v[5].number % 16 == 0, "room must be a multiple of 16, and small")
    DensePlan *plan = calloc(1, sizeof *plan);
    int is_sound = 1;
    if (plan) {
        *plan = (DensePlan){
            .plan = {.land = land_dense, .count = v[11].count, .field_count = 1, .to = where_spans(v + 11)},
            .matrix = {.code = v[6].code, .column_code = v[7].code, .places = v[8].at, .is_wanted = v[9].at},
            .value_offsets = longs(v), .value_chunk = v[1].number, .column_offsets = longs(v + 2), .column_chunk = v[3].number,
            .value_nbytes = v[6].nbytes, .column_nbytes = v[7].nbytes, .first_row = v[4].number, .width = v[8].count,
            .wanted = v[10].number, .room = v[5].number};
        plan->plan.to.slots = (Longs){0};
        WITHOUT_GIL_IF_LONG(v[11].count, is_sound = are_rows_there(plan) && are_places_sound(&plan->plan, -1));
        if (!is_sound)
            free(plan);
    }
    MUST(is_sound, "rows lie outside of the matrix, or do not fit the room")
END_WITH(made(&call, plan, PLAN, NULL))

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
    METHOD(fill_outside), METHOD(gather_any), METHOD(chunk_fields), METHOD(land), METHOD(land_decoded), METHOD(plan_chunks),
    METHOD(plan_dense), METHOD(plan_heap), METHOD(plan_memory), METHOD(plan_rows), METHOD(count_batches), METHOD(in_ranges), METHOD(in_turn),
    METHOD(into_chunks), METHOD(lay_chunks),
    METHOD(locate), METHOD(range_of), METHOD(subtract),
    METHOD(renumber), METHOD(unshuffle), METHOD(lay_stretches), METHOD(least_and_most), METHOD(order_by_place),
    METHOD(place_boxes), METHOD(place_rows), METHOD(read_files),
    METHOD(read_objects), METHOD(room_of_each), METHOD(scatter), METHOD(scatter_spans),
    METHOD(shuffled_into), METHOD(spread), {0}};
