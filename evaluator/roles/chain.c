/* The chain between the calls of a timed block: a digest of what a call returned decides how the next call's input
 * is refreshed. Plain C without any header of torch, so that it builds in a fraction of a second; the referee runs the
 * same code to recompute the chain from the outputs that a role claims.
 *
 * All lengths are in bytes or elements as named; nothing here allocates, blocks or fails. */
#include <stdint.h>
#include <string.h>

typedef struct {
    uint8_t *data;        /* the input tensor, contiguous */
    const uint8_t *pool;  /* legal element values for this tensor */
    uint64_t item_bytes;
    uint64_t count;       /* elements in data */
    uint64_t pool_count;  /* elements in pool */
    uint64_t stride;      /* every stride-th element is replaced; 1: all, each by a value of its own choice */
    uint64_t keeps_zeros; /* whether an element that is zero stays: the input's pattern of zeros is part of the task */
} refresh_t;

static inline uint64_t mix(uint64_t hash, uint64_t value) {
    hash ^= value;
    hash *= 0x9E3779B97F4A7C15ull;
    return hash ^ (hash >> 29);
}

static inline uint64_t word_at(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

enum { WHOLE_BYTES = 16384, SAMPLES = 256 };

enum { WHEN_BITS = 16 };

/* The sampled places of an output depend on when its call returned, so that a process cannot prepare only these and
 * compute the rest later: the state before the digests, and the one after them, whose last bits say when that was. */
uint64_t kw_stirred(uint64_t state, uint64_t when) { return mix(state, when); }

uint64_t kw_marked(uint64_t state, uint64_t when) {
    return (state >> WHEN_BITS << WHEN_BITS) | when;
}

/* Digest of an output: all of it up to WHOLE_BYTES, else SAMPLES words at places that depend on the state so far. */
uint64_t kw_digest(const uint8_t *output, uint64_t bytes, uint64_t state) {
    uint64_t lane[4] = {state, state + 1, state + 2, state + 3};
    uint64_t offset = 0;
    if (bytes <= WHOLE_BYTES) {
        for (; offset + 32 <= bytes; offset += 32)
            for (int i = 0; i < 4; ++i) lane[i] = mix(lane[i], word_at(output + offset + 8 * i));
        for (; offset < bytes; ++offset) lane[0] = mix(lane[0], output[offset]);
    } else {
        const uint64_t stride = bytes / SAMPLES;
        offset = mix(state, bytes) % (stride - 7);
        for (uint64_t i = 0; i < SAMPLES; ++i, offset += stride) lane[i & 3] = mix(lane[i & 3], word_at(output + offset));
    }
    return mix(mix(lane[0], lane[1]), mix(lane[2], lane[3]));
}

/* Whether all bits of a value are zero but for its sign. */
static inline int is_zero(const uint8_t *at, uint64_t bytes) {
    for (uint64_t i = 0; i + 1 < bytes; ++i)
        if (at[i]) return 0;
    return (at[bytes - 1] & 0x7f) == 0;
}

/* Writes a pool value over an element. */
static inline void replace(const refresh_t *r, uint64_t at, uint64_t from) {
    uint8_t *to = r->data + r->item_bytes * at;
    if (r->keeps_zeros && is_zero(to, r->item_bytes)) return;
    if (r->item_bytes == 4)
        memcpy(to, r->pool + 4 * from, 4);
    else
        memcpy(to, r->pool + r->item_bytes * from, r->item_bytes);
}

/* Every element becomes a pool value; a step of its own keeps the order from being the pool's. */
static void replace_all(const refresh_t *r, uint64_t seed) {
    const uint32_t step = (uint32_t)(seed >> 32) | 1;
    uint32_t at = (uint32_t)seed;
    for (uint64_t i = 0; i < r->count; ++i, at += step) {
        replace(r, i, (uint64_t)at * r->pool_count >> 32);
    }
}

/* Replaces every stride-th element of each input by a pool value; which ones and where depends on the state. */
void kw_refresh(const refresh_t *inputs, uint64_t inputs_count, uint64_t state) {
    for (uint64_t i = 0; i < inputs_count; ++i) {
        const refresh_t *r = &inputs[i];
        uint64_t seed = mix(state, i + 1);
        if (r->stride == 1) {
            replace_all(r, seed);
            continue;
        }
        uint64_t from = seed % r->pool_count;
        for (uint64_t at = (seed >> 32) % r->stride; at < r->count; at += r->stride) {
            replace(r, at, from);
            if (++from == r->pool_count) from = 0;
        }
    }
}

enum { CHUNK_BYTES = 32 };

/* Copies a part of a source that is rolled: from a place in it, and on from its start where it ends. */
static void copy_rolled(uint8_t *target, const uint8_t *source, uint64_t from, uint64_t length, uint64_t bytes) {
    const uint64_t first = length < bytes - from ? length : bytes - from;
    memcpy(target, source + from, first);
    memcpy(target + first, source, length - first);
}

/* Chunk by chunk from one of two rolled sources; which one is drawn, so nothing here may depend on guessing it. */
static void copy_mixed(uint8_t *target, const uint8_t *const sources[2], const uint64_t rolls[2], const uint64_t *mask,
                       uint64_t bytes) {
    uint64_t from[2] = {rolls[0], rolls[1]};
    for (uint64_t at = 0; at < bytes; at += CHUNK_BYTES) {
        const int which = mask[at / CHUNK_BYTES / 64] >> (at / CHUNK_BYTES % 64) & 1;
        const uint64_t later = from[0] > from[1] ? from[0] : from[1];
        if (at + CHUNK_BYTES <= bytes && later + CHUNK_BYTES <= bytes)
            memcpy(target + at, sources[which] + from[which], CHUNK_BYTES);
        else
            copy_rolled(target + at, sources[which], from[which], bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES, bytes);
        for (int i = 0; i < 2; ++i) {
            from[i] += CHUNK_BYTES;
            while (from[i] >= bytes) from[i] -= bytes;
        }
    }
}

/* Writes count contents, stride bytes apart. Each is a source of the given length rolled left by its own offset, in which some
 * chunks are those of another one, rolled by another offset: where a bit of its mask is set (of one bit a chunk, in whole words).
 * Without masks nothing is mixed. */
void kw_fill(uint8_t *target, uint64_t stride, uint64_t count, const uint64_t *sources, const uint64_t *rolls,
             const uint64_t *others, const uint64_t *other_rolls, const uint64_t *masks, uint64_t bytes) {
    const uint64_t words = ((bytes + CHUNK_BYTES - 1) / CHUNK_BYTES + 63) / 64;
    for (uint64_t i = 0; i < count; ++i, target += stride) {
        const uint8_t *source = (const uint8_t *)(uintptr_t)sources[i];
        if (masks) {
            const uint8_t *both[2] = {source, (const uint8_t *)(uintptr_t)others[i]};
            const uint64_t rolled[2] = {rolls[i], other_rolls[i]};
            copy_mixed(target, both, rolled, masks + i * words, bytes);
        } else {
            copy_rolled(target, source, rolls[i], bytes, bytes);
        }
    }
}
