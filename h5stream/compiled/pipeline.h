/* Filters of a dataset, undone for one chunk: the same for loading, for the check at opening, and for repacking.

Guarantees: nothing is allocated that is longer than `most_nbytes` and the room that a plugin needs behind its input. A
pipeline is read only, and any thread may use it; a scratch belongs to one thread. */

typedef struct {
    Step *steps; /* in the order in which they are undone */
    unsigned *values; /* the parameters of all */
    int64_t step_count;
    int64_t raw_nbytes;  /* of a decoded chunk, which the last step gives but where others follow that are not undone in C */
    int64_t most_nbytes; /* that a chunk may take at any point; more are damage, or to fill the memory */
    int64_t shuffled; /* bytes of the elements of a shuffle that was applied first, and is left to the scatter; or 0 */
} Pipeline;

/* What one step is given besides its bytes. */
typedef struct {
    const Step *step;
    char *out; /* the memory for the chunk, if it is the step that fills it */
    int64_t most_nbytes;
    int turn; /* which of two buffers is free */
    Scratch *scratch;
    Failure *why;
} Turn;

/* Return memory for a step's output: the chunk's own if that is just as long. */
static char *target_of(const Turn *turn, int64_t nbytes)
{
    char *const target = turn->out && nbytes == turn->step->exact ? turn->out
                                                                 : room_for(turn->scratch, ROOM_STEP + turn->turn, nbytes);
    if (!target)
        fail(turn->why, NO_ROOM, nbytes, 0);
    return target;
}

/* Return the bytes that a step may give. */
static int64_t room_of(const Turn *turn) { return turn->step->exact < 0 ? turn->most_nbytes : turn->step->exact; }

/* libdeflate's function. Source: `libdeflate.h`. */
typedef int InflateTo(void *decompressor, const void *in, size_t in_nbytes, void *out, size_t room, size_t *out_nbytes);

enum { HARDEST_DEFLATE = 9, INSUFFICIENT_SPACE = 3 };

static Bytes undo_deflate(const Turn *turn, Bytes data)
{
    InflateTo *const inflate_to = (InflateTo *)(intptr_t)turn->step->function;
    const int64_t rooms[] = {room_of(turn), turn->most_nbytes};
    /* The level is not needed, but libhdf5 refuses one that is damaged, and what stands beside it may be damaged too. */
    if (turn->step->value_count != 1 || turn->step->values[0] > HARDEST_DEFLATE)
        return failed(turn->why, PARAMETERS, 0, 0);
    void *const decompressor = context_of(turn->scratch, INFLATER, turn->step);
    if (!decompressor)
        return failed(turn->why, NO_ROOM, 0, 0);
    /* A second time if it goes on: libhdf5 would take memory for all of it. */
    for (int k = 0; k < 1 + (rooms[0] < rooms[1]); k++) {
        char *const target = target_of(turn, rooms[k]);
        size_t count = 0;
        if (!target)
            return NOTHING;
        const int status = inflate_to(decompressor, data.at, (size_t)data.count, target, (size_t)rooms[k], &count);
        if (status == 0)
            return (Bytes){target, (int64_t)count};
        if (status != INSUFFICIENT_SPACE)
            return failed(turn->why, DAMAGED, 0, 0);
    }
    return failed(turn->why, GOES_ON, turn->most_nbytes, 0);
}

static Bytes undo_shuffle(const Turn *turn, Bytes data)
{
    if (turn->step->value_count != 1 || !turn->step->values[0])
        return failed(turn->why, PARAMETERS, 0, 0);
    char *const target = target_of(turn, data.count);
    if (!target)
        return NOTHING;
    unshuffle(data.at, data.count, turn->step->values[0], target);
    return (Bytes){target, data.count};
}

