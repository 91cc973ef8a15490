/* Rows of sparse matrices are laid dense: values go to the places of their columns. */

/* Codes as Python's struct has them; `F` and `D` are complex. */
#define EACH_COLUMN_TYPE(X) X('b', int8_t) X('h', int16_t) X('i', int32_t) X('q', int64_t)
#define EACH_VALUE_TYPE(X)                                                                                             \
    EACH_COLUMN_TYPE(X)                                                                                                \
    X('?', bool) X('B', uint8_t) X('H', uint16_t) X('I', uint32_t) X('Q', uint64_t)                                    \
    X('f', float) X('d', double) X('F', float complex) X('D', double complex)

/* Find the lowest and the highest of some numbers: looking at all of them is faster than leaving early. */
static void extremes(const void *columns, char code, int64_t count, int64_t *lowest, int64_t *highest)
{
#define EXTREMES(CODE, TYPE)                                                                                           \
    case CODE: {                                                                                                       \
        const TYPE *each = columns;                                                                                    \
        TYPE low = each[0], high = each[0];                                                                            \
        for (int64_t k = 0; k < count; k++) {                                                                          \
            low = each[k] < low ? each[k] : low;                                                                       \
            high = each[k] > high ? each[k] : high;                                                                    \
        }                                                                                                              \
        *lowest = low, *highest = high;                                                                                \
        break;                                                                                                         \
    }
    switch (code) { EACH_COLUMN_TYPE(EXTREMES) }
}

/* Note which values are in columns that are wanted, and the places of those; without a branch, since few may be. */
static int64_t note(const void *columns, char code, int64_t first, int64_t count, const int32_t *places,
                    const uint8_t *is_wanted, int32_t *noted)
{
    int64_t found = 0;
#define NOTE(CODE, TYPE)                                                                                               \
    case CODE: {                                                                                                       \
        const TYPE *each = (const TYPE *)columns + first;                                                              \
        for (int64_t k = 0; k < count; k++) {                                                                          \
            noted[found] = (int32_t)k;                                                                                 \
            found += is_wanted[each[k]];                                                                               \
        }                                                                                                              \
        for (int64_t i = 0; i < found; i++)                                                                            \
            noted[count + 1 + i] = places[each[noted[i]]];                                                             \
        break;                                                                                                         \
    }
    switch (code) { EACH_COLUMN_TYPE(NOTE) }
    return found;
}

/* Add the values that were noted to their places in a row. */
static void add_noted(const void *values, char code, int64_t first, const int32_t *noted, const int32_t *into, int64_t count,
                      char *row)
{
#define ADD(CODE, TYPE)                                                                                                \
    case CODE:                                                                                                         \
        for (int64_t i = 0; i < count; i++)                                                                            \
            ((TYPE *)row)[into[i]] += ((const TYPE *)values)[first + noted[i]];                                        \
        break;
    switch (code) { EACH_VALUE_TYPE(ADD) }
}

/* A matrix: its values and their columns, where these go in a row, and room to note some of them. */
typedef struct {
    const void *values, *columns;
    char code, column_code;
    const int32_t *places;
    const uint8_t *is_wanted;
    int32_t *noted;
} Matrix;

/* Make a row of a dense matrix of some values of a sparse one. */
static void lay_dense(const Matrix *of, int64_t first, int64_t count, char *row, int64_t row_nbytes)
{
    const int64_t found = note(of->columns, of->column_code, first, count, of->places, of->is_wanted, of->noted);
    memset(row, 0, (size_t)row_nbytes);
    add_noted(of->values, of->code, first, of->noted, of->noted + count + 1, found, row);
}

/* Return whether the matrix has all of some columns; one that it does not have is written to `wrong`. */
static int are_columns(const void *columns, char code, int64_t count, int64_t width, int64_t *wrong)
{
    int64_t lowest = 0, highest = -1;
    if (count)
        extremes(columns, code, count, &lowest, &highest);
    if (lowest >= 0 && highest < width)
        return 1;
    *wrong = lowest < 0 ? lowest : highest;
    return 0;
}

