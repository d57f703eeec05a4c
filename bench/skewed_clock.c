/* A wall clock that is wrong, for one process: LD_PRELOAD this. SKEWED_CLOCK names a file of one 64-bit integer in the
 * machine's byte order, the nanoseconds to add; it is mapped, so writing to it steps the clock of a process that runs.
 * CLOCK_REALTIME, gettimeofday and time are shifted; the monotonic clocks are left alone. A process that cannot read
 * the file ends at once: a run with a right clock that was to be wrong would prove nothing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000LL

typedef int (*clock_gettime_t)(clockid_t, struct timespec *);

static clock_gettime_t right;
static const volatile int64_t *shift_ns;

static void fail(const char *what) {
    fprintf(stderr, "skewed_clock: %s\n", what);
    _exit(97);
}

/* Called by whoever asks first: another library's constructor may want the time before ours has run. */
static void prepare(void) {
    const char *path = getenv("SKEWED_CLOCK");
    if (path == NULL)
        fail("SKEWED_CLOCK is not set");
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        fail("the file that SKEWED_CLOCK names cannot be opened");
    void *mapped = mmap(NULL, sizeof *shift_ns, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED)
        fail("the file that SKEWED_CLOCK names cannot be mapped");
    shift_ns = mapped;
    clock_gettime_t found = (clock_gettime_t)dlsym(RTLD_NEXT, "clock_gettime");
    if (found == NULL)
        fail("there is no clock_gettime to stand before");
    right = found;
}

__attribute__((constructor)) static void loaded(void) {
    if (right == NULL)
        prepare();
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (right == NULL)
        prepare();
    int answer = right(clock, at);
    if (answer == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = (int64_t)at->tv_sec * SECOND_NS + at->tv_nsec + *shift_ns;
        at->tv_sec = ns / SECOND_NS;
        at->tv_nsec = ns % SECOND_NS;
    }
    return answer;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return (time_t)-1;
    if (at != NULL)
        *at = now.tv_sec;
    return now.tv_sec;
}
