/* Chunks become rows: each is read, its filters are undone, and its rows are copied to their places while it is in a core's
cache. A plan says all of that as data; `land` carries out a part of one without Python.

Guarantees: a plan is immutable. What its planner worked out is checked when it is made: each row lies in its chunk, each
chunk's rows are rows of the plan, each number has a place in its table. Stored bytes are checked whenever they are
decoded. `land` writes to slots, and to the scratch of its thread; that the rows of a slot fit in there is the planner's
promise. */

enum {
    /* Shortest run of elements in a row for which unshuffling and scattering in one pass pays; below it the vector loop is
    mostly overhead, and the chunk is unshuffled into the cache first. */
    FUSE_ELEMENTS = 16,

    /* Bytes of a row from which on the rows of spans are unshuffled and copied one by one, in one pass. A guess, not
    measured: shorter rows are cheaper to copy in runs. */
    FUSED_ROW_NBYTES = 1024,

    /* Chunks of at most so many bytes stay in a core's own cache, where unshuffling them first costs next to nothing. */
    SMALL_CHUNK_NBYTES = 128 * 1024,

    /* Bytes that are read at once, unless one chunk has more: as much as a core's own cache holds. */
    READ_AT_ONCE_NBYTES = 512 * 1024,
};

/* What one field takes of each decoded chunk. */
typedef struct {
    int64_t nbytes;        /* of an element in a batch */
    int is_whole, may_fuse; /* whether it is all of a stored element as it is; whether its planes may be joined as it is copied */
    int moved_nbytes;      /* of a column number that another takes the place of, below 0 for one without a sign; 0 for none */
    const int64_t *places; /* of its bytes in a stored element, least significant first for a number */
    int64_t *planes;       /* where the plane of each begins in a shuffled chunk */
    int64_t (*segments)[3];
    const char *fill; /* elements of the fill value, one behind the other */
    int64_t fill_nbytes;
} Program;

/* What all chunks of a dataset have in common. */
typedef struct {
    Longs pipelines; /* one for each filter mask; none where nothing is to be undone, and chunks are read in part */
    int64_t chunk_nbytes, chunk_rows, stored_nbytes, piece_count, program_count, widest;
    const int64_t *edges, *row_elements; /* the segments of each piece of a row; its elements in a chunk's row */
    uint8_t *are_long;                   /* whether every segment of a piece is long enough to be fused */
    Program *programs;
    Longs moved;
} ChunkFields;

typedef struct Plan Plan;

typedef struct Landing Landing;

/* Where samples go, and a function that brings some of them there. */
struct Plan {
    int64_t (*land)(const Plan *, int64_t first, int64_t last, Landing *); /* gives the first unit that was not brought */
    int64_t count;       /* units: chunks, or rows and spans */
    int64_t field_count; /* that it fills */
    int64_t most_batch;  /* the last batch that any of the rows goes to */
    int is_copy;         /* whether it copies what is in memory already */
    Where to;            /* without slots, which are known when it is carried out */
};

/* Chunks of a dataset, and where their rows go; or their boxes. */
typedef struct {
    Plan plan;
    const ChunkFields *fields;
    int64_t most_gap;
    const int64_t *offset, *nbytes, *piece, *low, *high; /* offset: -1 for the fill value; low, high: its rows */
    const int8_t *pipeline; /* which of the pipelines is its own, 0 where there are none; -1 if it is not landed here */
    /* Where all rows of the chunks stay in memory: of each field where row 0 of all would be, and of each chunk its number among
    those that stay, and how many rows it has. No fields where none stay. */
    Longs kept;
    const int64_t *kept_number, *kept_count;
    int64_t kept_row;      /* the first row of the first of these chunks */
    const bool *is_filled; /* whether each of these chunks is there, which others say */
    Boxes boxes; /* without axes where rows are no boxes; of its regions those that follow */
    const int64_t *begin, *chunk_shape, *shape, *skipped;
} ChunkPlan;

