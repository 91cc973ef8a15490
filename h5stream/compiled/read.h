/* Rows that need no decoding are read, and put in their places; small chunks are read and inflated by one call. */

/* Columns of extents and of runs. */
enum { ACROSS, BEGIN, NBYTES, FIRST_RUN, LAST_RUN };
enum { FROM, INTO, WIDTH, REPEAT, STEP, UNIT, FIELD };

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Read so many bytes, and count them; return whether they all came. */
static int read_bytes(int descriptor, char *target, int64_t nbytes, int64_t offset, int64_t *counts)
{
    const int64_t began = now_ns();
    for (int64_t done = 0; done < nbytes;) {
        const ssize_t count = pread(descriptor, target + done, (size_t)(nbytes - done), offset + done);
        if (count < 0 && errno == EINTR)
            continue; /* a signal came before the first byte */
        if (count <= 0) {
            counts[3] = offset, counts[4] = nbytes;
            return FAILED;
        }
        done += count;
    }
    counts[0] += 1, counts[1] += nbytes, counts[2] += now_ns() - began;
    return DONE;
}

/* Return where a chunk begins in the file, -1 if it was never written; without `numbers` all of them were. */
static int64_t address_of_chunk(const Reading *of, int64_t chunk)
{
    const Longs numbers = of->numbers;
    if (!numbers.count)
        return of->offsets.count ? of->offsets.at[chunk] : -1;
    int64_t low = 0, high = numbers.count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (numbers.at[middle] < chunk)
            low = middle + 1;
        else
            high = middle;
    }
    return low < numbers.count && numbers.at[low] == chunk ? of->offsets.at[low] : -1;
}

/* Return the rows as those of one field. */
static Where in_field(const Reading *of, int64_t field)
{
    Where to = of->to;
    to.offset = of->field_offsets[field], to.row_nbytes = of->row_nbytes[field];
    return to;
}

/* Copy one run of a row that is no plain run of bytes: a member of each of some elements, or another byte order. */
static void copy_pieces(char *place, const char *source, const int64_t *run)
{
    const int64_t width = run[WIDTH], unit = run[UNIT];
    for (int64_t k = 0; k < run[REPEAT]; k++) {
        char *into = place + k * width;
        const char *begin = source + k * run[STEP];
        if (unit == 1)
            memcpy(into, begin, (size_t)width);
        else
            for (int64_t at = 0; at < width; at++)
                into[at] = begin[at - at % unit + unit - 1 - at % unit];
    }
}

/* Copy a row's runs out of what was read of one extent; 0 as its address stands for the fill value. */
static void place_row(const Reading *of, int64_t i, int64_t k, const int64_t *extent, int64_t source)
{
    const char *row = (const char *)(source + (row_at(&of->to, i) + k) * of->stride);
    const int64_t slot = of->to.slots.at[number_at(of->to.batch, i)], within = number_at(of->to.within, i) + k;
    for (int64_t r = extent[FIRST_RUN]; r < extent[LAST_RUN]; r++) {
        const int64_t *run = of->runs[r], field = run[FIELD];
        char *place = (char *)(slot + of->field_offsets[field] + within * of->row_nbytes[field] + run[INTO]);
        if (source == 0)
            copy_fill(place, run[WIDTH] * run[REPEAT], (const char *)of->fills[field], of->fill_nbytes[field]);
        else if (run[REPEAT] == 1 && run[UNIT] == 1)
            copy_run(place, row + run[FROM], run[WIDTH]);
        else
            copy_pieces(place, row + run[FROM], run);
    }
}

/* Copy the rows of a stretch out of what was read of each extent, without the fence. */
static void place_stretch(const Reading *of, const int64_t (*extents)[5], int64_t count, const int64_t *sources)
{
    for (int64_t i = 0; i < of->to.rows.count; i++)
        for (int64_t k = 0; k < length_at(&of->to, i); k++)
            for (int64_t e = 0; e < count; e++)
                place_row(of, i, k, extents[e], sources[e]);
}

/* Return whether what is read of a row is one run, so long that it is best read to its place without a copy. */
static int goes_to_its_place(const Reading *of, const int64_t *extent)
{
    const int64_t *run = of->runs[extent[FIRST_RUN]];
    return extent[LAST_RUN] - extent[FIRST_RUN] == 1 && run[REPEAT] == 1 && run[UNIT] == 1 && run[WIDTH] >= UNCOPIED_NBYTES;
}

/* Return the bytes of the room that are for one of so many extents: all of it where they do not fit together. */
static int64_t room_of_each(int64_t extents, int64_t largest, int64_t room)
{
    return extents > 1 && largest + LINE <= room / extents ? room / extents / LINE * LINE : room;
}

/* Some extents that are read together. */
typedef struct {
    const int64_t (*extents)[5];
    int64_t *sources;
    int64_t count, share, largest, farthest;
    int is_plain, is_scattered;
} Chosen;

