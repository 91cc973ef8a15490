/* Byte planes become elements: a byte shuffle is undone, and where its rows are long scattered in the same pass.

`planes` holds where each byte plane of the wanted number begins in the source, least significant first: a foreign byte
order, or a member inside a compound, is another order of planes at no cost. */

/* Elements of an odd width whose planes are joined before the next ones': they stay in a core's cache. */
enum { BLOCK = 1024 };

/* Join the bytes of elements from number `first` on, one by one. */
ALWAYS_INLINE void join_some(const char *source, Longs planes, int width, int64_t first, int64_t count, char *out)
{
    const char *plane[8];
    for (int k = 0; k < width; k++)
        plane[k] = source + planes.at[k] + first;
    for (int64_t j = 0; j < count; j++)
        for (int k = 0; k < width; k++)
            out[j * width + k] = plane[k][j];
}

#ifdef __SSE2__
ALWAYS_INLINE __m128i load_16(const char *at) { return _mm_loadu_si128((const __m128i *)at); }

ALWAYS_INLINE __m128i load_8(const char *at) { return _mm_loadl_epi64((const __m128i *)at); }

ALWAYS_INLINE void store_16(char *at, __m128i value, int is_past_cache)
{
    if (is_past_cache)
        _mm_stream_si128((__m128i *)at, value);
    else
        _mm_storeu_si128((__m128i *)at, value);
}

/* Join byte planes to 64 bytes of elements. */
ALWAYS_INLINE void join_line(const char *const *plane, int width, int64_t j, char *out, int is_past_cache)
{
    __m128i run[4];
    if (width == 2) {
        for (int k = 0; k < 2; k++) {
            const __m128i a = load_16(plane[0] + j + 16 * k), b = load_16(plane[1] + j + 16 * k);
            run[2 * k] = _mm_unpacklo_epi8(a, b), run[2 * k + 1] = _mm_unpackhi_epi8(a, b);
        }
    } else if (width == 4) {
        const __m128i a = load_16(plane[0] + j), b = load_16(plane[1] + j);
        const __m128i c = load_16(plane[2] + j), d = load_16(plane[3] + j);
        const __m128i ab = _mm_unpacklo_epi8(a, b), cd = _mm_unpacklo_epi8(c, d);
        const __m128i ab_high = _mm_unpackhi_epi8(a, b), cd_high = _mm_unpackhi_epi8(c, d);
        run[0] = _mm_unpacklo_epi16(ab, cd), run[1] = _mm_unpackhi_epi16(ab, cd);
        run[2] = _mm_unpacklo_epi16(ab_high, cd_high), run[3] = _mm_unpackhi_epi16(ab_high, cd_high);
    } else {
        __m128i pair[4];
        for (int k = 0; k < 4; k++)
            pair[k] = _mm_unpacklo_epi8(load_8(plane[2 * k] + j), load_8(plane[2 * k + 1] + j));
        const __m128i low = _mm_unpacklo_epi16(pair[0], pair[1]), high = _mm_unpacklo_epi16(pair[2], pair[3]);
        const __m128i low_2 = _mm_unpackhi_epi16(pair[0], pair[1]), high_2 = _mm_unpackhi_epi16(pair[2], pair[3]);
        run[0] = _mm_unpacklo_epi32(low, high), run[1] = _mm_unpackhi_epi32(low, high);
        run[2] = _mm_unpacklo_epi32(low_2, high_2), run[3] = _mm_unpackhi_epi32(low_2, high_2);
    }
    for (int k = 0; k < 4; k++)
        store_16(out + 16 * k, run[k], is_past_cache);
}
#else
ALWAYS_INLINE void join_line(const char *const *plane, int width, int64_t j, char *out, int is_past_cache)
{
    (void)is_past_cache;
    for (int e = 0; e < LINE / width; e++)
        for (int k = 0; k < width; k++)
            out[e * width + k] = plane[k][j + e];
}
#endif

/* Join the bytes of elements from number `first` on: whole cache lines at once, and past the cache if that is wanted. */
ALWAYS_INLINE void join(const char *source, Longs planes, int width, int64_t first, int64_t count, char *out, int is_past_cache)
{
    const int64_t lanes = LINE / width, from_line = to_line(out);
    const int is_aligned = from_line % width == 0;
    int64_t at = is_past_cache && is_aligned ? least(from_line / width, count) : 0;
    const char *plane[8];
    for (int k = 0; k < width; k++)
        plane[k] = source + planes.at[k] + first;
    join_some(source, planes, width, first, at, out);
    if (is_past_cache && is_aligned)
        for (; at + lanes <= count; at += lanes)
            join_line(plane, width, at, out + at * width, 1);
    else
        for (; at + lanes <= count; at += lanes)
            join_line(plane, width, at, out + at * width, 0);
    join_some(source, planes, width, first + at, count - at, out + at * width);
}

ALWAYS_INLINE void scatter_joined(const Where *to, const char *source, Longs planes, int width, Segments segments,
                              int64_t segment_count, int64_t row_elements)
{
    for (int64_t i = 0; i < to->rows.count; i++) {
        ask_for_places(to, i);
        int64_t row = row_at(to, i) * row_elements;
        char *place = place_of(to, i);
        for (int64_t k = length_at(to, i); k > 0; k--, row += row_elements, place += to->row_nbytes)
            for (int64_t s = 0; s < segment_count; s++)
                join(source, planes, width, row + segments[s][0] / width, segments[s][2] / width, place + segments[s][1], 1);
    }
}

/* Undo a byte shuffle of elements of 2, 4 or 8 bytes and scatter rows, or spans of them, in one pass, a cache line of a row
at a time; without the fence. */
static void scatter_planes(const Where *given, const char *source, Longs planes, Segments segments, int64_t segment_count,
                    int64_t row_elements)
{
    if (planes.count == 2)
        FOR_EACH_WIDTH(given, to, scatter_joined(&to, source, planes, 2, segments, segment_count, row_elements));
    else if (planes.count == 4)
        FOR_EACH_WIDTH(given, to, scatter_joined(&to, source, planes, 4, segments, segment_count, row_elements));
    else
        FOR_EACH_WIDTH(given, to, scatter_joined(&to, source, planes, 8, segments, segment_count, row_elements));
}

/* Undo a byte shuffle: byte `k` of element `i` comes from `source[planes[k] + i]`. */
static void gather_planes(const char *source, Longs planes, int64_t count, char *out)
{
    const int64_t width = planes.count;
    if (width == 2)
        join(source, planes, 2, 0, count, out, 0);
    else if (width == 4)
        join(source, planes, 4, 0, count, out, 0);
    else if (width == 8)
        join(source, planes, 8, 0, count, out, 0);
    else
        for (int64_t first = 0; first < count; first += BLOCK)
            for (int64_t k = 0; k < width; k++) {
                const char *plane = source + planes.at[k];
                const int64_t end = least(first + BLOCK, count);
#pragma GCC unroll 8
                for (int64_t i = first; i < end; i++)
                    out[i * width + k] = plane[i];
            }
}

/* Take the bytes of one member out of stored elements: byte `k` comes from `places[k]` in each. */
static void gather_leaf(const char *source, int64_t stride, Longs places, int64_t count, char *out)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < places.count; k++)
            out[i * places.count + k] = source[i * stride + places.at[k]];
}