/* Return what undoes the filters of a chunk; NULL where it is taken as it is. */
static const Pipeline *pipeline_of(const ChunkPlan *plan, int64_t k)
{
    const Longs pipelines = plan->fields->pipelines;
    return pipelines.count ? (const Pipeline *)pipelines.at[plan->pipeline[k]] : NULL;
}

/* Processors, on which threads take turns with what needs one all the time; reads wait without. While the training loop waits for
a batch, or its steps wait for something else, such as a GPU, all of them are taken; else all but one: that is the loop's. */
typedef struct {
    pthread_mutex_t *mutex;
    pthread_cond_t changed;
    int64_t count, taken, waiting;
    int64_t awaited; /* by how many */
    int is_spare;    /* whether the loop's last step left its processor to others most of the time */
} Processors;

/* Return how many may be taken; called under the mutex. */
static int64_t most_taken(const Processors *of) { return of->awaited || of->is_spare ? of->count : most(1, of->count - 1); }

static void take_processor(Processors *of)
{
    if (!of)
        return;
    pthread_mutex_lock(of->mutex);
    while (of->taken >= most_taken(of)) {
        of->waiting++;
        pthread_cond_wait(&of->changed, of->mutex);
        of->waiting--;
    }
    of->taken++;
    pthread_mutex_unlock(of->mutex);
}

static void give_processor(Processors *of)
{
    if (!of)
        return;
    pthread_mutex_lock(of->mutex);
    of->taken--;
    if (of->waiting)
        pthread_cond_signal(&of->changed);
    pthread_mutex_unlock(of->mutex);
}

/* With what, and where to, a thread lands a part of a plan. */
struct Landing {
    Processors *processors; /* NULL where threads take no turns */
    int descriptor;    /* of the file; -1 where `at` says where each chunk lies in memory */
    const int64_t *at;
    Longs slots;
    const int64_t *offsets, *row_nbytes; /* of each program's field */
    Scratch *scratch;
    const volatile int32_t *stop;
    int64_t *counts; /* reads, their bytes and ns; where a read failed, and its bytes; chunks, their bytes, ns; ns of copies;
                        bytes of rows that were in memory */
    Found found;
};

enum { READS, READ_NBYTES, READ_NS, FAILED_AT, FAILED_NBYTES, CHUNKS, DECODED_NBYTES, DECODE_NS, SCATTER_NS, MEMORY_NBYTES, COUNTS };

/* In place of the bytes that failed: no read did, and in place of where is the number of a column that there is not. */
enum { A_COLUMN = -1 };

/* Put other column numbers in the place of those of a sparse matrix; one that is none becomes the largest that there is. */
static void renumber(char *numbers, int64_t nbytes, int64_t kind, Longs moved)
{
    const int64_t width = kind < 0 ? -kind : kind;
    const uint64_t largest = UINT64_MAX >> (64 - 8 * width + (kind > 0));
    for (int64_t at = 0; at + width <= nbytes; at += width) {
        uint64_t number = 0;
        memcpy(&number, numbers + at, (size_t)width);
        /* A negative one has its highest bit set, and is beyond all that there are. */
        number = number < (uint64_t)moved.count && number <= largest ? (uint64_t)moved.at[number] : largest;
        memcpy(numbers + at, &number, (size_t)width);
    }
}

