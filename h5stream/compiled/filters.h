/* Filters undone one at a time, and the buffers that one thread keeps for them.

Every function is told where its input ends and how much it may write, and holds each number of a file against both.
Libraries are called by address: Python finds them, tries each with a known answer, and gives the addresses. */

/* --- What a thread decodes with ------------------------------------------------------------------------------- */

enum { ROOM_READ, ROOM_STACK, ROOM_DENSE, ROOM_UNSHUFFLED, ROOM_MOVED, ROOM_STEP, ROOM_OTHER_STEP, ROOMS };

enum { INFLATER, ZSTD_CONTEXT, CONTEXTS };

typedef void *Make(void);
typedef void Drop(void *);

/* Guarantees: belongs to one thread at a time. What is in a room stays until the room is asked for again. */
typedef struct Scratch {
    struct { char *at; int64_t nbytes; } rooms[ROOMS];
    struct { void *at; Drop *drop; } contexts[CONTEXTS];
    void *left[2]; /* what plugins left their output in: two, so that a step never frees what it reads */
} Scratch;

enum { HUGE_PAGE_NBYTES = 2 * 1024 * 1024 };

/* Return memory that keeps its content until the role is asked for again; NULL if there is none. New memory takes longer to touch
than to read to: chunks of a dataset differ a little in length, so that there is room for longer ones, and pages are huge ones. */
static char *room_for(Scratch *scratch, int role, int64_t nbytes)
{
    if (scratch->rooms[role].nbytes < nbytes || !scratch->rooms[role].at) {
        const size_t alignment = nbytes < HUGE_PAGE_NBYTES ? LINE : HUGE_PAGE_NBYTES;
        const size_t wanted = (size_t)most(nbytes, 1), rounded = (wanted + wanted / 8 + alignment - 1) / alignment * alignment;
        free(scratch->rooms[role].at);
        scratch->rooms[role].at = aligned_alloc(alignment, rounded);
        scratch->rooms[role].nbytes = scratch->rooms[role].at ? (int64_t)rounded : 0;
        const size_t in_huge = wanted / HUGE_PAGE_NBYTES * HUGE_PAGE_NBYTES; /* no more memory than is asked for */
        if (scratch->rooms[role].at && in_huge)
            madvise(scratch->rooms[role].at, in_huge, MADV_HUGEPAGE); /* a kernel may have none: slower, not wrong */
    }
    return scratch->rooms[role].at;
}

/* Hand back everything that a thread decoded with. */
static void clear_scratch(Scratch *scratch)
{
    for (int role = 0; role < ROOMS; role++)
        free(scratch->rooms[role].at);
    for (int k = 0; k < CONTEXTS; k++)
        if (scratch->contexts[k].at)
            scratch->contexts[k].drop(scratch->contexts[k].at);
    for (int turn = 0; turn < 2; turn++)
        free(scratch->left[turn]);
    memset(scratch, 0, sizeof *scratch);
}

/* --- Steps, and why they fail ---------------------------------------------------------------------------------- */

/* Registered numbers of the filters that are undone here, and of those whose claims are checked. */
enum {
    DEFLATE = 1, SHUFFLE = 2, FLETCHER32 = 3, LZF = 32000, BLOSC = 32001, LZ4 = 32004, BITSHUFFLE = 32008, ZFP = 32013,
    ZSTD = 32015, SZ = 32017, SZ3 = 32024, BLOSC2 = 32026
};

/* One filter that is to be undone. */
typedef struct {
    int64_t filter, is_plugin; /* its number; whether `function` is a plugin's, as libhdf5 would call it */
    int64_t exact;             /* the bytes that it must give; -1 for any that are not more than a chunk may take */
    void *function, *make, *drop; /* of a library; the last two make and drop a context, of which each thread has one */
    const unsigned *values;    /* its parameters, as they are in the file */
    int64_t value_count;
} Step;

