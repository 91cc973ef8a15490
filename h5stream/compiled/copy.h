/* Copies of rows: to memory that is not read soon, so whole cache lines are written past the cache.

Without that every line is first fetched to be overwritten, which makes scattering over a large window three times slower
(12 against 40 GB/s with two threads on the reference machine). Whoever stores past the cache ends with `fence`, so that
its rows are visible before its task is reported. */

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum {
    LINE = 64,
    STREAM_NBYTES = 256, /* Shortest run of bytes that is written past the cache; shorter ones would leave lines half full. */
};

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Return the bytes from an address to the first whole cache line. */
static inline int64_t to_line(const void *at) { return (int64_t)(-(uintptr_t)at % LINE); }

/* Ask for the cache line at an address; one that is not mapped is ignored. */
ALWAYS_INLINE void prefetch(const void *at) { __builtin_prefetch(at, 0, 3); }

/* Make stores past the cache visible to other threads before whatever follows. */
static inline void fence(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

/* Copy four runs of 16 bytes, so far from one another, to one cache line, past the cache. */
ALWAYS_INLINE void stream_line_of_16(char *line, const char *source, int64_t stride)
{
    for (int k = 0; k < 4; k++)
#ifdef __SSE2__
        _mm_stream_si128((__m128i *)line + k, _mm_loadu_si128((const __m128i *)(source + k * stride)));
#else
        memcpy(line + 16 * k, source + k * stride, 16);
#endif
}

/* Copy one cache line to an aligned address, past the cache: with AVX rows of 256 to 4096 bytes take 10 to 15 % less. */
ALWAYS_INLINE void stream_line(char *line, const char *source)
{
#ifdef WITH_AVX2
    const __m256i first = _mm256_loadu_si256((const __m256i *)source), last = _mm256_loadu_si256((const __m256i *)source + 1);
    _mm256_stream_si256((__m256i *)line, first);
    _mm256_stream_si256((__m256i *)line + 1, last);
#else
    stream_line_of_16(line, source, 16);
#endif
}

/* Copy the first and the last `some` of few bytes, at most 8. */
ALWAYS_INLINE void copy_ends(char *target, const char *source, int64_t count, size_t some)
{
    char first[8], last[8];
    memcpy(first, source, some);
    memcpy(last, source + count - some, some);
    memcpy(target, first, some);
    memcpy(target + count - some, last, some);
}

/* Copy few bytes: 16 at a time, where a call of memcpy would take longer. */
ALWAYS_INLINE void copy_short(char *target, const char *source, int64_t count)
{
    if (count < 16) {
        /* Two halves, which may overlap. */
        if (count >= 8)
            copy_ends(target, source, count, 8);
        else if (count >= 4)
            copy_ends(target, source, count, 4);
        else if (count >= 2)
            copy_ends(target, source, count, 2);
        else if (count)
            *target = *source;
        return;
    }
    for (int64_t at = 0; at < count - 16; at += 16)
        memcpy(target + at, source + at, 16);
    memcpy(target + count - 16, source + count - 16, 16);
}

/* Copy bytes, whole lines past the cache. */
ALWAYS_INLINE void copy_past_cache(char *target, const char *source, int64_t count)
{
    int64_t at = least(to_line(target), count);
    if (at)
        copy_short(target, source, at);
    for (; at + LINE <= count; at += LINE)
        stream_line(target + at, source + at);
    if (at < count)
        copy_short(target + at, source + at, count - at);
}

/* Copy one run of a row: past the cache where it is long. */
ALWAYS_INLINE void copy_run(char *target, const char *source, int64_t count)
{
    if (count >= STREAM_NBYTES)
        copy_past_cache(target, source, count);
    else
        copy_short(target, source, count);
}

/* Fill bytes with a fill value: what is filled is copied behind itself, in few long copies. */
static inline void copy_fill(char *place, int64_t nbytes, const char *fill, int64_t fill_nbytes)
{
    int64_t done = least(fill_nbytes, nbytes);
    if (done <= 0)
        return;
    memcpy(place, fill, (size_t)done);
    for (int64_t more; done < nbytes; done += more)
        memcpy(place + done, place, (size_t)(more = least(done, nbytes - done)));
}
