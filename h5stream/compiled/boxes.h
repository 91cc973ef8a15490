/* Boxes of volumes: what lies in chunks or other regions of them is copied to its place in each box. */

/* What an index outside of a volume stands for. */
enum { PLAIN, EDGE, REFLECT };

enum { MOST_AXES = 32 }; /* of a dataset in HDF5 */

/* Where the elements of a box that a region has lie: by axis, bytes into the box and into the region; of the last axis as
runs of bytes, each from, into and how many. */
typedef struct {
    int64_t *into, *out, *counts, *at, *runs;
    int64_t run_count;
} Found;

/* Return the index in a volume that one outside stands for: the nearest, or one mirrored at the edge. */
static int64_t inside(int64_t index, int64_t size, int64_t mode)
{
    if (mode == EDGE)
        return least(most(index, 0), size - 1);
    if (mode == REFLECT) {
        const int64_t around = most(1, 2 * (size - 1));
        index = (index < 0 ? -index : index) % around;
        return index >= size ? around - index : index;
    }
    return index;
}

/* Find the elements of one axis; return whether they are one run, which is then noted. */
static int reach_axis(const Boxes *of, Found *found, int64_t region, int64_t box, int64_t axis, int64_t step)
{
    const int64_t at = region * of->axes + axis, size = of->sizes[axis], shape = of->shapes[at];
    const int64_t low = of->low[at], high = of->high[at], stride = of->strides[at], origin = of->origins[box * of->axes + axis];
    const int64_t *offsets = of->offsets + axis * of->most, begin = origin + offsets[0];
    int64_t first = 0, last = size, count = 0;
    const int is_plain = of->follow[axis] && (of->mode == PLAIN || (begin >= 0 && begin + size <= shape));
    if (is_plain)
        first = most(low - begin, 0), last = least(high - begin, size);
    if (axis == of->axes - 1 && is_plain && stride == of->element) {
        count = most(0, last - first);
        found->runs[0] = first * of->element, found->runs[1] = (begin + first - low) * of->element;
        found->runs[2] = count * of->element;
        found->counts[axis] = count;
        return 1;
    }
    for (int64_t k = first; k < last; k++) {
        const int64_t index = inside(origin + offsets[k], shape, of->mode);
        if (low <= index && index < high) {
            found->into[axis * of->most + count] = k * step;
            found->out[axis * of->most + count++] = (index - low) * stride;
        }
    }
    found->counts[axis] = count;
    return 0;
}

/* Join elements of the last axis that follow one another in both places. */
static void join_runs(const Boxes *of, Found *found)
{
    const int64_t inner = of->axes - 1, *into = found->into + inner * of->most, *out = found->out + inner * of->most;
    int64_t *run = found->runs - 3;
    for (int64_t k = 0; k < found->counts[inner]; k++) {
        if (k && into[k] == run[0] + run[2] && out[k] == run[1] + run[2]) {
            run[2] += of->element;
            continue;
        }
        run += 3;
        run[0] = into[k], run[1] = out[k], run[2] = of->element;
    }
    found->run_count = (run + 3 - found->runs) / 3;
}

/* Find the elements along each axis of a box that a region has; return whether there are any. */
static int reach(const Boxes *of, Found *found, int64_t region, int64_t box)
{
    int is_any = 1;
    int64_t step = of->element;
    found->run_count = 0;
    for (int64_t axis = of->axes - 1; axis >= 0; axis--) {
        found->run_count |= reach_axis(of, found, region, box, axis, step);
        is_any &= found->counts[axis] > 0;
        step *= of->sizes[axis];
    }
    if (is_any && !found->run_count)
        join_runs(of, found);
    return is_any;
}

/* Go to the next place of axes up to one, the last first; return whether there is one. */
static int step_on(int64_t *at, const int64_t *counts, int64_t axis)
{
    for (; axis >= 0; axis--) {
        if (++at[axis] < counts[axis])
            return 1;
        at[axis] = 0;
    }
    return 0;
}

