/* What a planner does to each row of a window, or to each chunk: numbers in, numbers out.

Guarantees: each writes its outputs alone, as many as the caller made room for; what would lead out of them is refused. */

/* The same for places and batches in 32 bits, whose size divides without a division: half a place more is far from the next batch,
compared with what a double rounds off. */
static int locate_narrow(const int32_t *restrict output, int64_t count, int32_t size, int32_t last, int32_t last_begin,
                         int32_t *restrict batch, int32_t *restrict within)
{
    const double in_batches = 1.0 / size;
    int is_wrong = 0;
    for (int64_t i = 0; i < count; i++)
        batch[i] = (int32_t)(((double)output[i] + 0.5) * in_batches);
    for (int64_t i = 0; i < count; i++) {
        const int is_last = output[i] >= last_begin;
        is_wrong |= output[i] < 0;
        batch[i] = is_last ? last : batch[i];
        within[i] = output[i] - (is_last ? last_begin : batch[i] * size);
    }
    return is_wrong;
}

/* Give each output place its batch and its place in that. Batches begin at `edges`; without, each has `size` places, but the
last, which is `last` and begins at `last_begin`. */
static int locate(Numbers output, Longs edges, int64_t size, int64_t last, int64_t last_begin, Numbers batch, Numbers within)
{
    int is_wrong = 0;
    if (!edges.count && !output.wide && !batch.wide && !within.wide && size <= INT32_MAX && last >= 0 && last <= INT32_MAX
        && last_begin >= 0 && last_begin <= INT32_MAX)
        return locate_narrow(output.at, output.count, (int32_t)size, (int32_t)last, (int32_t)last_begin, (int32_t *)batch.at,
                             (int32_t *)within.at) ? WRONG : DONE;
    for (int64_t i = 0; i < output.count; i++) {
        const int64_t place = number_at(output, i);
        int64_t number = last, begin = last_begin;
        if (edges.count) {
            int64_t low = 0, high = edges.count - 1;
            while (low + 1 < high) {
                const int64_t middle = low + (high - low) / 2;
                *(edges.at[middle] <= place ? &low : &high) = middle;
            }
            number = low, begin = edges.at[low];
        } else if (place < last_begin) {
            number = place / size, begin = number * size;
        }
        is_wrong |= place < begin;
        put(batch, i, number);
        put(within, i, place - begin);
    }
    return is_wrong ? WRONG : DONE;
}

static void range_of(Numbers numbers, int64_t *least_of, int64_t *most_of)
{
    *least_of = *most_of = numbers.count ? number_at(numbers, 0) : 0;
    for (int64_t i = 1; i < numbers.count; i++) {
        const int64_t number = number_at(numbers, i);
        *least_of = least(*least_of, number), *most_of = most(*most_of, number);
    }
}

static void subtract(Numbers numbers, int64_t amount, Numbers out)
{
    const int32_t *const narrow = numbers.at;
    int32_t *const to = (int32_t *)out.at;
    if (numbers.wide || out.wide)
        for (int64_t i = 0; i < numbers.count; i++)
            put(out, i, number_at(numbers, i) - amount);
    else
        for (int64_t i = 0; i < numbers.count; i++)
            to[i] = (int32_t)(uint32_t)((uint32_t)narrow[i] - (uint64_t)amount);
}

/* Count how often each batch occurs, or, with lengths, the rows of its spans. */
static int count_batches(Numbers batch, Numbers lengths, Longs counts)
{
    int64_t *const each = (int64_t *)counts.at;
    for (int64_t i = 0; i < batch.count; i++) {
        const int64_t number = number_at(batch, i);
        if (number < 0 || number >= counts.count)
            return WRONG;
        each[number] += lengths.count ? number_at(lengths, i) : 1;
    }
    return DONE;
}