/* Write the values of each row to the places of their columns; those of one are added. A column that there is not is written
to `wrong`.

Few columns may be wanted: where their values lie is noted without a branch, and only those are looked at again. */
static int add_sparse(Bytes values, char code, int64_t nbytes, const void *columns, char column_code, Longs offsets, Longs places,
               int64_t longest, char *out, int64_t wanted, int64_t *wrong)
{
    if (!are_columns(columns, column_code, values.count, places.count, wrong))
        return DONE;

    uint8_t *is_wanted = malloc((size_t)places.count + 1);
    int32_t *noted = malloc((size_t)(2 * longest + 2) * sizeof *noted);
    const int32_t *place = (const int32_t *)places.at;
    int status = is_wanted && noted ? DONE : NO_MEMORY;
    for (int64_t k = 0; k < places.count && status == DONE; k++) {
        is_wanted[k] = place[k] >= 0;
        status = place[k] < wanted ? DONE : WRONG;
    }
    const Matrix matrix = {values.at, columns, code, column_code, place, is_wanted, noted};
    for (int64_t row = 0; row + 1 < offsets.count && status == DONE; row++) {
        const int64_t first = offsets.at[row], end = offsets.at[row + 1];
        if (first < 0 || end < first || end > values.count || end - first > longest)
            status = WRONG;
        else
            lay_dense(&matrix, first, end - first, out + row * wanted * nbytes, wanted * nbytes);
    }
    free(is_wanted);
    free(noted);
    return status;
}

/* --- As plans ------------------------------------------------------------------------------------------------- */

/* Rows of a sparse matrix: of each its first value, and how many it has. */
typedef struct {
    Plan plan;
    Matrix matrix; /* without what a thread adds to it */
    Longs value_offsets, column_offsets; /* where chunks begin in the file */
    int64_t value_chunk, column_chunk, value_nbytes, column_nbytes, first_row;
    int64_t width, wanted, room; /* columns that there are, that are wanted, and values that are read at once */
} DensePlan;

/* Read the rows `low` and those that follow it in the file, as many as there is room for; return the first of those behind, -1 if
that cannot be. */
static int64_t read_matrix(const DensePlan *plan, const Where *to, int64_t low, const Landing *into)
{
    const int64_t first = row_at(to, low) - plan->first_row;
    int64_t count = length_at(to, low), high;
    if (count < 0 || count > plan->room)
        return -1;
    for (high = low + 1; high < to->rows.count && row_at(to, high) == row_at(to, low) + count; high++) {
        if (length_at(to, high) < 0 || length_at(to, high) > plan->room - count)
            break;
        count += length_at(to, high);
    }
    int64_t wrong;
    const Matrix *const of = &plan->matrix;
    if (read_plain(into->descriptor, plan->column_offsets, plan->column_chunk, first, count, plan->column_nbytes, (void *)of->columns,
                   into->counts) != DONE
        || read_plain(into->descriptor, plan->value_offsets, plan->value_chunk, first, count, plan->value_nbytes,
                      (void *)of->values, into->counts) != DONE)
        return -1;
    if (are_columns(of->columns, of->column_code, count, plan->width, &wrong))
        return high;
    into->counts[FAILED_AT] = wrong, into->counts[FAILED_NBYTES] = A_COLUMN;
    return -1;
}

/* Read values of a sparse matrix and their columns, and lay its rows dense in their places: all or none of them count as
brought. Where a column is none that there is, that is what failed. */
static int64_t land_dense(const Plan *given, int64_t first, int64_t last, Landing *into)
{
    DensePlan plan = *(const DensePlan *)given;
    const int64_t began = now_ns(), reads = into->counts[READS], nbytes = into->counts[READ_NBYTES], ns = into->counts[READ_NS];
    const int64_t row_nbytes = plan.wanted * plan.value_nbytes, column_room = plan.room * plan.column_nbytes;
    int32_t *const noted = malloc((size_t)(2 * plan.room + 2) * sizeof *noted);
    char *const room = room_for(into->scratch, ROOM_READ, plan.room * plan.value_nbytes + column_room + row_nbytes);
    char *const row = room + plan.room * plan.value_nbytes + column_room;
    Where to = part_of(&given->to, first, last);
    int64_t done = 0;
    to.slots = into->slots, to.offset = into->offsets[0], to.row_nbytes = plan.value_nbytes;
    plan.matrix.values = room, plan.matrix.columns = room + plan.room * plan.value_nbytes, plan.matrix.noted = noted;
    for (int64_t high, at = 0; noted && room && !*into->stop && done < to.rows.count; done = high, at = 0) {
        if ((high = read_matrix(&plan, &to, done, into)) < 0)
            break;
        for (int64_t k = done; k < high; at += length_at(&to, k++)) {
            lay_dense(&plan.matrix, at, length_at(&to, k), row, row_nbytes);
            copy_run(place_of(&to, k), row, row_nbytes);
        }
    }
    fence();
    free(noted);
    into->counts[CHUNKS] += into->counts[READS] - reads;
    into->counts[DECODED_NBYTES] += into->counts[READ_NBYTES] - nbytes;
    into->counts[SCATTER_NS] += now_ns() - began - (into->counts[READ_NS] - ns);
    return done < to.rows.count ? first : last;
}
