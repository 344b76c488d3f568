/* The chain of chain.c for the GPU, compiled by the referee with NVRTC: one short kernel between two calls
 * digests what the last one returned and refreshes the inputs of the next one; no host wait in between. Every block of
 * threads computes the whole digest for itself and refreshes its share: a kernel of this size is all latency.
 *
 * The digest is of all bytes up to WHOLE_BYTES, else of SAMPLES words at places that depend on the state and on when the
 * link began: it makes the calls depend on each other, and a process cannot prepare only these words and compute the
 * rest later. The memory itself is checked for complete outputs after the process was stopped. */
struct refresh_t {
    unsigned char *data;
    const unsigned char *pool;
    unsigned long long item_bytes, count, pool_count, stride, keeps_zeros;
};

/* From sm_90 on, the blocks of a link are one cluster. The device runs them at the same time, and no other work can access
 * their on-chip memory. On older devices they are separate blocks. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CLUSTER __attribute__((cluster_dims(8, 1, 1)))
#define THREADS 512
#else
#define CLUSTER
#define THREADS 256
#endif

#define PER_LINK 8
#define WHOLE_BYTES 16384ull
#define SAMPLES 1024ull
#define WHEN_BITS 16
#define WHEN_MASK ((1ull << WHEN_BITS) - 1)
/* Instead of a time that is given: read the clock, or go on with the part of a link before this one. */
#define BY_CLOCK -1
#define GOES_ON -2

struct outputs_t {
    const unsigned char *data[PER_LINK];
    unsigned long long bytes[PER_LINK];
};

__device__ unsigned long long mix(unsigned long long hash, unsigned long long value) {
    hash ^= value;
    hash *= 0x9E3779B97F4A7C15ull;
    return hash ^ (hash >> 29);
}

/* As in chain.c: the last bits of a state say when its call returned. */
__device__ unsigned long long marked(unsigned long long state, unsigned long long when) {
    return state >> WHEN_BITS << WHEN_BITS | when;
}

/* Sixteen unpredictable bits. The device's own time advances in steps of up to a microsecond; a processor's cycles do not. */
__device__ unsigned long long now() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return mix(time, (unsigned long long)clock64() << 24) >> (64 - WHEN_BITS);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

/* When this link began, the same for all of its blocks: the first one says so, and the others read it there. All threads call this,
 * and let_go() before they end. */
__device__ unsigned long long agreed(unsigned long long *, unsigned long long) {
    __shared__ unsigned long long mine;
    if (blockIdx.x == 0 && threadIdx.x == 0) mine = now();
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
    unsigned long long found;
    asm volatile("{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %1, 0;\n\tld.shared::cluster.u64 %0, [there];\n\t}"
                 : "=l"(found) : "r"((unsigned int)__cvta_generic_to_shared(&mine)) : "memory");
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    return found;
}

/* The first block's memory must be there until all have read it. */
__device__ void let_go() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

#else

/* When this link began, the same for all of its blocks: the first one to arrive sets it. No block waits for another, so it does
 * not matter which blocks run, in what order, or what else runs. The word names the state that the link began with, which no other
 * link has that uses this word: what an earlier one left there is replaced. All threads call this. */
__device__ unsigned long long agreed(unsigned long long *word, unsigned long long state) {
    __shared__ unsigned long long said;
    if (threadIdx.x == 0) {
        const unsigned long long seen = *(volatile unsigned long long *)word;
        said = seen;
        if ((seen ^ state) >> WHEN_BITS) {
            const unsigned long long mine = marked(state, now()), found = atomicCAS(word, seen, mine);
            said = found == seen ? mine : found;
        }
    }
    __syncthreads();
    return said & WHEN_MASK;
}

__device__ void let_go() {}

#endif

__device__ unsigned int word_at(const unsigned char *at) {
    if (((unsigned long long)at & 3) == 0) return *(const unsigned int *)at;
    return at[0] | at[1] << 8 | at[2] << 16 | (unsigned int)at[3] << 24;
}

/* A thread's part of the digest of one output. Parts are added, so their order does not matter; each is mixed with its
 * place, so the order of the words does. */
__device__ unsigned long long part(const unsigned char *data, unsigned long long bytes, unsigned long long state) {
    unsigned long long sum = 0;
    if (bytes <= WHOLE_BYTES) {
        for (unsigned long long i = threadIdx.x; i < bytes / 4; i += THREADS) sum += mix(state + i, word_at(data + 4 * i));
        if (threadIdx.x < bytes % 4) sum += mix(~state + threadIdx.x, data[bytes / 4 * 4 + threadIdx.x]);
        return sum;
    }
    const unsigned long long stride = bytes / SAMPLES;
    const unsigned long long offset = (unsigned int)(mix(state, bytes) >> 32) % (unsigned int)(stride - 3);
    for (unsigned long long i = threadIdx.x; i < SAMPLES; i += THREADS)
        sum += mix(state + i, word_at(data + offset + i * stride));
    return sum;
}

/* The state with the digest of one output in it. All threads of a block call this, and each gets the same. */
__device__ unsigned long long digested(const unsigned char *data, unsigned long long bytes, unsigned long long state) {
    __shared__ unsigned long long sums[THREADS / 32];
    unsigned long long sum = part(data, bytes, state);
    for (int half = 16; half; half >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, half);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < THREADS / 32; ++i) sum += sums[i];
    __syncthreads();
    return mix(state, sum);
}

