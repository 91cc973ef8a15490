/* Rows that lie in memory are copied to their places in the batches. */

enum {
    /* Of a span that comes so many later the lines at both its ends are asked for, which are written in part: 40,000
    samples of three times 400 float32 took 58 ms of processor time without that, and 43 with it. */
    SPANS_AHEAD = 4,

    /* Cache lines of a coming row that are asked for. Rows of 1 KiB in random order, two threads, milliseconds of
    processor time for 512 MiB: 62 without, 50 with 4 lines two rows ahead, 44 with 16 two ahead, 39 with 16 four ahead;
    rows of 4 KiB: 60, 34 with 4 or 8 lines, 41 with all 64. */
    PREFETCHED_LINES = 16,

    MOST_AHEAD = 32,
};

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
                const char *coming = place_of(to, ahead);
                prefetch(coming);
                prefetch(coming + length_at(to, ahead) * row_nbytes - 1);
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

/* Scatter many small chunks that lie one after the other: one call where there would be thousands. */
static int scatter_stack(const Where *to, const char *source, int64_t chunk_nbytes, Longs strides, Segments segments,
                  int64_t segment_count, Longs edges, Longs piece, const int64_t *low, const int64_t *high)
{
    for (int64_t c = 0; c < piece.count; c++) {
        const int64_t p = piece.at[c];
        if (p < 0 || p >= strides.count || p + 1 >= edges.count || low[c] < 0 || low[c] > high[c]
            || high[c] > to->rows.count || edges.at[p] < 0 || edges.at[p] > edges.at[p + 1]
            || edges.at[p + 1] > segment_count)
            return WRONG;
        const Where its = part_of(to, low[c], high[c]);
        (to->lengths.count ? scatter_spans : scatter)(
            &its, source + c * chunk_nbytes, strides.at[p], segments + edges.at[p], edges.at[p + 1] - edges.at[p]);
    }
    return DONE;
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
