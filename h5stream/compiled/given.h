/* What the inner loops are given; `_native.pyi` says what each argument is.

Rows are known only as (slot, place in it), so that one call scatters a chunk over any number of batches. Slots are named
by address: they are separate allocations, and an array of arrays would cost more to pass than a small chunk takes to copy.

Guarantees: kernels run without the GIL and write only to `slots[batch] + offset + within * row_nbytes` and the next
`row_nbytes` bytes. That each batch has a slot is checked; the planner promises that these bytes are inside of it and written
by one task only. */

typedef struct { const int64_t *at; int64_t count; } Longs;

typedef struct { const char *at; int64_t count; } Bytes;

/* Whole numbers of 32 bits, or of 64 where that is too small. */
typedef struct { const void *at; int64_t count; int wide; } Numbers;

typedef const int64_t (*Segments)[3]; /* from within the chunk's row, to within the batch's row, bytes or elements */

/* Rows and where each goes; without `lengths` each is one row. */
typedef struct {
    Numbers rows, lengths, batch, within;
    Longs slots;
    int64_t offset, row_nbytes;
} Where;

ALWAYS_INLINE int64_t number_at(Numbers of, int64_t i)
{
    return of.wide ? ((const int64_t *)of.at)[i] : ((const int32_t *)of.at)[i];
}

ALWAYS_INLINE int64_t row_at(const Where *to, int64_t i) { return number_at(to->rows, i); }

ALWAYS_INLINE int64_t length_at(const Where *to, int64_t i) { return to->lengths.count ? number_at(to->lengths, i) : 1; }

/* Return where row `i` goes. */
ALWAYS_INLINE char *place_of(const Where *to, int64_t i)
{
    return (char *)(to->slots.at[number_at(to->batch, i)] + to->offset + number_at(to->within, i) * to->row_nbytes);
}

/* Return some of the rows. */
static inline Where part_of(const Where *to, int64_t low, int64_t high)
{
    Where part = *to;
    Numbers *each[] = {&part.rows, &part.lengths, &part.batch, &part.within};
    for (int k = 0; k < 4; k++)
        if (each[k]->count) {
            each[k]->at = (const char *)each[k]->at + low * (each[k]->wide ? 8 : 4);
            each[k]->count = high - low;
        }
    return part;
}

/* Return whether all numbers have 64 bits (1), or all have 32 (0); -1 if they differ. */
static inline int width_of(const Where *to)
{
    const int wide = to->rows.wide;
    const int as_lengths = !to->lengths.count || to->lengths.wide == wide;
    return as_lengths && to->batch.wide == wide && to->within.wide == wide ? wide : -1;
}

ALWAYS_INLINE Where of_width(const Where *to, int wide)
{
    Where same = *to;
    same.rows.wide = same.lengths.wide = same.batch.wide = same.within.wide = wide;
    return same;
}

/* Run a body that is inlined once for each width of the numbers, and once for mixed ones; `to` is a `Where` in it. */
#define FOR_EACH_WIDTH(given, to, ...)                                                                                 \
    do {                                                                                                               \
        const int width_ = width_of(given);                                                                            \
        if (width_ == 0) {                                                                                             \
            const Where to = of_width(given, 0);                                                                       \
            __VA_ARGS__;                                                                                               \
        } else if (width_ == 1) {                                                                                      \
            const Where to = of_width(given, 1);                                                                       \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            const Where to = *(given);                                                                                 \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)

/* Return whether each batch has a slot: numbers that are compared without a sign, and without leaving early. */
static int have_slots(const Where *to)
{
    const uint64_t count = (uint64_t)to->slots.count;
    int is_wrong = 0;
    if (to->batch.wide)
        for (int64_t i = 0; i < to->batch.count; i++)
            is_wrong |= ((const uint64_t *)to->batch.at)[i] >= count;
    else
        for (int64_t i = 0; i < to->batch.count; i++)
            is_wrong |= ((const uint32_t *)to->batch.at)[i] >= (uint32_t)least(to->slots.count, UINT32_MAX);
    return !is_wrong;
}

/* What is read of rows that need no decoding, and where it goes. */
typedef struct {
    int descriptor;
    Longs numbers, offsets;
    int64_t across, chunk_rows, first_row, stride;
    const int64_t (*extents)[5];
    int64_t extent_count;
    const int64_t (*runs)[7];
    int64_t run_count;
    const int64_t *fills, *fill_nbytes;
    char *scratch;
    int64_t room, gap, whole_rows;
    int64_t *counts;
    Where to; /* its offset and row_nbytes are set field by field */
    const int64_t *field_offsets, *row_nbytes;
} Reading;

/* Boxes of volumes, and what lies in memory of them. */
typedef struct {
    int64_t axes, regions, most;
    const int64_t *sources, *strides, *low, *high, *shapes, *begins, *ends, *offsets, *sizes, *follow, *origins;
    int64_t mode, element, boxes;
    int64_t from, until; /* bytes from a region's first element between which it is there, if `until` is above 0 */
    Where to;
} Boxes;

/* Runs of this many bytes are read to their places; shorter ones several at a time, and copied from the cache. */
enum { UNCOPIED_NBYTES = 64 * 1024 };

/* What a kernel says that does not give a number. */
enum { NO_MEMORY = -2, WRONG = -1, FAILED = 0, DONE = 1 };
