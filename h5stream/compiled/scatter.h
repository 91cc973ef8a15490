/* Rows that lie in memory are copied to their places in the batches. */

enum {
    /* Of a span that comes so many later the lines at both its ends are asked for where these are written in part: 40,000
    samples of three times 400 float32 took 58 ms of processor time without that, and 43 with it. */
    SPANS_AHEAD = 4,

    /* Cache lines of a coming row that are asked for. Rows of 1 KiB in random order, two threads, milliseconds of
    processor time for 512 MiB: 62 without, 50 with 4 lines two rows ahead, 44 with 16 two ahead, 39 with 16 four ahead;
    rows of 4 KiB: 60, 34 with 4 or 8 lines, 41 with all 64. */
    PREFETCHED_LINES = 16,

    MOST_AHEAD = 32,
};

/* Rows whose places are asked for together, before the first of them is written. Behind the decoding of a chunk each of
them costs a walk through the page tables, and walks go side by side only while no store past the cache is under way.
Rows of 1 KiB, chunk after chunk decoded and scattered, two threads, milliseconds of processor time for 512 MiB: 160
without, 150 to 170 with each asked for 4 to 16 rows ahead, 80 with 16 to 64 together. Where nothing is decoded in
between it costs more than it gains (46 without, 58 with it). */
enum { PLACES_AHEAD = 32 };

/* Ask for the places of the next rows, every so many rows. */
ALWAYS_INLINE void ask_for_places(const Where *to, int64_t i)
{
    if (i % PLACES_AHEAD == 0)
        for (int64_t k = i; k < least(i + PLACES_AHEAD, to->rows.count); k++)
            prefetch(place_of(to, k));
}

/* Copy rows of so few bytes that the loop takes its time: unrolled it takes three fifths. */
ALWAYS_INLINE void scatter_of_nbytes(const Where *to, const char *base, int64_t stride, int64_t count)
{
#pragma GCC unroll 8
    for (int64_t i = 0; i < to->rows.count; i++)
        copy_run(place_of(to, i), base + row_at(to, i) * stride, count);
}

ALWAYS_INLINE void scatter_as(const Where *to, const char *source, int64_t stride, Segments segments, int64_t segment_count)
{
    if (segment_count == 1) {
        const char *base = source + segments[0][0];
        const int64_t count = segments[0][2];
        Where into = *to;
        into.offset += segments[0][1];
        switch (count) { /* numbers are one load and one store */
        case 1: scatter_of_nbytes(&into, base, stride, 1); break;
        case 2: scatter_of_nbytes(&into, base, stride, 2); break;
        case 4: scatter_of_nbytes(&into, base, stride, 4); break;
        case 8: scatter_of_nbytes(&into, base, stride, 8); break;
        case 16: scatter_of_nbytes(&into, base, stride, 16); break;
        default:
            for (int64_t i = 0; i < to->rows.count; i++)
                copy_run(place_of(&into, i), base + row_at(to, i) * stride, count);
        }
        return;
    }
    for (int64_t i = 0; i < to->rows.count; i++) {
        const char *row = source + row_at(to, i) * stride;
        char *place = place_of(to, i);
        for (int64_t s = 0; s < segment_count; s++)
            copy_run(place + segments[s][1], row + segments[s][0], segments[s][2]);
    }
}

/* Copy rows of a decoded chunk to their places, without the fence. */
static void scatter(const Where *given, const char *source, int64_t stride, Segments segments, int64_t segment_count)
{
    FOR_EACH_WIDTH(given, to, scatter_as(&to, source, stride, segments, segment_count));
}

/* Copy the elements of one span, each of so many bytes. */
ALWAYS_INLINE void copy_numbers(char *target, int64_t row_nbytes, const char *base, int64_t stride, int64_t length, int64_t n)
{
    for (int64_t k = 0; k < length; k++)
        copy_run(target + k * row_nbytes, base + k * stride, n);
}

ALWAYS_INLINE void spans_as(const Where *to, const char *source, int64_t stride, Segments segments, int64_t segment_count)
{
    const int64_t count = segment_count == 1 ? segments[0][2] : 0, row_nbytes = to->row_nbytes;
    const int is_whole = count == stride && count == row_nbytes;
    for (int64_t i = 0; i < to->rows.count; i++) {
        const char *row = source + row_at(to, i) * stride;
        char *place = place_of(to, i);
        const int64_t length = length_at(to, i), ahead = i + SPANS_AHEAD;
        if (is_whole) {
            if (ahead < to->rows.count) {
                const char *coming = place_of(to, ahead), *end = coming + length_at(to, ahead) * row_nbytes;
                if (to_line(coming))
                    prefetch(coming);
                if (to_line(end))
                    prefetch(end);
            }
            copy_run(place, row, length * row_nbytes);
        } else if (count == 8) {
            copy_numbers(place + segments[0][1], row_nbytes, row + segments[0][0], stride, length, 8);
        } else if (count == 4) {
            copy_numbers(place + segments[0][1], row_nbytes, row + segments[0][0], stride, length, 4);
        } else {
            for (int64_t k = 0; k < length; k++)
                for (int64_t s = 0; s < segment_count; s++)
                    copy_run(place + k * row_nbytes + segments[s][1], row + k * stride + segments[s][0], segments[s][2]);
        }
    }
}

