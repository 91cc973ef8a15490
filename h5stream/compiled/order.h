/* Orders of samples: a shuffle, groups dealt out to parts, samples laid one behind the other. */

/* --- A shuffle that stays in a core's cache, by random numbers that will never be others.

Source: xoshiro256** 1.0 (prng.di.unimi.it), Lemire's bounded numbers (arXiv:1805.10941), the shuffle by Fisher and
Yates, and by Rao and Sandelius: numbers go to random buckets, and each bucket is shuffled. */

static inline uint64_t turned(uint64_t word, int bits) { return word << bits | word >> (64 - bits); }

/* Return the next random number of 64 bits. */
static inline uint64_t next(uint64_t *state)
{
    const uint64_t word = turned(state[1] * 5, 7) * 9, shifted = state[1] << 17;
    state[2] ^= state[0];
    state[3] ^= state[1];
    state[1] ^= state[2];
    state[0] ^= state[3];
    state[2] ^= shifted;
    state[3] = turned(state[3], 45);
    return word;
}

/* Return a random number below `count`, each as likely as any other; `count` has at most 32 bits. */
static inline uint64_t below(uint64_t *state, uint64_t count)
{
    uint64_t product = (next(state) >> 32) * count;
    if ((uint32_t)product < count)
        for (const uint64_t rest = ((UINT64_C(1) << 32) - count) % count; (uint32_t)product < rest;)
            product = (next(state) >> 32) * count;
    return product >> 32;
}

#define SHUFFLE(NAME, TYPE)                                                                                            \
    static void shuffle_##NAME(TYPE *numbers, int64_t count, uint64_t *state)                                          \
    {                                                                                                                  \
        for (int64_t k = count - 1; k > 0; k--) {                                                                      \
            const uint64_t other = below(state, (uint64_t)k + 1);                                                      \
            const TYPE number = numbers[k];                                                                            \
            numbers[k] = numbers[other], numbers[other] = number;                                                      \
        }                                                                                                              \
    }                                                                                                                  \
    static void deal_##NAME(TYPE *numbers, int64_t count, int64_t *edges, uint64_t mask, uint64_t *state)              \
    {                                                                                                                  \
        for (int64_t k = 0; k < count; k++)                                                                            \
            numbers[edges[next(state) & mask]++] = (TYPE)k;                                                            \
    }                                                                                                                  \
    static void shuffled_##NAME(TYPE *numbers, int64_t count, int64_t *edges, int64_t buckets, uint64_t *state)        \
    {                                                                                                                  \
        if (buckets == 1)                                                                                              \
            for (int64_t k = 0; k < count; k++)                                                                        \
                numbers[k] = (TYPE)k;                                                                                  \
        else                                                                                                           \
            deal_##NAME(numbers, count, edges, (uint64_t)buckets - 1, state);                                          \
        for (int64_t bucket = 0, first = 0; bucket < buckets; first = edges[bucket++])                                 \
            shuffle_##NAME(numbers + first, edges[bucket] - first, state);                                             \
    }

SHUFFLE(narrow, int32_t)
SHUFFLE(wide, int64_t)

/* Fill with `0 .. count - 1`, shuffled; there are a power of two buckets, and one edge more. */
static void shuffled_into(void *numbers, int64_t count, int wide, int64_t *edges, int64_t buckets, uint64_t *state)
{
    uint64_t local[4], again[4];
    memcpy(local, state, sizeof local);
    memcpy(again, state, sizeof again);
    memset(edges, 0, (size_t)(buckets + 1) * sizeof *edges);
    if (buckets == 1)
        edges[0] = count; /* which is where the one bucket ends */
    else {
        for (int64_t k = 0; k < count; k++)
            edges[next(again) & ((uint64_t)buckets - 1)]++;
        for (int64_t bucket = 0, total = 0; bucket <= buckets; bucket++) {
            const int64_t inside = edges[bucket];
            edges[bucket] = total;
            total += inside;
        }
    }
    if (wide)
        shuffled_wide(numbers, count, edges, buckets, local);
    else
        shuffled_narrow(numbers, count, edges, buckets, local);
    memcpy(state, local, sizeof local);
}

/* --- Whole groups of samples dealt out to parts, one after the other: a million in a tenth of a second. */

/* Return what of a group's strata a part lacks, weighed. */
static double lack_of(const int64_t *strata, const int64_t *samples, const double *weights, const int64_t *lacks,
                      int64_t parts, int64_t part, int64_t first, int64_t end)
{
    double value = 0;
    for (int64_t k = first; k < end; k++)
        value += (double)samples[k] * weights[strata[k]] * (double)lacks[strata[k] * parts + part];
    return value;
}

