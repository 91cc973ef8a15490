/* Reads of many files, each of which is opened for one read. */

/* What files were when they were named: where the path of each begins, and its size, time and number. */
typedef struct {
    Bytes paths;
    const int64_t *path_at, *sizes, *mtimes, *inodes;
    int64_t count;
} Files;

/* Open a file, however many signals come meanwhile. */
static int open_to_read(const char *path)
{
    int descriptor;
    do
        descriptor = open(path, O_RDONLY | O_CLOEXEC);
    while (descriptor < 0 && errno == EINTR);
    return descriptor;
}

/* Open a file for each read, read, and compare what the file is then with what it was; return how many came out well. */
static int64_t read_files(const Files *of, Longs which, const int64_t *offsets, const int64_t *nbytes, const int64_t *targets)
{
    int64_t counts[5] = {0};
    for (int64_t k = 0; k < which.count; k++) {
        const int64_t file = which.at[k], at = file < 0 || file >= of->count ? -1 : of->path_at[file];
        struct stat now;
        const int descriptor = at < 0 || at >= of->paths.count ? -1 : open_to_read(of->paths.at + at);
        if (descriptor < 0)
            return k;
        const int is_read = read_bytes(descriptor, (char *)targets[k], nbytes[k], offsets[k], counts);
        const int is_known = is_read == DONE && !fstat(descriptor, &now);
        close(descriptor);
        if (!is_known || (int64_t)now.st_ino != of->inodes[file] || now.st_size != of->sizes[file] ||
            now.st_mtim.tv_sec * INT64_C(1000000000) + now.st_mtim.tv_nsec != of->mtimes[file])
            return k;
    }
    return which.count;
}