/* Return a field's bytes of all elements of chunks that follow one another, as batches have them; NULL without memory. */
static const char *dense_of(const ChunkFields *of, const Program *program, const char *data, int64_t nbytes, int64_t chunks,
                            int is_shuffled, Scratch *scratch)
{
    const int64_t count = nbytes / of->stored_nbytes, dense_nbytes = count * program->nbytes;
    const char *dense = data;
    if (is_shuffled || !program->is_whole) {
        char *out = room_for(scratch, ROOM_DENSE, dense_nbytes * chunks);
        if (!out)
            return NULL;
        const Longs planes = {program->planes, program->nbytes}, places = {program->places, program->nbytes};
        if (is_shuffled)
            for (int64_t c = 0; c < chunks; c++)
                gather_planes(data + c * nbytes, planes, count, out + c * dense_nbytes);
        else
            gather_leaf(data, of->stored_nbytes, places, count * chunks, out);
        dense = out;
    }
    if (program->moved_nbytes) {
        char *moved = room_for(scratch, ROOM_MOVED, dense_nbytes * chunks);
        if (!moved)
            return NULL;
        memcpy(moved, dense, (size_t)(dense_nbytes * chunks));
        renumber(moved, dense_nbytes * chunks, program->moved_nbytes, of->moved);
        dense = moved;
    }
    return dense;
}

/* Return where the rows of a chunk go in one field. */
static Where in_program(const ChunkPlan *plan, const Landing *into, int64_t k, int64_t program)
{
    Where to = part_of(&plan->plan.to, plan->low[k], plan->high[k]);
    to.slots = into->slots, to.offset = into->offsets[program], to.row_nbytes = into->row_nbytes[program];
    return to;
}

/* Copy what boxes take of a chunk whose first element is at `source`, and of which `count` elements are there from element
`first` on, or of one row of fill values where `count` is negative; return whether it has all that they take. */
static int place_chunk_in_boxes(const ChunkPlan *plan, Landing *into, int64_t k, int64_t program, const char *source,
                                int64_t first, int64_t count)
{
    const int is_fill = count < 0;
    Boxes of = plan->boxes;
    int64_t ends[MOST_AXES], strides[MOST_AXES], stride = plan->fields->programs[program].nbytes;
    const int64_t *begin = plan->begin + k * of.axes, *shape = plan->chunk_shape + k * of.axes;
    for (int64_t axis = of.axes - 1; axis >= 0; axis--) {
        ends[axis] = least(begin[axis] + shape[axis], plan->shape[k * of.axes + axis]);
        strides[axis] = is_fill && axis < of.axes - 1 ? 0 : stride;
        stride *= shape[axis];
    }
    of.low = begin, of.high = ends, of.shapes = plan->shape + k * of.axes, of.strides = strides;
    of.element = plan->fields->programs[program].nbytes;
    of.to = plan->plan.to;
    of.to.slots = into->slots, of.to.offset = into->offsets[program], of.to.row_nbytes = into->row_nbytes[program];
    if (!is_fill) {
        of.from = first * of.element, of.until = (first + count) * of.element;
        of.until = of.until ? of.until : -1; /* nothing is there; 0 stands for no end */
    }
    return place_region(&of, &into->found, 0, plan->low[k], plan->high[k], source);
}

/* Return the first row of a chunk that stays. */
static int64_t first_kept(const ChunkPlan *plan, int64_t k)
{
    return plan->kept_row + plan->kept_number[k] * plan->fields->chunk_rows;
}

/* Return where all rows of a chunk stay in one field; none where it does not. */
static Where in_kept(const ChunkPlan *plan, const Landing *into, int64_t k, int64_t program)
{
    static const int64_t zero = 0;
    const int64_t count = plan->kept.count && plan->kept_count[k] > 0;
    return (Where){.rows = {&zero, count, 1}, .lengths = {plan->kept_count + k, count, 1}, .batch = {&zero, count, 1},
                   .within = {&zero, count, 1}, .slots = {plan->kept.at + program, count},
                   .offset = count ? first_kept(plan, k) * into->row_nbytes[program] : 0, .row_nbytes = into->row_nbytes[program]};
}

/* Return whether a chunk is where it stays, by now. */
static int is_kept(const ChunkPlan *plan, int64_t k)
{
    return plan->kept.count && plan->kept_count[k] > 0 && __atomic_load_n(plan->is_filled + plan->kept_number[k], __ATOMIC_ACQUIRE);
}