/* Return the end of what one read takes from entry `low` on; `end` is that of its rows.

All of it lies below row `before`, and nothing farther than `farthest` from the rows before it. */
static int64_t end_of_stretch(const Where *to, int64_t low, int64_t before, int64_t farthest, int64_t *end)
{
    const int64_t count = to->rows.count, first = row_at(to, low);
    int64_t high = low + 1;
    if (to->lengths.count) {
        *end = first + length_at(to, low);
        for (; high < count; high++) {
            const int64_t row = row_at(to, high), behind = row + length_at(to, high);
            if (behind > before || row - *end >= farthest)
                break;
            *end = most(*end, behind);
        }
        return high;
    }
    const int64_t together = least(count, low + before - first);
    if (together > low && row_at(to, together - 1) - first == together - 1 - low && farthest >= 1)
        high = together; /* all of them, without a gap */
    else
        while (high < count && row_at(to, high) < before && row_at(to, high) - row_at(to, high - 1) <= farthest)
            high++;
    *end = row_at(to, high - 1) + 1;
    return high;
}

/* Read the first rows from entry `low` on at once that are a chunk each, as far as these lie behind one another.

Return how many they were: 0 where the first has no neighbour that would be worth it, -1 where a read failed. */
static int64_t read_neighbours(const Reading *of, const int64_t *extent, int64_t low)
{
    const Where to = in_field(of, of->runs[extent[FIRST_RUN]][FIELD]);
    const int64_t *run = of->runs[extent[FIRST_RUN]], nbytes = extent[NBYTES], count = to.rows.count;
    const int64_t begin = address_of_chunk(of, row_at(&to, low) - of->first_row) + extent[BEGIN];
    if (begin < extent[BEGIN])
        return 0;
    int64_t last = begin, end = begin + nbytes, high = low + 1;
    for (; high < count; high++) {
        const int64_t chunk = address_of_chunk(of, row_at(&to, high) - of->first_row), at = chunk + extent[BEGIN];
        if (chunk < 0 || at < last || at - end > of->gap || at + nbytes - begin > of->room)
            break;
        last = at, end = at + nbytes;
    }
    if (high == low + 1)
        return 0;
    if (!read_bytes(of->descriptor, of->scratch, end - begin, begin, of->counts))
        return -1;
    for (int64_t i = low; i < high; i++) {
        const int64_t at = address_of_chunk(of, row_at(&to, i) - of->first_row);
        copy_run(place_of(&to, i) + run[INTO], of->scratch + at + run[FROM] - begin, run[WIDTH]);
    }
    return high - low;
}

/* Read extents of neighbouring rows, and note where row 0 of each would lie: 0 where nothing was written. */
static int read_extents(const Reading *of, const Chosen *chosen, int64_t first_chunk, int64_t skipped, int64_t more,
                        char *target)
{
    for (int64_t e = 0; e < chosen->count; e++) {
        const int64_t *extent = chosen->extents[e], at = address_of_chunk(of, first_chunk + extent[ACROSS]);
        char *into = target + e * chosen->share;
        chosen->sources[e] = 0;
        if (at < 0)
            continue;
        if (!read_bytes(of->descriptor, into, more + extent[NBYTES], at + skipped + extent[BEGIN], of->counts))
            return FAILED;
        chosen->sources[e] = (int64_t)into - extent[BEGIN];
    }
    return DONE;
}

/* Copy the rows from entry `low` to `high` that were read together. */
static void place_chosen(const Reading *of, const Chosen *chosen, int64_t low, int64_t high)
{
    Reading part = *of;
    part.to = part_of(&of->to, low, high);
    if (!chosen->is_plain || chosen->sources[0] == 0) {
        place_stretch(&part, chosen->extents, chosen->count, chosen->sources);
        return;
    }
    const Where to = in_field(&part, of->runs[0][FIELD]);
    const int64_t segment[1][3] = {{of->runs[0][FROM], of->runs[0][INTO], of->runs[0][WIDTH]}};
    (to.lengths.count ? scatter_spans : scatter)(&to, (const char *)chosen->sources[0], of->stride, segment, 1);
}

/* Read a stretch of rows from entry `low` on, and put them in their places; return the entry behind it. */
static int64_t read_stretch(const Reading *of, const Chosen *chosen, int64_t low)
{
    const int64_t first = row_at(&of->to, low), length = length_at(&of->to, low);
    const int64_t chunk = (first - of->first_row) / of->chunk_rows, begin = of->first_row + chunk * of->chunk_rows;
    const int64_t *run = of->runs[chosen->extents[0][FIRST_RUN]];
    const int is_alone = chosen->count == 1 && length == 1 && goes_to_its_place(of, chosen->extents[0]);
    const int is_uncopied = of->whole_rows ? length >= of->whole_rows : is_alone;
    int64_t high = low + 1, end = first + length;
    char *target = of->scratch;
    if (is_uncopied) {
        const Where to = in_field(of, run[FIELD]);
        target = place_of(&to, low) + run[INTO];
    } else {
        const int64_t fits = (chosen->share - chosen->largest) / of->stride + 1;
        high = end_of_stretch(&of->to, low, least(begin + of->chunk_rows, first + fits), chosen->farthest, &end);
        if (end - first > fits)
            return WRONG;
    }
    const int64_t skipped = (first - begin) * of->stride, more = (end - first - 1) * of->stride;
    if (!read_extents(of, chosen, chunk * of->across, skipped, more, target))
        return FAILED;
    for (int64_t e = 0; e < chosen->count; e++)
        chosen->sources[e] -= chosen->sources[e] ? first * of->stride : 0;
    if (!is_uncopied || chosen->sources[0] == 0)
        place_chosen(of, chosen, low, high);
    return high;
}

