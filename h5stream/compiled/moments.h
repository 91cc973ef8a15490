/* Sums, squares and extremes of each column of numbers. */

/* Four rows at a time, so that a column is loaded and stored as seldom. A mebibyte of float32 in 1,024 columns takes 110
us so, and 360 us row by row with NumPy's extremes. */
#define MOMENTS(NAME, TYPE)                                                                                            \
    ALWAYS_INLINE void sum_four_##NAME(const TYPE *values, int64_t columns, const double *restrict shift,             \
                                       double *restrict sums, double *restrict squares)                                \
    {                                                                                                                  \
        for (int64_t k = 0; k < columns; k++) {                                                                        \
            const double a = (double)values[k] - shift[k], b = (double)values[k + columns] - shift[k];                 \
            const double c = (double)values[k + 2 * columns] - shift[k];                                               \
            const double d = (double)values[k + 3 * columns] - shift[k];                                               \
            sums[k] += (a + b) + (c + d);                                                                              \
            squares[k] += (a * a + b * b) + (c * c + d * d);                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    ALWAYS_INLINE void compare_four_##NAME(const TYPE *values, int64_t columns, TYPE *restrict lowest,                \
                                           TYPE *restrict highest)                                                     \
    {                                                                                                                  \
        for (int64_t k = 0; k < columns; k++) {                                                                        \
            const TYPE a = values[k], b = values[k + columns];                                                         \
            const TYPE c = values[k + 2 * columns], d = values[k + 3 * columns];                                       \
            const TYPE low = a < b ? a : b, low_2 = c < d ? c : d, high = b < a ? a : b, high_2 = d < c ? c : d;       \
            const TYPE low_4 = low < low_2 ? low : low_2, high_4 = high_2 < high ? high : high_2;                      \
            lowest[k] = low_4 < lowest[k] ? low_4 : lowest[k];                                                         \
            highest[k] = high_4 > highest[k] ? high_4 : highest[k];                                                    \
        }                                                                                                              \
    }                                                                                                                  \
    static void moments_##NAME(const TYPE *values, int64_t rows, int64_t columns,                     \
                                                const double *restrict shift, double *restrict sums,                   \
                                                double *restrict squares, TYPE *restrict lowest,                       \
                                                TYPE *restrict highest)                                                \
    {                                                                                                                  \
        int64_t row = 0;                                                                                               \
        for (; row < rows - 3; row += 4, values += 4 * columns) {                                                      \
            sum_four_##NAME(values, columns, shift, sums, squares);                                                    \
            compare_four_##NAME(values, columns, lowest, highest);                                                     \
        }                                                                                                              \
        for (; row < rows; row++, values += columns)                                                                   \
            for (int64_t k = 0; k < columns; k++) {                                                                    \
                const double distance = (double)values[k] - shift[k];                                                  \
                sums[k] += distance;                                                                                   \
                squares[k] += distance * distance;                                                                     \
                lowest[k] = values[k] < lowest[k] ? values[k] : lowest[k];                                             \
                highest[k] = values[k] > highest[k] ? values[k] : highest[k];                                          \
            }                                                                                                          \
    }

MOMENTS(float, float)
MOMENTS(double, double)

/* Add each column's distances from a number, and their squares, and find its extremes, where all are finite. */
static void add_moments(const void *values, int is_double, int64_t rows, int64_t columns, const double *shift, double *sums,
                 double *squares, void *lowest, void *highest)
{
    if (is_double)
        moments_double(values, rows, columns, shift, sums, squares, lowest, highest);
    else
        moments_float(values, rows, columns, shift, sums, squares, lowest, highest);
}

#define SHORTS(NAME, TYPE)                                                                                             \
    static void shorts_##NAME(const TYPE *values, int64_t rows, int64_t columns, int64_t *restrict sums,               \
                              int64_t *restrict squares)                                                               \
    {                                                                                                                  \
        for (; rows > 3; rows -= 4, values += 4 * columns)                                                             \
            for (int64_t k = 0; k < columns; k++) {                                                                    \
                const int32_t a = values[k], b = values[k + columns];                                                  \
                const int32_t c = values[k + 2 * columns], d = values[k + 3 * columns];                                \
                sums[k] += a + b + c + d;                                                                              \
                squares[k] += ((uint64_t)(uint32_t)(a * a) + (uint32_t)(b * b))                                        \
                    + ((uint64_t)(uint32_t)(c * c) + (uint32_t)(d * d));                                               \
            }                                                                                                          \
        for (; rows > 0; rows--, values += columns)                                                                    \
            for (int64_t k = 0; k < columns; k++) {                                                                    \
                const int32_t a = values[k];                                                                           \
                sums[k] += a;                                                                                          \
                squares[k] += (uint32_t)(a * a);                                                                       \
            }                                                                                                          \
    }