/* Copy rows of a chunk from where it stays to their places. */
static void copy_kept(const ChunkPlan *plan, Landing *into, int64_t k)
{
    const int64_t began = now_ns();
    for (int64_t p = 0; p < plan->fields->program_count && into->slots.count; p++) {
        const Where to = in_program(plan, into, k, p);
        const int64_t whole[1][3] = {{0, 0, to.row_nbytes}};
        const char *const source = (const char *)plan->kept.at[p] + first_kept(plan, k) * to.row_nbytes;
        (to.lengths.count ? scatter_spans : scatter)(&to, source, to.row_nbytes, whole, 1);
        for (int64_t i = 0; i < to.rows.count; i++)
            into->counts[MEMORY_NBYTES] += length_at(&to, i) * to.row_nbytes;
    }
    into->counts[SCATTER_NS] += now_ns() - began;
}

/* Give some rows of a chunk the fill value in one field. */
static void fill_places(const ChunkPlan *plan, int64_t k, const Program *program, const Where *to)
{
    const int64_t first = plan->fields->edges[plan->piece[k]], last = plan->fields->edges[plan->piece[k] + 1];
    for (int64_t i = 0; i < to->rows.count; i++)
        for (int64_t row = 0; row < length_at(to, i); row++)
            for (int64_t s = first; s < last; s++)
                copy_fill(place_of(to, i) + row * to->row_nbytes + program->segments[s][1], program->segments[s][2],
                          program->fill, program->fill_nbytes);
}

/* Give rows of a chunk that was never written the fill value; return whether there was memory for that. */
static int fill_rows(const ChunkPlan *plan, Landing *into, int64_t k)
{
    const ChunkFields *fields = plan->fields;
    for (int64_t p = 0; p < fields->program_count; p++) {
        const Program *program = fields->programs + p;
        if (plan->boxes.axes) {
            const int64_t nbytes = plan->chunk_shape[(k + 1) * plan->boxes.axes - 1] * program->nbytes;
            char *const row = room_for(into->scratch, ROOM_DENSE, nbytes);
            if (!row)
                return NO_MEMORY;
            copy_fill(row, nbytes, program->fill, program->fill_nbytes);
            place_chunk_in_boxes(plan, into, k, p, row, 0, -1);
            continue;
        }
        const Where stays = in_kept(plan, into, k, p), to = in_program(plan, into, k, p);
        fill_places(plan, k, program, &stays);
        if (into->slots.count)
            fill_places(plan, k, program, &to);
    }
    return DONE;
}

/* Return how many chunks from one on, before `end`, lie side by side: they have the same rows, and their parts of a row
follow. */
static int64_t count_side_by_side(const ChunkPlan *plan, int64_t k, int64_t end)
{
    const ChunkFields *of = plan->fields;
    if (of->chunk_nbytes > SMALL_CHUNK_NBYTES || plan->plan.to.lengths.count || plan->boxes.axes || !of->program_count)
        return 1;
    const int64_t p = plan->piece[k], first = of->edges[p];
    if (of->edges[p + 1] != first + 1)
        return 1;
    const int64_t(*segments)[3] = (Segments)of->programs[0].segments, width = of->programs[0].nbytes;
    const int64_t n = segments[first][2] / width * of->widest;
    int64_t count = 1;
    const int64_t together = least(MOST_BESIDE, READ_AT_ONCE_NBYTES / of->chunk_nbytes);
    for (int64_t other = k + 1; other < end && count < together && (count + 1) * n <= BESIDE_NBYTES; other++, count++) {
        const int64_t q = plan->piece[other], its = of->edges[q];
        if (plan->low[other] != plan->low[k] || plan->high[other] != plan->high[k] || of->edges[q + 1] != its + 1
            || plan->pipeline[other] != plan->pipeline[k] || of->row_elements[q] != of->row_elements[p] || segments[its][2] != segments[first][2]
            || segments[its][0] != segments[first][0]
            || segments[its][1] != segments[first][1] + count * segments[first][2])
            break;
    }
    return count;
}