/* Why bytes do not decode, in the order of the sentences in `storage/decode/filters.py`. */
enum {
    NO_ROOM, TAKES_MORE, DECODES_TO, GAVE, PARAMETERS, GOES_ON, DAMAGED, NO_CHECKSUM, CHECKSUM, REFUSED, FEW_FOR_HEADER,
    CLAIMS_STORED, CLAIMS_DECODED, NO_FRAME, NO_LENGTH, FEW_BLOCKS, FEW_PARAMETERS, NO_ZFP_HEADER
};

/* The step that failed (-1 for none of them), and the reason with its numbers. */
typedef struct { int64_t step, reason, first, second; } Failure;

static const Bytes NOTHING = {NULL, 0};

/* Note why bytes do not decode; return false. */
static bool fail(Failure *why, int64_t reason, int64_t first, int64_t second)
{
    why->reason = reason, why->first = first, why->second = second;
    return false;
}

static Bytes failed(Failure *why, int64_t reason, int64_t first, int64_t second)
{
    fail(why, reason, first, second);
    return NOTHING;
}

/* Return a thread's own context of a library; NULL if there is no memory for it. */
static void *context_of(Scratch *scratch, int which, const Step *step)
{
    if (!scratch->contexts[which].at) {
        scratch->contexts[which].at = ((Make *)(intptr_t)step->make)();
        scratch->contexts[which].drop = (Drop *)(intptr_t)step->drop;
    }
    return scratch->contexts[which].at;
}

/* --- Filters of libhdf5 and h5py ------------------------------------------------------------------------------- */

/* Undo a byte shuffle: byte planes of elements become elements; a tail of odd bytes stays as it is.

Source: `H5Zshuffle.c`: the bytes that do not fill an element are copied unchanged. */
static void unshuffle(const char *source, int64_t nbytes, int64_t width, char *out)
{
    const int64_t count = nbytes / width, whole = count * width, block = most(16, 16 * BLOCK / width);
    int64_t planes[8];
    if (width <= 8) {
        for (int64_t k = 0; k < width; k++)
            planes[k] = k * count;
        gather_planes(source, (Longs){planes, width}, count, out);
    } else
        for (int64_t first = 0; first < count; first += block)
            for (int64_t k = 0; k < width; k++)
                for (int64_t i = first; i < least(first + block, count); i++)
                    out[i * width + k] = source[k * count + i];
    memcpy(out + whole, source + whole, (size_t)(nbytes - whole));
}

enum { LANES = 16, SUM_ROWS = 256 }; /* so few that a sum of sums has no more than 32 bits */

/* Return a sum of words as libhdf5 folds it: never 0 but for words that are all 0. */
static uint32_t folded(uint64_t sum) { return sum ? (uint32_t)((sum - 1) % 65535 + 1) : 0; }

/* Return the checksum of bytes: of big-endian words and a last odd byte, and of the sums of all before each.

Source: `H5_checksum_fletcher32` in `H5checksum.c`. */
static uint32_t fletcher32(const uint8_t *at, int64_t nbytes)
{
    uint64_t sum = 0, sum_of_sums = 0;
    for (; nbytes >= 2 * LANES; ) {
        const int64_t rows = least(nbytes / (2 * LANES), SUM_ROWS);
        uint32_t each[LANES] = {0}, of_each[LANES] = {0};
        for (int64_t row = 0; row < rows; row++, at += 2 * LANES)
            for (int lane = 0; lane < LANES; lane++) {
                uint16_t word;
                memcpy(&word, at + 2 * lane, 2);
                each[lane] += (uint16_t)(word << 8 | word >> 8);
                of_each[lane] += each[lane];
            }
        sum_of_sums += (uint64_t)(rows * LANES) * sum;
        for (int lane = 0; lane < LANES; lane++)
            sum += each[lane], sum_of_sums += (uint64_t)LANES * of_each[lane] - (uint64_t)lane * each[lane];
        sum = folded(sum), sum_of_sums = folded(sum_of_sums);
        nbytes -= rows * 2 * LANES;
    }
    for (; nbytes > 0; at += 2, nbytes -= 2)
        sum += (uint64_t)at[0] << 8 | (nbytes > 1 ? at[1] : 0), sum_of_sums += sum;
    return folded(sum_of_sums) << 16 | folded(sum);
}