__device__ void copy_item(unsigned char *to, const unsigned char *from, unsigned long long item_bytes) {
    if (item_bytes == 4) *(unsigned int *)to = *(const unsigned int *)from;
    else if (item_bytes == 2) *(unsigned short *)to = *(const unsigned short *)from;
    else if (item_bytes == 8) *(unsigned long long *)to = *(const unsigned long long *)from;
    else for (unsigned long long b = 0; b < item_bytes; ++b) to[b] = from[b];
}

/* As in chain.c. */
__device__ bool is_zero(const unsigned char *at, unsigned long long bytes) {
    for (unsigned long long i = 0; i + 1 < bytes; ++i)
        if (at[i]) return false;
    return (at[bytes - 1] & 0x7f) == 0;
}

extern "C" __global__ CLUSTER void kw_link(const outputs_t outputs, int outputs_count, const refresh_t *inputs, int inputs_count,
                                   const unsigned long long *before, unsigned long long *after,
                                   unsigned long long *word, int given) {
    unsigned long long state = *before;
    unsigned long long when = given;
    if (given == BY_CLOCK) when = agreed(word, state);
    if (given == GOES_ON) when = state & WHEN_MASK;
    else state = mix(state, when);
    for (int o = 0; o < outputs_count; ++o) state = digested(outputs.data[o], outputs.bytes[o], state);
    if (outputs_count) state = marked(state, when);
    if (blockIdx.x == 0 && threadIdx.x == 0) *after = state;
    for (int e = 0; e < inputs_count; ++e) {
        const refresh_t r = inputs[e];
        const unsigned long long seed = mix(state, e + 1);
        const unsigned int pool = r.pool_count, from = (unsigned int)seed % pool;
        const unsigned int phase = (unsigned int)(seed >> 32) % (unsigned int)r.stride;
        /* Where all is replaced, a step of its own keeps the order from being the pool's. */
        const unsigned int step = (unsigned int)(seed >> 32) | 1;
        for (unsigned int i = blockIdx.x * THREADS + threadIdx.x;; i += gridDim.x * THREADS) {
            const unsigned long long at = phase + i * r.stride;
            if (at >= r.count) break;
            const unsigned int drawn = (unsigned int)(((unsigned long long)((unsigned int)seed + i * step) * pool) >> 32);
            const unsigned int source = r.stride == 1 ? drawn : (from + i) % pool;
            if (r.keeps_zeros && is_zero(r.data + at * r.item_bytes, r.item_bytes)) continue;
            copy_item(r.data + at * r.item_bytes, r.pool + source * r.item_bytes, r.item_bytes);
        }
    }
    if (given == BY_CLOCK) let_go();
}

/* The referee's alone: counts the calls of a block whose links do not follow from the states before them. One block of THREADS for
 * each call; data holds the addresses of a call's outputs, call after call, bytes their lengths, states one more than there are calls. */
extern "C" __global__ void kw_broken(const unsigned long long *data, const unsigned long long *bytes, int outputs_count,
                                     const unsigned long long *states, unsigned long long *broken) {
    const unsigned long long claimed = states[blockIdx.x + 1], when = claimed & WHEN_MASK;
    unsigned long long state = mix(states[blockIdx.x], when);
    for (int o = 0; o < outputs_count; ++o) {
        /* Here the next part of the link began. */
        if (o && o % PER_LINK == 0) state = marked(state, when);
        state = digested((const unsigned char *)data[blockIdx.x * outputs_count + o], bytes[o], state);
    }
    if (threadIdx.x == 0 && marked(state, when) != claimed) atomicAdd(broken, 1ull);
}

#define CHUNK_BYTES 32

/* Writes contents, stride bytes apart: each one of the sources of count items, rolled left by its own offset (in items), in which
 * some chunks are those of another one, rolled by another offset: where a bit of its mask is set (of one bit a chunk, in so many
 * words a content). Without masks nothing is mixed. */
extern "C" __global__ void kw_fill(unsigned char *target, unsigned long long stride_bytes, const unsigned long long *sources,
                                   const unsigned long long *draws, const unsigned long long *rolls,
                                   const unsigned long long *others, const unsigned long long *other_rolls,
                                   const unsigned long long *masks, unsigned long long words, unsigned long long count,
                                   unsigned long long source_count, unsigned long long item_bytes) {
    unsigned char *to = target + blockIdx.y * stride_bytes;
    const unsigned char *one = (const unsigned char *)sources[draws[blockIdx.y]];
    const unsigned char *other = (const unsigned char *)sources[others[blockIdx.y]];
    const unsigned long long roll = rolls[blockIdx.y], other_roll = other_rolls[blockIdx.y];
    const unsigned long long *mask = masks ? masks + blockIdx.y * words : 0;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (unsigned long long)gridDim.x * blockDim.x) {
        const unsigned long long chunk = i * item_bytes / CHUNK_BYTES;
        const bool from_other = mask && (mask[chunk / 64] >> (chunk % 64) & 1);
        unsigned long long source = i + (from_other ? other_roll : roll);
        /* A source may be a part of a large draw, which is then used again and again. */
        if (source >= source_count) source = source < 2 * source_count ? source - source_count : source % source_count;
        copy_item(to + i * item_bytes, (from_other ? other : one) + source * item_bytes, item_bytes);
    }
}