/* Return whether a chunk's shuffle is undone as its rows are copied to a field. */
static int is_fused(const ChunkPlan *plan, int64_t k, const Program *program)
{
    const ChunkFields *of = plan->fields;
    const int64_t piece = plan->piece[k], row_nbytes = of->row_elements[piece] * of->stored_nbytes;
    return program->may_fuse && !plan->kept.count && of->are_long[piece] && of->chunk_nbytes > SMALL_CHUNK_NBYTES && !plan->boxes.axes
        && (!plan->plan.to.lengths.count || row_nbytes >= FUSED_ROW_NBYTES);
}

/* Copy all rows of decoded chunks, one or several side by side, to where they stay in one field. */
static void keep_rows(const ChunkPlan *plan, const Landing *into, int64_t k, int64_t count, int64_t program, const char *dense,
                      int64_t dense_nbytes)
{
    const ChunkFields *of = plan->fields;
    for (int64_t c = 0; c < count && plan->kept.count; c++) {
        const Where to = in_kept(plan, into, k + c, program);
        const int64_t piece = plan->piece[k + c], first = of->edges[piece];
        if (to.rows.count)
            scatter_spans(&to, dense + c * dense_nbytes, of->row_elements[piece] * of->programs[program].nbytes,
                          (Segments)of->programs[program].segments + first, of->edges[piece + 1] - first);
    }
}

/* Copy rows of decoded chunks, one or several side by side, to all fields; `shuffled` is the width of elements whose byte
shuffle is still to be undone, and `skipped` how many bytes of a chunk that boxes lie in are not there. Return whether there
was memory for that. */
static int scatter_chunks(const ChunkPlan *plan, Landing *into, int64_t k, int64_t count, const char *data, int64_t nbytes,
                          int64_t shuffled, int64_t skipped)
{
    const ChunkFields *of = plan->fields;
    if (shuffled && shuffled != of->stored_nbytes) {
        char *whole = room_for(into->scratch, ROOM_UNSHUFFLED, nbytes * count);
        if (!whole)
            return NO_MEMORY;
        for (int64_t c = 0; c < count; c++)
            unshuffle(data + c * nbytes, nbytes, shuffled, whole + c * nbytes);
        data = whole, shuffled = 0;
    }
    for (int64_t p = 0; p < of->program_count; p++) {
        const Program *program = of->programs + p;
        const int64_t piece = plan->piece[k], first = of->edges[piece], segment_count = of->edges[piece + 1] - first;
        const Segments segments = (Segments)program->segments + first;
        Where to = in_program(plan, into, k, p);
        if (shuffled && count == 1 && is_fused(plan, k, program)) {
            scatter_planes(&to, data, (Longs){program->planes, program->nbytes}, segments, segment_count,
                           of->row_elements[piece]);
            continue;
        }
        const char *dense = dense_of(of, program, data, nbytes, count, shuffled != 0, into->scratch);
        if (!dense)
            return NO_MEMORY;
        const int64_t dense_nbytes = nbytes / of->stored_nbytes * program->nbytes;
        const int64_t stride = of->row_elements[piece] * program->nbytes;
        keep_rows(plan, into, k, count, p, dense, dense_nbytes);
        if (!into->slots.count)
            continue;
        if (plan->boxes.axes) {
            const int64_t before = skipped / of->stored_nbytes;
            const char *const source = dense - before * program->nbytes;
            if (place_chunk_in_boxes(plan, into, k, p, source, before, nbytes / of->stored_nbytes) != DONE)
                return WRONG;
        } else if (count > 1) {
            to.offset += segments[0][1];
            scatter_beside(&to, dense + segments[0][0], dense_nbytes, stride, count, segments[0][2]);
        } else {
            (to.lengths.count ? scatter_spans : scatter)(&to, dense, stride, segments, segment_count);
        }
    }
    return DONE;
}

