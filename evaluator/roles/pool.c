/* An allocator for torch's memory pools that hands out exchange memory, so that the referee can read a call's
 * outputs there without a copy. Torch asks for segments of megabytes and keeps them until its pool is
 * dropped, so there are few: a sorted list of gaps, first fit, is enough.
 * When the exchange is full it asks the driver, and outputs that land there are copied. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#define MOST_GAPS 4096
#define ALIGNMENT ((uintptr_t)511)

struct gap { uintptr_t at, end; };

static uintptr_t first, last;
static struct gap gaps[MOST_GAPS];
static int count;
static long overflows;
static int (*from_driver)(uintptr_t *, size_t);
static int (*to_driver)(uintptr_t);

void kw_pool_init(uint64_t address, uint64_t bytes) {
    first = address;
    last = address + bytes;
    gaps[0].at = first;
    gaps[0].end = last;
    count = 1;
    overflows = 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver) {
        from_driver = (int (*)(uintptr_t *, size_t))dlsym(driver, "cuMemAlloc_v2");
        to_driver = (int (*)(uintptr_t))dlsym(driver, "cuMemFree_v2");
    }
}

/* How often there was no room: what was allocated then has to be copied. */
long kw_pool_overflows(void) { return overflows; }

static uintptr_t rounded(ssize_t bytes) { return ((uintptr_t)bytes + ALIGNMENT) & ~ALIGNMENT; }

void *kw_pool_alloc(ssize_t bytes, int device, void *stream) {
    (void)device;
    (void)stream;
    uintptr_t at = 0;
    for (int i = 0; bytes >= 0 && i < count; ++i) {
        at = gaps[i].at;
        if (gaps[i].end - at < rounded(bytes)) continue;
        gaps[i].at += rounded(bytes);
        if (gaps[i].at == gaps[i].end) memmove(gaps + i, gaps + i + 1, (size_t)(--count - i) * sizeof *gaps);
        return (void *)at;
    }
    ++overflows;
    if (!from_driver || from_driver(&at, (size_t)bytes)) return NULL;
    return (void *)at;
}

void kw_pool_free(void *pointer, ssize_t bytes, int device, void *stream) {
    (void)device;
    (void)stream;
    const uintptr_t at = (uintptr_t)pointer, end = at + rounded(bytes);
    if (at < first || at >= last) {
        if (to_driver) to_driver(at);
        return;
    }
    int i = 0;
    while (i < count && gaps[i].at < at) ++i;
    const int joins_before = i > 0 && gaps[i - 1].end == at, joins_after = i < count && gaps[i].at == end;
    if (joins_before && joins_after) {
        gaps[i - 1].end = gaps[i].end;
        memmove(gaps + i, gaps + i + 1, (size_t)(--count - i) * sizeof *gaps);
    } else if (joins_before) {
        gaps[i - 1].end = end;
    } else if (joins_after) {
        gaps[i].at = at;
    } else if (count < MOST_GAPS) {
        memmove(gaps + i + 1, gaps + i, (size_t)(count++ - i) * sizeof *gaps);
        gaps[i].at = at;
        gaps[i].end = end;
    }
}