/* Look at the checksum behind bytes, and leave it out.

HDF5 before 1.6.3 wrote the sum with the bytes of each half swapped; libhdf5 accepts both. */
static Bytes undo_fletcher32(Bytes data, Failure *why)
{
    if (data.count < 4)
        return failed(why, NO_CHECKSUM, data.count, 4);
    const uint8_t *const end = (const uint8_t *)data.at + data.count - 4;
    const uint32_t stored = end[0] | (uint32_t)end[1] << 8 | (uint32_t)end[2] << 16 | (uint32_t)end[3] << 24;
    const uint32_t sum = fletcher32((const uint8_t *)data.at, data.count - 4);
    if (stored != sum && stored != ((sum & 0x00FF00FF) << 8 | (sum >> 8 & 0x00FF00FF)))
        return failed(why, CHECKSUM, sum, stored);
    return (Bytes){data.at, data.count - 4};
}

/* Copy bytes from so far before them, of which the copy may be a part. */
ALWAYS_INLINE void copy_from_before(char *at, int64_t distance, int64_t length, const char *top)
{
    if (distance >= 16 && top - at >= length + 16)
        for (int64_t done = 0; done < length; done += 16)
            memcpy(at + done, at + done - distance, 16);
    else
        copy_fill(at, length, at - distance, distance);
}

/* Undo LZF; return the bytes that came out, -1 if the stream is damaged or gives more than there is room for.

Source: `lzf_d.c` of liblzf: a byte below 32 begins so many literals, less one; any other a length in its high three bits
(a next byte is added to 7), and a distance in its low five and the byte after that. */
static int64_t undo_lzf(const char *in, int64_t nbytes, char *out, int64_t room)
{
    const char *const end = in + nbytes, *const top = out + room;
    char *at = out;
    while (in < end) {
        const int64_t control = (uint8_t)*in++;
        if (control < 32) {
            const int64_t length = control + 1;
            if (length > end - in || length > top - at)
                return -1;
            if (end - in >= 32 && top - at >= 32)
                memcpy(at, in, 32);
            else
                memcpy(at, in, (size_t)length);
            in += length, at += length;
            continue;
        }
        int64_t length = control >> 5;
        if (end - in < 1 + (length == 7))
            return -1;
        if (length == 7)
            length += (uint8_t)*in++;
        length += 2;
        const int64_t distance = ((control & 31) << 8) + (uint8_t)*in++ + 1;
        if (distance > at - out || length > top - at)
            return -1;
        copy_from_before(at, distance, length, top);
        at += length;
    }
    return at - out;
}

/* --- Numbers that bytes claim ---------------------------------------------------------------------------------- */

/* Read a number of a header. */
static bool number_in(Bytes data, int64_t offset, int nbytes, bool is_big, int64_t *number, Failure *why)
{
    uint64_t sum = 0;
    if (offset + nbytes > data.count)
        return fail(why, FEW_FOR_HEADER, data.count, offset + nbytes);
    for (int k = 0; k < nbytes; k++)
        sum |= (uint64_t)(uint8_t)data.at[offset + k] << 8 * (is_big ? nbytes - 1 - k : k);
    *number = (int64_t)sum;
    return true;
}

/* Hold a claimed length against the most that it can be: `reason` is `CLAIMS_STORED` or `CLAIMS_DECODED`. */
static bool may_be(int64_t claimed, int64_t most_nbytes, int64_t reason, Failure *why)
{
    return claimed >= 0 && claimed <= most_nbytes ? true : fail(why, reason, claimed, most_nbytes);
}