static Bytes undo_lzf_step(const Turn *turn, Bytes data)
{
    const int64_t room = room_of(turn);
    char *const target = target_of(turn, room);
    if (!target)
        return NOTHING;
    const int64_t count = undo_lzf(data.at, data.count, target, room);
    return count < 0 ? failed(turn->why, DAMAGED, 0, 0) : (Bytes){target, count};
}

/* LZ4's function. */
typedef int Unpack(const char *in, char *out, int in_nbytes, int room);

/* Undo LZ4 in blocks. Source: `H5Zlz4.c`: the bytes of all, those of a block, and before each block how many it takes. */
static Bytes undo_lz4(const Turn *turn, Bytes data)
{
    Unpack *const unpack = (Unpack *)(intptr_t)turn->step->function;
    int64_t claimed, block, nbytes, at = 12;
    if (!number_in(data, 0, 8, true, &claimed, turn->why) || !number_in(data, 8, 4, true, &block, turn->why)
        || !may_be(claimed, turn->most_nbytes, CLAIMS_DECODED, turn->why))
        return NOTHING;
    char *const target = target_of(turn, claimed);
    if (!target)
        return NOTHING;
    for (int64_t done = 0; done < claimed; done += block, at += nbytes) {
        block = least(block, claimed - done);
        if (block < 1 || block > INT32_MAX || !number_in(data, at, 4, true, &nbytes, turn->why))
            return failed(turn->why, FEW_BLOCKS, 0, 0);
        at += 4;
        if (!may_be(at + nbytes, data.count, CLAIMS_STORED, turn->why))
            return NOTHING;
        if (nbytes == block) /* it did not shrink */
            memcpy(target + done, data.at + at, (size_t)block);
        else if (nbytes > INT32_MAX || unpack(data.at + at, target + done, (int)nbytes, (int)block) != block)
            return failed(turn->why, DAMAGED, 0, 0);
    }
    return (Bytes){target, claimed};
}

/* zstd's function. */
typedef size_t Decompress(void *context, void *out, size_t room, const void *in, size_t in_nbytes);

static Bytes undo_zstd(const Turn *turn, Bytes data)
{
    Decompress *const decompress = (Decompress *)(intptr_t)turn->step->function;
    int64_t claimed;
    if (!length_of_zstd(data, turn->most_nbytes, &claimed, turn->why))
        return NOTHING;
    void *const context = context_of(turn->scratch, ZSTD_CONTEXT, turn->step);
    char *const target = target_of(turn, claimed);
    if (!context)
        return failed(turn->why, NO_ROOM, 0, 0);
    if (!target)
        return NOTHING;
    if (!claimed || decompress(context, target, (size_t)claimed, data.at, (size_t)data.count) != (size_t)claimed)
        return failed(turn->why, REFUSED, 0, 0); /* errors are lengths that no memory has */
    return (Bytes){target, claimed};
}

/* C-Blosc's function, which takes no lock of its own, as the plugin does. */
typedef int Unblosc(const void *in, void *out, size_t room, int threads);

static Bytes undo_blosc(const Turn *turn, Bytes data)
{
    Unblosc *const unblosc = (Unblosc *)(intptr_t)turn->step->function;
    int64_t claimed;
    if (!length_of_blosc(data, turn->most_nbytes, &claimed, turn->why))
        return NOTHING;
    char *const target = target_of(turn, claimed);
    if (!target)
        return NOTHING;
    if (!claimed || unblosc(data.at, target, (size_t)claimed, 1) != claimed)
        return failed(turn->why, REFUSED, 0, 0);
    return (Bytes){target, claimed};
}

/* A plugin's function. Source: `H5Zdevelop.h` of the HDF5 library (`H5Z_func_t`). */
typedef size_t Plugin(unsigned flags, size_t value_count, const unsigned values[], size_t nbytes, size_t *allocated,
                      void **buffer);

enum { REVERSE = 0x0100, ZEROED_NBYTES = 4096 };