/* Return the end of the chunks from one on that one read brings: those that lie close together. */
static int64_t end_of_read(const ChunkPlan *plan, int64_t k, int64_t last)
{
    int64_t end = plan->offset[k] + plan->nbytes[k], other = k + 1;
    for (; other < last && plan->pipeline[other] >= 0 && plan->offset[other] >= 0 && !is_kept(plan, other); other++) {
        const int64_t gap = plan->offset[other] - end, behind = plan->offset[other] + plan->nbytes[other];
        if (gap < 0 || gap > plan->most_gap || behind - plan->offset[k] > READ_AT_ONCE_NBYTES)
            break;
        end = behind;
    }
    return other;
}

/* Undo the filters of chunks side by side, or of one; return where their bytes are, NULL if one does not decode. */
static const char *decode_chunks(const ChunkPlan *plan, Landing *into, int64_t k, int64_t count, const int64_t *at)
{
    const ChunkFields *of = plan->fields;
    const Pipeline *pipeline = pipeline_of(plan, k);
    Failure why;
    if (!pipeline)
        return (const char *)at[0];
    if (count == 1)
        return undo(pipeline, (const char *)at[0], plan->nbytes[k], NULL, into->scratch, &why);
    char *const stack = room_for(into->scratch, ROOM_STACK, of->chunk_nbytes * count);
    for (int64_t c = 0; stack && c < count; c++)
        if (!undo(pipeline, (const char *)at[c], plan->nbytes[k + c], stack + c * of->chunk_nbytes, into->scratch, &why))
            return NULL;
    return stack;
}

/* Land chunks that are in memory; return the first that was not brought. */
static int64_t land_read(const ChunkPlan *plan, int64_t k, int64_t end, const char *data, Landing *into)
{
    int64_t at[MOST_BESIDE], began = now_ns();
    for (int64_t count; k < end && !*into->stop; k += count) {
        count = count_side_by_side(plan, k, end);
        for (int64_t c = 0; c < count; c++)
            at[c] = data ? (int64_t)data + plan->offset[k + c] : into->at[k + c];
        const char *decoded = decode_chunks(plan, into, k, count, at);
        if (!decoded)
            return k;
        const Pipeline *pipeline = pipeline_of(plan, k);
        const int64_t nbytes = pipeline ? plan->fields->chunk_nbytes : plan->nbytes[k], ended = now_ns();
        const int64_t shuffled = pipeline ? pipeline->shuffled : 0, skipped = plan->boxes.axes ? plan->skipped[k] : 0;
        if (scatter_chunks(plan, into, k, count, decoded, nbytes, shuffled, skipped) != DONE)
            return k;
        const int64_t scattered = now_ns();
        into->counts[CHUNKS] += count, into->counts[DECODED_NBYTES] += count * nbytes;
        into->counts[DECODE_NS] += ended - began, into->counts[SCATTER_NS] += scattered - ended;
        began = scattered;
    }
    return k;
}

/* Bring chunks `first` to `last` of a plan to their places; return the first that was not brought, `last` if all were. */
static int64_t land_chunks(const Plan *given, int64_t first, int64_t last, Landing *into)
{
    const ChunkPlan *const plan = (const ChunkPlan *)given;
    int64_t k = first, *found = NULL;
    if (plan->boxes.axes && !(found = room_of_found(&plan->boxes, &into->found)))
        return first;
    while (k < last && !*into->stop) {
        if (is_kept(plan, k)) {
            copy_kept(plan, into, k++);
            continue;
        }
        if (plan->offset[k] < 0) {
            const int64_t began = now_ns();
            if (fill_rows(plan, into, k) != DONE)
                break;
            into->counts[SCATTER_NS] += now_ns() - began;
            k++;
            continue;
        }
        if (plan->pipeline[k] < 0)
            break;
        char *data = NULL;
        const int64_t end = end_of_read(plan, k, last), nbytes = plan->offset[end - 1] + plan->nbytes[end - 1] - plan->offset[k];
        if (into->descriptor >= 0) {
            data = room_for(into->scratch, ROOM_READ, nbytes);
            if (!data || read_bytes(into->descriptor, data, nbytes, plan->offset[k], into->counts) != DONE)
                break;
            data -= plan->offset[k];
        }
        take_processor(into->processors);
        k = land_read(plan, k, end, data, into);
        give_processor(into->processors);
        if (k < end)
            break;
    }
    fence();
    free(found);
    return k;
}