/* Read the length that a zstd frame decodes to. Source: RFC 8878, 3.1.1.1 "Frame_Header". */
static bool length_of_zstd(Bytes data, int64_t most_nbytes, int64_t *claimed, Failure *why)
{
    static const int ids[] = {0, 1, 2, 4}, lengths[] = {1, 2, 4, 8};
    int64_t magic, descriptor;
    if (!number_in(data, 0, 4, false, &magic, why))
        return false;
    if (magic != 0xFD2FB528)
        return fail(why, NO_FRAME, 0, 0);
    if (!number_in(data, 4, 1, false, &descriptor, why))
        return false;
    const int is_single = descriptor >> 5 & 1, size_flag = (int)(descriptor >> 6);
    if (size_flag == 0 && !is_single)
        return fail(why, NO_LENGTH, 0, 0); /* the plugin refuses it too */
    if (!number_in(data, 5 + !is_single + ids[descriptor & 3], lengths[size_flag], false, claimed, why))
        return false;
    *claimed += size_flag == 1 ? 256 : 0;
    return may_be(*claimed, most_nbytes, CLAIMS_DECODED, why);
}

static bool is_zstd(Bytes data)
{
    return data.count >= 4 && !memcmp(data.at, "\x28\xB5\x2F\xFD", 4);
}

/* Read the length that a blosc chunk decodes to, which holds no more than is stored.

Source: C-Blosc's README_CHUNK_FORMAT; the decoder is told neither length, and believes both. */
static bool length_of_blosc(Bytes data, int64_t most_nbytes, int64_t *claimed, Failure *why)
{
    int64_t stored;
    return number_in(data, 4, 4, false, claimed, why) && may_be(*claimed, most_nbytes, CLAIMS_DECODED, why)
        && number_in(data, 12, 4, false, &stored, why) && may_be(stored, data.count, CLAIMS_STORED, why);
}

/* Source: C-Blosc2's README_CFRAME_FORMAT: offsets of the lengths in the header of a contiguous frame. */
static bool claims_of_blosc2(Bytes data, int64_t most_nbytes, Failure *why)
{
    int64_t stored, decoded, chunk;
    return number_in(data, 16, 8, true, &stored, why) && may_be(stored, data.count, CLAIMS_STORED, why)
        && number_in(data, 30, 8, true, &decoded, why) && may_be(decoded, most_nbytes, CLAIMS_DECODED, why)
        && number_in(data, 58, 4, true, &chunk, why) && may_be((int32_t)chunk, most_nbytes, CLAIMS_DECODED, why);
}

/* Look at the length that SZ3 puts before its zstd frame. */
static bool claims_of_sz3(Bytes data, int64_t most_nbytes, Failure *why)
{
    const Bytes frame = {data.at + least(8, data.count), most(0, data.count - 8)};
    int64_t claimed;
    return !is_zstd(frame)
        || (number_in(data, 0, 8, false, &claimed, why) && may_be(claimed, most_nbytes, CLAIMS_DECODED, why)
            && length_of_zstd(frame, most_nbytes, &claimed, why));
}

/* Follow the blocks of a bitshuffled chunk from length to length. */
static bool follow_blocks(Bytes data, int64_t claimed, int64_t block_nbytes, int64_t element_nbytes, Failure *why)
{
    const int64_t eight = 8 * most(1, element_nbytes), some = block_nbytes / eight * eight;
    const int64_t block = some ? some : eight, blocks = claimed / block + (claimed % block >= eight);
    int64_t at = 12, nbytes;
    for (int64_t k = 0; k < blocks; k++) {
        if (at + 4 > data.count)
            return fail(why, FEW_BLOCKS, 0, 0);
        number_in(data, at, 4, true, &nbytes, why);
        at += 4 + nbytes;
    }
    return may_be(at + claimed % eight, data.count, CLAIMS_STORED, why);
}