SHORTS(int8, int8_t)
SHORTS(uint8, uint8_t)
SHORTS(int16, int16_t)
SHORTS(uint16, uint16_t)

/* Add each column's whole numbers of up to 16 bits, and their squares. */
static void add_short_integers(const void *values, char code, int64_t rows, int64_t columns, int64_t *sums, int64_t *squares)
{
    switch (code) {
    case 'b': shorts_int8(values, rows, columns, sums, squares); break;
    case 'B': shorts_uint8(values, rows, columns, sums, squares); break;
    case 'h': shorts_int16(values, rows, columns, sums, squares); break;
    case 'H': shorts_uint16(values, rows, columns, sums, squares); break;
    }
}

/* Limbs are 22 bits apart; those that are filled here have 44, so that of 2**18 rows nothing overflows. */
enum { LIMB = 44 };
#define LIMB_BITS ((INT64_C(1) << LIMB) - 1)

#define INTEGERS(NAME, TYPE, SQUARE)                                                                                   \
    static void integers_##NAME(const TYPE *values, int64_t rows, int64_t columns, int64_t *restrict sums,             \
                                int64_t *restrict squares)                                                             \
    {                                                                                                                  \
        for (; rows > 0; rows--, values += columns)                                                                    \
            for (int64_t k = 0; k < columns; k++) {                                                                    \
                const SQUARE square = (SQUARE)values[k] * (SQUARE)values[k];                                           \
                if (sizeof(TYPE) == 4)                                                                                 \
                    sums[k] += values[k];                                                                              \
                else {                                                                                                 \
                    sums[k] += (int64_t)values[k] & LIMB_BITS;                                                         \
                    sums[k + 2 * columns] += (int64_t)(values[k] >> LIMB % (8 * sizeof(TYPE)));                        \
                }                                                                                                      \
                squares[k] += (int64_t)square & LIMB_BITS;                                                             \
                squares[k + 2 * columns] += (int64_t)(square >> LIMB) & LIMB_BITS;                                     \
                if (sizeof(TYPE) == 8)                                                                                 \
                    squares[k + 4 * columns] += (int64_t)(square >> LIMB >> LIMB);                                     \
            }                                                                                                          \
    }

INTEGERS(int32, int32_t, int64_t)
INTEGERS(uint32, uint32_t, uint64_t)
INTEGERS(int64, int64_t, __int128)
INTEGERS(uint64, uint64_t, unsigned __int128)

/* Add each column's whole numbers, and their squares, by limbs. */
static void add_integers(const void *values, char code, int64_t rows, int64_t columns, int64_t *sums, int64_t *squares)
{
    switch (code) {
    case 'i': integers_int32(values, rows, columns, sums, squares); break;
    case 'I': integers_uint32(values, rows, columns, sums, squares); break;
    case 'q': integers_int64(values, rows, columns, sums, squares); break;
    case 'Q': integers_uint64(values, rows, columns, sums, squares); break;
    }
}

/* Count how often each byte comes. */
static void count_bytes(const uint8_t *values, int64_t count, int64_t *counts)
{
    int64_t tables[4][256] = {{0}}, at = 0; /* so that one byte need not wait for the one before it */
    for (uint64_t word; at + 8 <= count; at += 8) {
        memcpy(&word, values + at, 8);
        for (int k = 0; k < 8; k++)
            tables[k % 4][word >> 8 * k & 255]++;
    }
    for (; at < count; at++)
        counts[values[at]]++;
    for (int byte = 0; byte < 256; byte++)
        counts[byte] += tables[0][byte] + tables[1][byte] + tables[2][byte] + tables[3][byte];
}
