/* A machine of many processors, simulated on a few: each read of a file takes as long as decoding its bytes would take on a
processor of its own, without using one. For LD_PRELOAD; BENCH_NS_PER_BYTE says how long a byte takes. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { LEAST_NBYTES = 4096 }; /* shorter reads are headers */

static void take_time(ssize_t nbytes)
{
    static double ns_per_byte = -1;
    if (ns_per_byte < 0)
        ns_per_byte = getenv("BENCH_NS_PER_BYTE") ? atof(getenv("BENCH_NS_PER_BYTE")) : 0;
    if (nbytes < LEAST_NBYTES || ns_per_byte <= 0)
        return;
    const double ns = (double)nbytes * ns_per_byte;
    struct timespec left = {(time_t)(ns / 1e9), (long)ns % 1000000000L};
    while (nanosleep(&left, &left) && errno == EINTR) {
    }
}

typedef ssize_t Read(int, void *, size_t, off_t);
typedef ssize_t ReadMany(int, const struct iovec *, int, off_t);

ssize_t pread64(int descriptor, void *target, size_t nbytes, off_t offset)
{
    const ssize_t count = ((Read *)dlsym(RTLD_NEXT, "pread64"))(descriptor, target, nbytes, offset);
    take_time(count);
    return count;
}

ssize_t pread(int descriptor, void *target, size_t nbytes, off_t offset) { return pread64(descriptor, target, nbytes, offset); }

ssize_t preadv64(int descriptor, const struct iovec *targets, int target_count, off_t offset)
{
    const ssize_t count = ((ReadMany *)dlsym(RTLD_NEXT, "preadv64"))(descriptor, targets, target_count, offset);
    take_time(count);
    return count;
}

ssize_t preadv(int descriptor, const struct iovec *targets, int target_count, off_t offset)
{
    return preadv64(descriptor, targets, target_count, offset);
}