/* Run a plugin backwards over a copy of the bytes, once their claims hold. */
static Bytes undo_plugin(const Turn *turn, Bytes data)
{
    const Step *const step = turn->step;
    Plugin *const plugin = (Plugin *)(intptr_t)step->function;
    void **const left = turn->scratch->left + turn->turn;
    int64_t behind;
    if (!claims_hold(step, data, turn->most_nbytes, &behind, turn->why))
        return NOTHING;
    free(*left);
    /* The plugin may free or reallocate its input, so it gets memory of the C allocator's own. */
    if (!(*left = malloc((size_t)most(1, data.count + behind))))
        return failed(turn->why, NO_ROOM, data.count + behind, 0);
    memcpy(*left, data.at, (size_t)data.count);
    /* A length that is read behind the end is then zero, which every codec refuses. */
    memset((char *)*left + data.count, 0, (size_t)least(behind, ZEROED_NBYTES));
    size_t allocated = (size_t)data.count;
    const size_t count = plugin(REVERSE, (size_t)step->value_count, step->values, (size_t)data.count, &allocated, left);
    /* The one for zstd hands on a negative error code as if it were a length, of the buffer too. */
    if (!count || count > (size_t)turn->most_nbytes || count > allocated || !*left)
        return failed(turn->why, REFUSED, 0, 0);
    return (Bytes){*left, (int64_t)count};
}

static Bytes undo_step(const Turn *turn, Bytes data)
{
    if (turn->step->is_plugin)
        return undo_plugin(turn, data);
    switch (turn->step->filter) {
    case DEFLATE:
        return undo_deflate(turn, data);
    case SHUFFLE:
        return undo_shuffle(turn, data);
    case FLETCHER32:
        return undo_fletcher32(data, turn->why);
    case LZF:
        return undo_lzf_step(turn, data);
    case LZ4:
        return undo_lz4(turn, data);
    case ZSTD:
        return undo_zstd(turn, data);
    case BLOSC:
        return undo_blosc(turn, data);
    }
    return failed(turn->why, REFUSED, 0, 0);
}

/* Return whether other steps follow that are not undone in C. */
static bool is_part(const Pipeline *of)
{
    return of->step_count && of->steps[of->step_count - 1].exact != of->raw_nbytes;
}

/* Undo the filters of one chunk, however many bytes that gives; its start is NULL if they do not decode. */
static Bytes undo_steps(const Pipeline *of, Bytes data, char *out, Scratch *scratch, Failure *why)
{
    *why = (Failure){.step = -1};
    if (data.count > of->most_nbytes)
        return failed(why, TAKES_MORE, data.count, of->raw_nbytes);
    Turn turn = {.most_nbytes = of->most_nbytes, .scratch = scratch, .why = why};
    for (int64_t k = 0; k < of->step_count; k++) {
        const Step *const step = turn.step = of->steps + k;
        turn.out = k == of->step_count - 1 && step->exact == of->raw_nbytes ? out : NULL;
        why->step = k;
        data = undo_step(&turn, data);
        if (!data.at)
            return NOTHING;
        if (step->exact >= 0 && data.count != step->exact)
            return failed(why, GAVE, data.count, step->exact);
        turn.turn ^= step->filter != FLETCHER32; /* which only looks, and leaves the data where it is */
    }
    return data;
}

/* Undo the filters of one chunk; return where its `raw_nbytes` bytes are: in `out` if that is not NULL, else in scratch or,
without a filter, in `stored` itself. NULL if they do not decode, and why. */
static const char *undo(const Pipeline *of, const char *stored, int64_t nbytes, char *out, Scratch *scratch, Failure *why)
{
    const Bytes data = undo_steps(of, (Bytes){stored, nbytes}, out, scratch, why);
    if (!data.at)
        return NULL;
    if (data.count != of->raw_nbytes) {
        why->step = -1;
        fail(why, DECODES_TO, data.count, of->raw_nbytes);
        return NULL;
    }
    if (out && data.at != out)
        memcpy(out, data.at, (size_t)data.count);
    return out ? out : data.at;
}
