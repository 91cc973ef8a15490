/* Values of variable length: what a file keeps of them in the collections of its global heap.

A collection has its size in its header, and behind that objects, each with its index and size. Source: the HDF5 File
Format Specification, version 3.0, "Global Heap"; what of a damaged one is taken follows libhdf5's `H5HGcache.c`: all of a
collection must add up, and of two objects with one index the last counts.

Guarantees: nothing is read but inside of the file and of the buffer, and nothing is copied but from a collection that adds
up, as many bytes as the caller says that an object has and at most as many as it has. */

/* Bytes of the header of a collection, and of an object in one; of a collection, at least; objects of one, at most. */
enum { HEADER_NBYTES = 16, LEAST_NBYTES = 4096, MOST_OBJECTS = 1 << 16 };

/* Where an object lies in the buffer, if it belongs to the collection of this turn. */
typedef struct { int64_t turn, at, nbytes; } HeapObject;

/* What is wanted: of each object its collection, its index there, its bytes, how many are copied, and where to. */
typedef struct {
    int descriptor;
    int64_t file_nbytes, length_nbytes, count, room, gap_nbytes;
    const int64_t *address, *index, *nbytes, *wanted, *target;
    char *buffer;
    bool *failed;
} Heap;

/* Return an unsigned number of up to 8 bytes; one of 2**63 and more is negative. */
static int64_t stored_number(const char *at, int64_t nbytes)
{
    uint64_t number = 0;
    for (int64_t k = 0; k < nbytes; k++)
        number |= (uint64_t)(unsigned char)at[k] << (8 * k);
    return (int64_t)number;
}

static int64_t aligned(int64_t nbytes) { return (nbytes + 7) & ~INT64_C(7); }

/* Return the bytes of a collection for an object of so many bytes, if that is alone in it. */
static int64_t nbytes_around(int64_t nbytes) { return most(LEAST_NBYTES, 2 * HEADER_NBYTES + aligned(nbytes)); }

/* Note where each object of a collection lies; return whether its sizes add up. */
static int find_objects(const Heap *of, int64_t at, int64_t nbytes, HeapObject *table, int64_t turn)
{
    const int64_t end = at + nbytes;
    int has_free = 0;
    for (at += HEADER_NBYTES; at + HEADER_NBYTES <= end;) {
        const int64_t which = stored_number(of->buffer + at, 2), size = stored_number(of->buffer + at + 8, of->length_nbytes);
        if (size < 0 || size > end - at)
            return 0;
        const int64_t step = which ? HEADER_NBYTES + aligned(size) : size;
        if (step < 1 || step > end - at)
            return 0;
        table[which] = (HeapObject){turn, at + HEADER_NBYTES, size};
        has_free |= which == 0;
        at += step;
    }
    return at == end || !has_free; /* less than a header is free space */
}

/* Return the bytes that the header of a collection says; 0 where there is none. */
static int64_t nbytes_of_collection(const Heap *of, int64_t at, int64_t count)
{
    if (at + HEADER_NBYTES > count || memcmp(of->buffer + at, "GCOL\1", 5))
        return 0;
    return stored_number(of->buffer + at + 8, of->length_nbytes);
}

/* Return where a range ends that also brings collections which lie close behind the first, and how many objects these have. */
static int64_t end_of_range(const Heap *of, int64_t first, int64_t end, int64_t *stop)
{
    for (*stop = first + 1; *stop < of->count; ++*stop) {
        const int64_t farther = most(end, of->address[*stop] + nbytes_around(of->nbytes[*stop]));
        if (of->address[*stop] - end > of->gap_nbytes || farther - of->address[first] > of->room)
            break;
        end = farther;
    }
    return end;
}

/* Return whether addresses ascend, so that no collection lies before the range that is read for it, and sizes are sizes. */
static int are_in_order(const Heap *of)
{
    int is_wrong = 0;
    for (int64_t k = 0; k < of->count; k++)
        is_wrong |= of->nbytes[k] < 0 || of->wanted[k] < 0 || (k && of->address[k] < of->address[k - 1]);
    return !is_wrong;
}