/* Copy spans of a decoded chunk to their places, without the fence; those that lie there as in the batch span by span. */
static void scatter_spans(const Where *given, const char *source, int64_t stride, Segments segments, int64_t segment_count)
{
    FOR_EACH_WIDTH(given, to, spans_as(&to, source, stride, segments, segment_count));
}

/* Chunks side by side whose parts of a row are joined before they are written. */
enum { MOST_BESIDE = 16, BESIDE_NBYTES = 1024 };

/* Copy a part of each row from several chunks side by side, of so many bytes from each: one run where there would be one a
chunk. Two threads, milliseconds of processor time for 512 MiB of chunks of 8192 x 4 float32: 515 one by one, 180 so; for
288 MiB of 6144 x 3: 265 and 157. */
ALWAYS_INLINE void rows_beside(const Where *to, const char *source, int64_t chunk_nbytes, int64_t stride, int64_t count,
                               int64_t n)
{
    char joined[BESIDE_NBYTES];
    for (int64_t i = 0; i < to->rows.count; i++) {
        ask_for_places(to, i);
        const char *part = source + row_at(to, i) * stride;
        for (int64_t k = 0; k < count; k++)
            copy_short(joined + k * n, part + k * chunk_nbytes, n); /* which is read at once: not past the cache */
        copy_past_cache(place_of(to, i), joined, count * n);
    }
}

static void scatter_beside(const Where *given, const char *source, int64_t chunk_nbytes, int64_t stride, int64_t count,
                           int64_t n)
{
    switch (n) { /* rows of few numbers, as h5py guesses chunks */
    case 8: FOR_EACH_WIDTH(given, to, rows_beside(&to, source, chunk_nbytes, stride, count, 8)); break;
    case 12: FOR_EACH_WIDTH(given, to, rows_beside(&to, source, chunk_nbytes, stride, count, 12)); break;
    case 16: FOR_EACH_WIDTH(given, to, rows_beside(&to, source, chunk_nbytes, stride, count, 16)); break;
    default: FOR_EACH_WIDTH(given, to, rows_beside(&to, source, chunk_nbytes, stride, count, n));
    }
}

/* Return how many rows ahead a row of so many lines is asked for. */
static int64_t rows_ahead(int64_t lines) { return most(4, least(MOST_AHEAD, 4 * PREFETCHED_LINES / most(1, lines))); }

static int64_t lines_of(int64_t nbytes) { return least(PREFETCHED_LINES, (nbytes + LINE - 1) / LINE); }

ALWAYS_INLINE void gather_any_as(const Where *to, const char *base)
{
    const int64_t count = to->rows.count, row_nbytes = to->row_nbytes;
    const int64_t lines = lines_of(row_nbytes), ahead = rows_ahead(lines);
    for (int64_t i = 0; i < count + ahead; i++) {
        if (i < count) {
            const char *row = base + row_at(to, i) * row_nbytes;
            for (int64_t line = 0; line < lines; line++)
                prefetch(row + line * LINE);
        }
        if (i >= ahead)
            copy_run(place_of(to, i - ahead), base + row_at(to, i - ahead) * row_nbytes, row_nbytes);
    }
}

/* Copy rows that lie anywhere in memory, one behind the other as batches hold them, to their places.

Random rows come from memory that no cache holds, so they are asked for a few rows ahead. */
static void gather_any(const Where *given, const char *base)
{
    FOR_EACH_WIDTH(given, to, gather_any_as(&to, base));
    fence();
}

static void put(Numbers out, int64_t at, int64_t value)
{
    if (out.wide)
        ((int64_t *)out.at)[at] = value;
    else
        ((int32_t *)out.at)[at] = (int32_t)value;
}

/* Give each row of spans, and where it goes, for itself. */
static int spread(Numbers rows, Numbers batch, Numbers within, Numbers lengths, Numbers every_row, Numbers every_batch,
           Numbers every_within)
{
    int64_t at = 0;
    for (int64_t i = 0; i < rows.count; i++) {
        const int64_t row = number_at(rows, i), into = number_at(batch, i), place = number_at(within, i);
        const int64_t length = number_at(lengths, i);
        if (length > every_row.count - at)
            return WRONG;
        for (int64_t k = 0; k < length; k++, at++) {
            put(every_row, at, row + k);
            put(every_batch, at, into);
            put(every_within, at, place + k);
        }
    }
    return DONE;
}