/* Write the numbers of ranges one behind the other: so many of each from where it begins, and so many apart. */
static int in_ranges(Longs begins, const int64_t *counts, Longs every, Numbers out)
{
    int64_t at = 0;
    for (int64_t k = 0; k < begins.count; k++) {
        const int64_t step = every.count == 1 ? every.at[0] : every.at[k];
        if (counts[k] < 0 || counts[k] > out.count - at)
            return WRONG;
        if (step == 1 && !out.wide) {
            const uint32_t begin = (uint32_t)begins.at[k];
            uint32_t *const to = (uint32_t *)out.at + at;
            for (int64_t i = 0; i < counts[k]; i++)
                to[i] = begin + (uint32_t)i;
        } else
            for (int64_t i = 0; i < counts[k]; i++)
                put(out, at + i, begins.at[k] + i * step);
        at += counts[k];
    }
    return at == out.count ? DONE : WRONG;
}

/* Put each row to its output place, counted from `base`. */
static int in_turn(Numbers rows, Numbers outputs, int64_t base, Numbers out)
{
    for (int64_t i = 0; i < rows.count; i++) {
        const int64_t place = number_at(outputs, i) - base;
        if (place < 0 || place >= out.count)
            return WRONG;
        put(out, place, number_at(rows, i));
    }
    return DONE;
}

/* Return the first of ascending rows, behind one of them, that is `end` or more. */
ALWAYS_INLINE int64_t first_from(Numbers rows, int64_t behind, int64_t end)
{
    int64_t low = behind, step = 1;
    while (low + step < rows.count && number_at(rows, low + step) < end)
        low += step, step *= 2;
    int64_t high = least(low + step, rows.count);
    while (low + 1 < high) {
        const int64_t middle = low + (high - low) / 2;
        *(number_at(rows, middle) < end ? &low : &high) = middle;
    }
    return high;
}

/* Give the rows of one chunk their numbers inside it; return whether they ascend. */
ALWAYS_INLINE int into_chunk(Numbers rows, int64_t low, int64_t high, int64_t begin, Numbers inside)
{
    int is_wrong = 0;
    for (int64_t i = low + 1; i < high; i++)
        is_wrong |= number_at(rows, i) < number_at(rows, i - 1);
    for (int64_t i = low; i < high; i++)
        put(inside, i, number_at(rows, i) - begin);
    return !is_wrong;
}

/* Give ascending rows their numbers inside their chunks, and write where the rows of each chunk begin, and its number.

Return how many chunks they are; -1 if rows do not ascend, or there are more chunks than room. */
static int64_t into_chunks(Numbers rows, int64_t first_row, int64_t chunk_rows, Numbers inside, Longs begins, int64_t *numbers)
{
    const Numbers narrow = {.at = rows.at, .count = rows.count}, narrow_inside = {.at = inside.at, .count = inside.count};
    const int is_narrow = !rows.wide && !inside.wide;
    int64_t count = 0, end = INT64_MIN;
    for (int64_t low = 0, high; low < rows.count; low = high) {
        const int64_t row = number_at(rows, low);
        if (row < first_row || row < end || count == begins.count)
            return -1;
        const int64_t chunk = (row - first_row) / chunk_rows, begin = first_row + chunk * chunk_rows;
        end = begin + chunk_rows;
        high = first_from(rows, low, end);
        if (!(is_narrow ? into_chunk(narrow, low, high, begin, narrow_inside) : into_chunk(rows, low, high, begin, inside)))
            return -1;
        ((int64_t *)begins.at)[count] = low, numbers[count++] = chunk;
    }
    return count;
}

/* Chunks as columns of a table; see `ChunkTable`. */
typedef struct { int64_t *number, *piece, *entry, *offset, *nbytes, *low, *high; } ChunkColumns;

typedef struct { int64_t offset, place; } Placed;

static int by_offset(const void *one, const void *other)
{
    const Placed *const a = one, *const b = other;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return a->place < b->place ? -1 : 1;
}