/* Give each group to the part that lacks most of what it has; an empty part takes one of the last. */
static int deal_groups(Longs groups, const int64_t *edges, const int64_t *strata, const int64_t *samples, const double *weights,
                Longs by_size, int64_t total, int64_t *lacks, int64_t *homes)
{
    const int64_t parts = by_size.count;
    int64_t empty = parts;
    char *taken = calloc((size_t)parts + 1, 1);
    int status = taken ? DONE : NO_MEMORY;
    for (int64_t p = 0; p < parts && status == DONE; p++)
        status = taken[by_size.at[p]]++ ? WRONG : DONE; /* a part that is named twice stands in for one that is not */
    if (status != DONE) {
        free(taken);
        return status;
    }
    memset(taken, 0, (size_t)parts);
    for (int64_t place = 0; place < groups.count; place++) {
        const int64_t group = groups.at[place], first = edges[group], end = edges[group + 1];
        const int only_empty = groups.count - place <= empty;
        int64_t best = -1, most_of_one = 0;
        double most_of_all = 0;
        for (int64_t p = 0; p < parts; p++) {
            const int64_t part = by_size.at[p];
            if (only_empty && taken[part])
                continue;
            if (end == first + 1) { /* what all parts' lack would be multiplied by changes nothing */
                const int64_t lack = lacks[strata[first] * parts + part];
                if (best < 0 || lack > most_of_one)
                    best = part, most_of_one = lack;
                continue;
            }
            const double lack = lack_of(strata, samples, weights, lacks, parts, part, first, end);
            if (best < 0 || lack > most_of_all)
                best = part, most_of_all = lack;
        }
        for (int64_t k = first; k < end; k++)
            lacks[strata[k] * parts + best] -= samples[k] * total;
        homes[group] = best;
        empty -= !taken[best];
        taken[best] = 1;
    }
    free(taken);
    return DONE;
}

/* --- Samples of unlike lengths laid one behind the other in their batches: some nanoseconds each. */

/* Places for each sample, up to which samples are ordered by a table of all places. */
enum { MOST_ROOM = 8 };

/* Note the sample of each place of a table, and what the table has of them, in order. */
ALWAYS_INLINE void sort_by_table(const Where *to, int64_t first, int64_t size, int32_t *sample_at, int64_t room, int32_t *order)
{
    for (int64_t k = 0; k < to->batch.count; k++)
        sample_at[(number_at(to->batch, k) - first) * size + number_at(to->within, k)] = (int32_t)k;
    for (int64_t place = 0; place < room; place++)
        if (sample_at[place] >= 0)
            *order++ = sample_at[place];
}

/* Find the lowest and the highest of some numbers. */
ALWAYS_INLINE void bounds_of(Numbers of, int64_t *lowest, int64_t *highest)
{
    for (int64_t k = 0; k < of.count; k++) {
        *lowest = least(*lowest, number_at(of, k));
        *highest = most(*highest, number_at(of, k));
    }
}

/* Order samples by batch and place, of which no two have the same; 0 where they are few among many places. */
static int order_by_place(const Where *given, int32_t *order)
{
    int64_t first = INT64_MAX, last = INT64_MIN, lowest = 0, size = 0, batches, room;
    FOR_EACH_WIDTH(given, to, bounds_of(to.batch, &first, &last); bounds_of(to.within, &lowest, &size));
    if (lowest < 0)
        return WRONG;
    if (!given->batch.count || __builtin_sub_overflow(last, first, &batches) || __builtin_add_overflow(batches, 1, &batches)
        || __builtin_add_overflow(size, 1, &size) || __builtin_mul_overflow(batches, size, &room)
        || room > MOST_ROOM * given->batch.count)
        return FAILED;
    int32_t *sample_at = malloc((size_t)room * sizeof *sample_at);
    if (!sample_at)
        return NO_MEMORY;
    memset(sample_at, 0xFF, (size_t)room * sizeof *sample_at);
    FOR_EACH_WIDTH(given, to, sort_by_table(&to, first, size, sample_at, room, order));
    free(sample_at);
    return DONE;
}

/* Lay samples one behind the other. */
static int lay_stretches(Numbers order, Numbers batch, Numbers within, Numbers counts, int64_t *edges, int64_t edge_count,
                  Numbers places, int64_t *lengths, int64_t *starts, int64_t *offsets)
{
    int64_t at = 0, last = -1;
    for (int64_t k = 0; k < order.count; k++) {
        const int64_t sample = number_at(order, k);
        if (sample < 0 || sample >= batch.count || number_at(batch, sample) >= edge_count - 1)
            return WRONG;
        for (; last < number_at(batch, sample); starts[k] = at) {
            if (last >= 0)
                offsets[k + last] = at - starts[edges[last]];
            edges[++last] = k;
        }
        if (last < 0)
            return WRONG;
        put(places, k, number_at(within, sample));
        starts[k] = at, lengths[k] = number_at(counts, sample);
        offsets[k + last] = at - starts[edges[last]];
        at += lengths[k];
    }
    starts[order.count] = at;
    if (last >= 0) {
        edges[last + 1] = order.count;
        offsets[order.count + last] = at - starts[edges[last]];
    }
    return DONE;
}

/* Fill with where the rows of each sample begin in its batch. */
static int begins_of_stretches(Numbers order, Numbers batch, Longs edges, Longs starts, int64_t *begins)
{
    for (int64_t k = 0; k < order.count; k++) {
        const int64_t sample = number_at(order, k);
        if (sample < 0 || sample >= batch.count)
            return WRONG;
        const int64_t its = number_at(batch, sample);
        if (its < 0 || its >= edges.count || edges.at[its] < 0 || edges.at[its] >= starts.count)
            return WRONG;
        begins[sample] = starts.at[k] - starts.at[edges.at[its]];
    }
    return DONE;
}