/* Do what `read_rows` does, for some of the extents; without the fence. */
static int read_chosen(const Reading *of, const Chosen *chosen)
{
    for (int64_t low = 0; low < of->to.rows.count;) {
        if (chosen->is_scattered) {
            const int64_t together = read_neighbours(of, chosen->extents[0], low);
            if (together < 0)
                return FAILED;
            low += together;
            if (together)
                continue;
        }
        const int64_t high = read_stretch(of, chosen, low);
        if (high <= low)
            return (int)high;
        low = high;
    }
    return DONE;
}

/* Return whether rows ascend, every chunk that they lie in has a place in the table, and no extent is longer than the room. */
static int is_sound(const Reading *of, int64_t across, int64_t largest)
{
    const int64_t count = of->to.rows.count, end = row_at(&of->to, count - 1);
    const int64_t last = (end - of->first_row) / of->chunk_rows * of->across + across;
    int is_wrong = 0;
    for (int64_t i = 0; i < count; i++)
        is_wrong |= (i && row_at(&of->to, i) < row_at(&of->to, i - 1)) || length_at(&of->to, i) < 0;
    return !is_wrong && of->first_row >= 0 && row_at(&of->to, 0) >= of->first_row && end < INT64_MAX / 2 / of->stride
        && largest <= of->room && of->across > 0 && across < INT64_MAX / 4
        && (of->numbers.count || !of->offsets.count || (last >= 0 && last < of->offsets.count));
}

/* Read rows that need no decoding, no bytes but those of the extents, and put them in their places.

Rows of one chunk that lie no more than the gap apart are read together, as far as the room goes. */
static int read_rows(Reading *of)
{
    int64_t largest = 0, smallest = INT64_MAX, across = 0;
    for (int64_t e = 0; e < of->extent_count; e++) {
        largest = most(largest, of->extents[e][NBYTES]), smallest = least(smallest, of->extents[e][NBYTES]);
        across = most(across, of->extents[e][ACROSS]);
    }
    if (!of->to.rows.count || !of->extent_count)
        return DONE;
    if (!is_sound(of, across, largest))
        return WRONG;
    const int64_t share = room_of_each(of->extent_count, largest, of->room);
    const int64_t at_once = share < of->room ? of->extent_count : 1, *run = of->runs[0];
    int64_t one, *sources = at_once > 1 ? malloc((size_t)at_once * sizeof *sources) : &one;
    if (!sources)
        return NO_MEMORY;
    Chosen chosen = {.sources = sources, .count = at_once, .share = share, .largest = largest};
    chosen.farthest = (of->gap + smallest) / of->stride;
    chosen.is_plain = at_once == 1 && of->run_count == 1 && run[REPEAT] == 1 && run[UNIT] == 1;
    /* Objects: each row is a chunk of its own, wherever that lies, and chunks that are neighbours are read together. */
    chosen.is_scattered = chosen.is_plain && of->chunk_rows == 1 && of->across == 1 && of->whole_rows != 1;
    int status = DONE;
    for (int64_t e = 0; e < of->extent_count && status == DONE; e += at_once) {
        chosen.extents = of->extents + e;
        status = read_chosen(of, &chosen);
    }
    fence();
    if (sources != &one)
        free(sources);
    return status;
}

/* Read consecutive rows of so many bytes, which lie chunk by chunk as they are. */
static int read_plain(int descriptor, Longs offsets, int64_t chunk_rows, int64_t first, int64_t count, int64_t nbytes, char *target,
               int64_t *counts)
{
    while (count > 0) {
        const int64_t chunk = first / chunk_rows, inside = first - chunk * chunk_rows;
        const int64_t rows = least(count, chunk_rows - inside);
        if (first < 0 || chunk >= offsets.count)
            return WRONG;
        if (!read_bytes(descriptor, target, rows * nbytes, offsets.at[chunk] + inside * nbytes, counts))
            return FAILED;
        first += rows, count -= rows, target += rows * nbytes;
    }
    return DONE;
}

/* Count how many reads ascending rows, or spans of them, take, and the rows that are read along between them. */
static void count_reads(Numbers rows, Numbers lengths, int64_t most_gap, int64_t *reads, int64_t *skipped)
{
    int64_t end = number_at(rows, 0);
    *reads = 1, *skipped = 0;
    for (int64_t k = 0; k < rows.count; k++) {
        const int64_t row = number_at(rows, k), gap = row - end;
        *reads += gap > most_gap;
        *skipped += gap > 0 && gap <= most_gap ? gap : 0;
        end = most(end, row + (lengths.count ? number_at(lengths, k) : 1));
    }
}