/* Copy the rows of one chunk that was decoded elsewhere. */
static int land_decoded(const ChunkPlan *plan, Landing *into, int64_t k, const char *data, int64_t shuffled)
{
    int64_t *found = NULL;
    if (plan->boxes.axes && !(found = room_of_found(&plan->boxes, &into->found)))
        return NO_MEMORY;
    const int status = scatter_chunks(plan, into, k, 1, data, plan->fields->chunk_nbytes, shuffled, 0);
    fence();
    free(found);
    return status;
}

/* --- Rows that need no decoding ------------------------------------------------------------------------------- */

typedef struct {
    Plan plan;
    Reading reading; /* without what a thread adds to it */
} RowPlan;

/* Read rows, or spans, to their places: all or none of them count as brought. */
static int64_t land_rows(const Plan *given, int64_t first, int64_t last, Landing *into)
{
    Reading of = ((const RowPlan *)given)->reading;
    const int64_t began = now_ns(), reads = into->counts[READS], nbytes = into->counts[READ_NBYTES], ns = into->counts[READ_NS];
    of.to = part_of(&given->to, first, last);
    of.to.slots = into->slots, of.field_offsets = into->offsets, of.row_nbytes = into->row_nbytes;
    of.descriptor = into->descriptor, of.counts = into->counts, of.scratch = room_for(into->scratch, ROOM_READ, of.room);
    if (*into->stop || !of.scratch || read_rows(&of) != DONE)
        return first;
    into->counts[CHUNKS] += into->counts[READS] - reads;
    into->counts[DECODED_NBYTES] += into->counts[READ_NBYTES] - nbytes;
    into->counts[SCATTER_NS] += now_ns() - began - (into->counts[READ_NS] - ns);
    return last;
}

/* --- Rows that are in memory ---------------------------------------------------------------------------------- */

typedef struct {
    Plan plan;
    /* of each field: where its first row is in memory, the bytes of a row, and whether rows are asked for ahead */
    const int64_t *sources, *nbytes, *are_asked_for;
} MemoryPlan;

static int64_t land_memory(const Plan *given, int64_t first, int64_t last, Landing *into)
{
    const MemoryPlan *const plan = (const MemoryPlan *)given;
    const int64_t began = now_ns();
    Where to = part_of(&given->to, first, last);
    int64_t rows = 0;
    if (*into->stop)
        return first;
    take_processor(into->processors);
    for (int64_t i = 0; to.lengths.count && i < to.rows.count; i++)
        rows += length_at(&to, i);
    rows = to.lengths.count ? rows : to.rows.count;
    to.slots = into->slots;
    for (int64_t field = 0; field < given->field_count; field++) {
        const int64_t nbytes = plan->nbytes[field], whole[1][3] = {{0, 0, nbytes}};
        const char *const source = (const char *)plan->sources[field];
        to.offset = into->offsets[field], to.row_nbytes = into->row_nbytes[field];
        if (nbytes && plan->are_asked_for[field])
            gather_any(&to, source);
        else if (nbytes)
            (to.lengths.count ? scatter_spans : scatter)(&to, source, nbytes, whole, 1);
        into->counts[MEMORY_NBYTES] += rows * nbytes;
    }
    fence();
    give_processor(into->processors);
    into->counts[SCATTER_NS] += now_ns() - began;
    return last;
}