/* Source: `bshuf_h5filter.c`; its decoder is not told where its input ends. */
static bool claims_of_bitshuffle(const Step *step, Bytes data, int64_t most_nbytes, int64_t *behind, Failure *why)
{
    enum { WITH_LZ4 = 2, WITH_ZSTD = 3 };
    const unsigned codec = step->value_count > 4 ? step->values[4] : 0;
    int64_t claimed, block;
    if (codec != WITH_LZ4 && codec != WITH_ZSTD)
        return true;
    if (!number_in(data, 0, 8, true, &claimed, why) || !may_be(claimed, most_nbytes, CLAIMS_DECODED, why)
        || !number_in(data, 8, 4, true, &block, why))
        return false;
    /* A block may end before its LZ4 does. Old plugins tell LZ4 how much it gives alone, and it reads little more than
    that, so this much behind the input is enough. */
    *behind = codec == WITH_LZ4 ? claimed + claimed / 16 + 64 * (2 + claimed / most(64, block)) + 4096 : 64;
    return follow_blocks(data, claimed, block, step->values[2], why);
}

/* Source: zfp's `zfp_field_metadata` (52 bits), which H5Z-ZFP keeps in the filter's parameters. */
static bool claims_of_zfp(const Step *step, int64_t most_nbytes, int64_t *behind, Failure *why)
{
    enum { MAGIC = 'z' | 'f' << 8 | 'p' << 16 };
    uint32_t words[3];
    if (step->value_count < 4)
        return fail(why, FEW_PARAMETERS, 0, 0);
    /* A machine of the other byte order writes each word reversed. */
    const bool is_reversed = (step->values[1] & 0xFFFFFF) != MAGIC;
    for (int k = 0; k < 3; k++)
        words[k] = is_reversed ? __builtin_bswap32(step->values[k + 1]) : step->values[k + 1];
    if ((words[0] & 0xFFFFFF) != MAGIC)
        return fail(why, NO_ZFP_HEADER, 0, 0);
    const uint64_t meta = words[1] | (uint64_t)words[2] << 32;
    const int axes = (int)(meta >> 2 & 3) + 1, width = 48 / axes;
    int64_t claimed = meta & 1 ? 8 : 4; /* of one value; no more than 2^51 of all */
    for (int axis = 0; axis < axes; axis++)
        claimed *= (int64_t)(meta >> (4 + axis * width) & ((UINT64_C(1) << width) - 1)) + 1;
    /* The decoder has no notion of an end of input: a block of 4 values an axis takes what its bits say. */
    *behind = 4 * claimed + 64 * 1024;
    return may_be(claimed, most_nbytes, CLAIMS_DECODED, why);
}

/* Hold what compressed bytes claim against what a chunk may be; tell how much room is needed behind them.

Plugins allocate what the first bytes of a chunk promise, and some read as far as lengths among those bytes say: a few
damaged (or malicious) bytes would take all memory, or read beyond the buffer. */
static bool claims_hold(const Step *step, Bytes data, int64_t most_nbytes, int64_t *behind, Failure *why)
{
    int64_t claimed;
    *behind = 0;
    switch (step->filter) {
    case BLOSC:
        return length_of_blosc(data, most_nbytes, &claimed, why);
    case BLOSC2:
        return claims_of_blosc2(data, most_nbytes, why);
    case BITSHUFFLE:
        return claims_of_bitshuffle(step, data, most_nbytes, behind, why);
    case ZFP:
        return claims_of_zfp(step, most_nbytes, behind, why);
    case ZSTD:
        return length_of_zstd(data, most_nbytes, &claimed, why);
    case SZ: /* its own frame, which is zstd's; what is inside, only SZ can check, and does not */
        return !is_zstd(data) || length_of_zstd(data, most_nbytes, &claimed, why);
    case SZ3:
        return claims_of_sz3(data, most_nbytes, why);
    }
    return true;
}