/* Copy objects to their places; those that cannot be had here are noted. Counts the ranges that were read, and their bytes. */
static int read_objects(const Heap *of, int64_t *counts)
{
    if (!are_in_order(of))
        return WRONG;
    HeapObject *const table = calloc(MOST_OBJECTS, sizeof *table); /* pages that are not touched are not there */
    int64_t turn = 0, need = 0;
    if (!table)
        return NO_MEMORY;
    for (int64_t at = 0, stop; at < of->count; at = stop) {
        const int64_t begin = of->address[at];
        stop = at + 1;
        if (begin < 0) { /* -1 stands for nothing, all else for a doubt */
            of->failed[at] = begin != -1;
            continue;
        }
        const int64_t end = end_of_range(of, at, begin + most(need, nbytes_around(of->nbytes[at])), &stop);
        const int64_t count = least(least(end, of->file_nbytes) - begin, of->room);
        need = 0;
        if (count < 2 * HEADER_NBYTES || !read_bytes(of->descriptor, of->buffer, count, begin, counts)) {
            memset(of->failed + at, 1, (size_t)(stop - at));
            continue;
        }
        int64_t known = -1;
        int is_sound = 0;
        for (int64_t k = at; k < stop; k++) {
            if (of->address[k] != known) {
                known = of->address[k], is_sound = 0;
                const int64_t start = known - begin, size = nbytes_of_collection(of, start, count);
                if (size >= LEAST_NBYTES && size <= least(of->room, of->file_nbytes - known)) {
                    if (start + size > count) { /* larger than was thought: once more, from here */
                        stop = k, need = size;
                        break;
                    }
                    is_sound = find_objects(of, start, size, table, ++turn);
                }
            }
            const int64_t which = of->index[k];
            if (!is_sound || which < 1 || which >= MOST_OBJECTS || table[which].turn != turn ||
                table[which].nbytes != of->nbytes[k] || of->wanted[k] > of->nbytes[k])
                of->failed[k] = true;
            else
                memcpy((char *)of->target[k], of->buffer + table[which].at, (size_t)of->wanted[k]);
        }
    }
    free(table);
    return DONE;
}

/* --- As plans ------------------------------------------------------------------------------------------------- */

/* Values of a dataset, in the order in which they lie in the file: a row of the plan, less `first_row`, is the number of one. */
typedef struct {
    Plan plan;
    int64_t file_nbytes, length_nbytes, item_nbytes, most_nbytes, room, gap_nbytes, first_row; /* most_nbytes: of a value that are wanted */
    const int64_t *address;
    const uint32_t *index, *length; /* its number in its collection, its items */
} HeapPlan;

/* Return whether rows are numbers of so many values, whose addresses ascend. */
static int are_values_there(const HeapPlan *plan, int64_t count)
{
    int64_t last = INT64_MIN;
    for (int64_t k = 0; k < plan->plan.count; k++) {
        const int64_t row = row_at(&plan->plan.to, k);
        if (row < plan->first_row || row - plan->first_row >= count || plan->address[row - plan->first_row] < last)
            return 0;
        last = plan->address[row - plan->first_row];
    }
    return 1;
}

/* Read values to their places; return the first that was not brought. */
static int64_t land_heap(const Plan *given, int64_t first, int64_t last, Landing *into)
{
    const HeapPlan *const plan = (const HeapPlan *)given;
    const int64_t count = last - first, began = now_ns();
    int64_t own[COUNTS] = {0}, done = first, *const each = malloc((size_t)count * 5 * sizeof *each + 1);
    bool *const failed = calloc((size_t)count + 1, sizeof *failed);
    char *const buffer = room_for(into->scratch, ROOM_READ, plan->room);
    if (each && failed && buffer && !*into->stop) {
        int64_t *const address = each, *const index = each + count, *const nbytes = each + 2 * count;
        int64_t *const wanted = each + 3 * count, *const target = each + 4 * count;
        Where to = part_of(&given->to, first, last);
        to.slots = into->slots, to.offset = into->offsets[0], to.row_nbytes = into->row_nbytes[0];
        for (int64_t k = 0; k < count; k++) {
            const int64_t row = row_at(&to, k) - plan->first_row;
            address[k] = plan->address[row], index[k] = plan->index[row];
            nbytes[k] = plan->length[row] * plan->item_nbytes, wanted[k] = least(nbytes[k], plan->most_nbytes);
            target[k] = (int64_t)place_of(&to, k);
        }
        const Heap of = {.descriptor = into->descriptor, .file_nbytes = plan->file_nbytes, .length_nbytes = plan->length_nbytes,
                         .count = count, .room = plan->room, .gap_nbytes = plan->gap_nbytes, .address = address, .index = index,
                         .nbytes = nbytes, .wanted = wanted, .target = target, .buffer = buffer, .failed = failed};
        if (read_objects(&of, own) == DONE)
            while (done < last && !failed[done - first])
                done++;
    }
    free(each);
    free(failed);
    for (int k = READS; k <= READ_NS; k++)
        into->counts[k] += own[k];
    into->counts[CHUNKS] += own[READS], into->counts[DECODED_NBYTES] += own[READ_NBYTES];
    into->counts[SCATTER_NS] += now_ns() - began - own[READ_NS];
    return done;
}