/* Return where a chunk is among those that are stored, whose numbers ascend; -1 if it is none of them. */
static int64_t entry_of(Longs stored, int64_t all_count, int64_t number)
{
    if (stored.count == all_count)
        return number < all_count ? number : -1;
    int64_t low = 0, high = stored.count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        *(stored.at[middle] < number ? &low : &high) = stored.at[middle] < number ? middle + 1 : middle;
    }
    return low < stored.count && stored.at[low] == number ? low : -1;
}

static void put_chunk(const ChunkColumns *to, int64_t k, const ChunkColumns *from, int64_t of)
{
    to->number[k] = from->number[of], to->piece[k] = from->piece[of], to->entry[k] = from->entry[of];
    to->offset[k] = from->offset[of], to->nbytes[k] = from->nbytes[of], to->low[k] = from->low[of], to->high[k] = from->high[of];
}

/* Bring chunks into the order of their offsets, those that were never written first. */
static int sort_chunks(const ChunkColumns *table, int64_t count)
{
    int64_t k = 1;
    while (k < count && table->offset[k - 1] <= table->offset[k])
        k++;
    if (k >= count)
        return DONE;
    Placed *const placed = malloc((size_t)count * sizeof *placed);
    int64_t *const copy = malloc((size_t)count * 7 * sizeof *copy);
    if (placed && copy) {
        int64_t *const columns[] = {table->number, table->piece, table->entry, table->offset, table->nbytes, table->low, table->high};
        for (int c = 0; c < 7; c++)
            memcpy(copy + c * count, columns[c], (size_t)count * sizeof *copy);
        const ChunkColumns from = {copy, copy + count, copy + 2 * count, copy + 3 * count, copy + 4 * count, copy + 5 * count,
                                   copy + 6 * count};
        for (k = 0; k < count; k++)
            placed[k] = (Placed){table->offset[k], k};
        qsort(placed, (size_t)count, sizeof *placed, by_offset);
        for (k = 0; k < count; k++)
            put_chunk(table, k, &from, placed[k].place);
    }
    const int status = placed && copy ? DONE : NO_MEMORY;
    free(placed), free(copy);
    return status;
}

/* Cut chunks wherever their work adds up to `most_work`: the decoded bytes, and gaps that are read along. Return how many cuts
there are, where each begins and the last ends. */
static int64_t cut_chunks(const ChunkColumns *table, int64_t count, int64_t chunk_nbytes, int64_t most_gap, int64_t most_work,
                          int64_t *cuts)
{
    int64_t cut_count = 0, done = 0, before = -1;
    for (int64_t k = 0; k < count; k++) {
        int64_t work = most(table->nbytes[k], chunk_nbytes);
        if (k && table->offset[k - 1] != -1) {
            const int64_t gap = table->offset[k] - table->offset[k - 1] - table->nbytes[k - 1];
            work += gap > 0 && gap <= most_gap ? gap : 0;
        }
        if (!k || done / most_work != before)
            cuts[cut_count++] = k;
        before = done / most_work, done += work;
    }
    cuts[cut_count] = count;
    return cut_count;
}

/* Look the chunks up that rows lie in, each with all pieces of a row, and lay them as a table in the order of the file.

`low` and `high` are of `numbers`, a chunk's place in the first column of the grid; `stored` ascend. */
static int lay_chunks(Longs stored, const int64_t *offset, const int64_t *nbytes, int64_t all_count, Longs numbers,
                      const int64_t *low, const int64_t *high, Longs across, int64_t columns,
                      const ChunkColumns *table)
{
    for (int64_t i = 0, k = 0; i < numbers.count; i++)
        for (int64_t piece = 0; piece < across.count; piece++, k++) {
            const int64_t number = numbers.at[i] * columns + across.at[piece], entry = entry_of(stored, all_count, number);
            table->number[k] = number, table->piece[k] = piece, table->entry[k] = entry;
            table->offset[k] = entry < 0 ? -1 : offset[entry], table->nbytes[k] = entry < 0 ? 0 : nbytes[entry];
            table->low[k] = low[i], table->high[k] = high[i];
        }
    return sort_chunks(table, numbers.count * across.count);
}