/* Copy what was found of a box: for each place of the outer axes the runs of the last two. */
static void place_box(const Boxes *of, const Found *found, const char *source, char *place)
{
    /* With one axis, another of one element stands in for the one before the last. */
    const int64_t before = of->axes > 1 ? of->axes - 2 : of->axes, wide = of->most;
    const int64_t *into = found->into + before * wide, *out = found->out + before * wide;
    do {
        char *target = place;
        const char *begin = source;
        for (int64_t axis = 0; axis < of->axes - 2; axis++) {
            target += found->into[axis * wide + found->at[axis]];
            begin += found->out[axis * wide + found->at[axis]];
        }
        for (int64_t k = 0; k < found->run_count; k++) {
            const int64_t *run = found->runs + 3 * k, count = run[2];
            char *to = target + run[0];
            const char *from = begin + run[1];
            for (int64_t j = 0; j < found->counts[before]; j++)
                copy_run(to + into[j], from + out[j], count);
        }
    } while (step_on(found->at, found->counts, of->axes - 3));
}

/* Make room for what is found of a box; return memory to free, NULL if there is none. */
static int64_t *room_of_found(const Boxes *of, Found *found)
{
    const int64_t table = (of->axes + 1) * of->most;
    int64_t *memory = calloc((size_t)(2 * table + 2 * (of->axes + 1) + 3 * of->most), sizeof *memory);
    if (!memory)
        return NULL;
    *found = (Found){.into = memory, .out = memory + table, .counts = memory + 2 * table};
    found->at = found->counts + of->axes + 1, found->runs = found->at + of->axes + 1;
    found->counts[of->axes] = 1;
    return memory;
}

/* Return whether all that was found of a box lies in that part of a region which is there. */
static int is_there(const Boxes *of, const Found *found)
{
    int64_t low = found->run_count ? found->runs[1] : 0, high = low;
    for (int64_t k = 0; k < found->run_count; k++)
        low = least(low, found->runs[3 * k + 1]), high = most(high, found->runs[3 * k + 1] + found->runs[3 * k + 2]);
    for (int64_t axis = 0; axis < of->axes - 1; axis++) {
        const int64_t *out = found->out + axis * of->most;
        int64_t nearest = out[0], farthest = out[0];
        for (int64_t k = 1; k < found->counts[axis]; k++)
            nearest = least(nearest, out[k]), farthest = most(farthest, out[k]);
        low += nearest, high += farthest;
    }
    return low >= of->from && high <= of->until;
}

/* Copy what lies in boxes `first` to `last` of a region whose first element is at `source`, without the fence; return
whether all of it is there. */
static int place_region(const Boxes *of, Found *found, int64_t region, int64_t first, int64_t last, const char *source)
{
    for (int64_t box = first; box < last; box++)
        if (reach(of, found, region, box)) {
            if (of->until && !is_there(of, found))
                return WRONG;
            place_box(of, found, source, place_of(&of->to, box));
        }
    return DONE;
}

/* Copy what lies in boxes of regions of volumes, such as chunks, to its place in each of them. */
static int place_boxes(const Boxes *of)
{
    Found found;
    int64_t *const memory = room_of_found(of, &found);
    if (!memory)
        return NO_MEMORY;
    for (int64_t region = 0; region < of->regions; region++)
        place_region(of, &found, region, of->begins[region], of->ends[region], (const char *)of->sources[region]);
    fence();
    free(memory);
    return DONE;
}

static int is_outside(const Boxes *of, int64_t box, int64_t axis, int64_t k)
{
    const int64_t index = of->origins[box * of->axes + axis] + of->offsets[axis * of->most + k];
    return index < 0 || index >= of->shapes[box * of->axes + axis];
}

/* Fill what of boxes lies outside of their volume with the elements at `row`, as many as the last axis has. */
static int fill_outside(const Boxes *of, const char *row)
{
    const int64_t inner = of->axes - 1, width = of->sizes[inner];
    int64_t *at = calloc((size_t)of->axes, sizeof *at);
    if (!at)
        return NO_MEMORY;
    for (int64_t box = 0; box < of->boxes; box++)
        do {
            char *target = place_of(&of->to, box);
            int64_t step = of->element * width;
            int is_out = 0;
            for (int64_t axis = inner - 1; axis >= 0; axis--) {
                is_out |= is_outside(of, box, axis, at[axis]);
                target += at[axis] * step;
                step *= of->sizes[axis];
            }
            if (is_out)
                memcpy(target, row, (size_t)(of->element * width));
            else
                for (int64_t k = 0; k < width; k++)
                    if (is_outside(of, box, inner, k))
                        memcpy(target + k * of->element, row, (size_t)of->element);
        } while (step_on(at, of->sizes, inner - 1));
    free(at);
    return DONE;
}
