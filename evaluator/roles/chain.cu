/* The chain of chain.c for the GPU, compiled by NVRTC in the role: two short kernels per call, no host wait between.
 * state[i+1] = 31 * state[i] + sum of the raw 32-bit words of every output of call i (modulo 2^64): a sum of bits has
 * no cheaper form than computing every element. The host zeroes the states after the first before a block. */
struct refresh_t {
    unsigned char *data;
    const unsigned char *pool;
    unsigned long long item_bytes, count, pool_count, stride;
};

extern "C" __global__ void kw_refresh(const refresh_t *inputs, const unsigned long long *state) {
    const refresh_t r = inputs[blockIdx.y];
    const unsigned long long shift = *state % r.pool_count;
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i * r.stride < r.count; i += step) {
        unsigned char *to = r.data + i * r.stride * r.item_bytes;
        const unsigned char *from = r.pool + ((i + shift) % r.pool_count) * r.item_bytes;
        if (r.item_bytes == 4) *(unsigned int *)to = *(const unsigned int *)from;
        else if (r.item_bytes == 2) *(unsigned short *)to = *(const unsigned short *)from;
        else for (unsigned long long b = 0; b < r.item_bytes; ++b) to[b] = from[b];
    }
}

extern "C" __global__ void kw_digest(const unsigned char *output, unsigned long long bytes,
                                     const unsigned long long *state, unsigned long long *next, int first) {
    __shared__ unsigned long long partial[256];
    const unsigned long long words = bytes / 4;
    const unsigned int *data = (const unsigned int *)output;
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long sum = 0;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step) sum += data[i];
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        for (unsigned long long b = words * 4; b < bytes; ++b) sum += output[b];
        if (first) sum += 31ull * *state;
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half; half >>= 1) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(next, partial[0]);
}
