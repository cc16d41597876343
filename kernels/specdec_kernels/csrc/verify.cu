// Drawing and verifying: all rows of a batch in one launch, at any vocabulary.
//
// blockIdx.x is a row. Few rows of a large vocabulary would leave most of the device idle, so a row may be cut
// into gridDim.y parts, one block each. A part's best token is one 64-bit number (noise_cuda.h); the row's best token
// is the maximum over its parts, for any number and order of parts. The part that finishes last writes it.

#include <cuda_runtime.h>

#include "noise_cuda.h"

namespace {

constexpr int THREADS = 512;
constexpr int WALKERS = 32;  // rows of one block; small blocks spread over more of the device

// Combines the results of a row's parts. All zero between launches: the last part resets it for the next launch or
// the next replay of a graph.
struct Meeting {
    unsigned long long best, arrived;
};

struct Part {
    int64_t from, to;
    __device__ explicit Part(int64_t vocabulary) {
        const int64_t each = (vocabulary / gridDim.y / 32 + 1) * 32;  // whole warps; the parts cover the vocabulary
        from = min(blockIdx.y * each, vocabulary);
        to = min(from + each, vocabulary);
    }
};

// Writes the row's best token; every thread calls it once in a kernel.
__device__ void settle(unsigned long long best, Meeting* meetings, int64_t* next) {
    __shared__ unsigned long long warps[THREADS / 32];
    for (int lanes = 16; lanes; lanes /= 2) {
        const unsigned long long other = __shfl_xor_sync(~0u, best, lanes);
        best = other > best ? other : best;
    }
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x) return;
    for (int warp = 1; warp < THREADS / 32; warp++) best = warps[warp] > best ? warps[warp] : best;
    if (gridDim.y > 1) {
        Meeting& meeting = meetings[blockIdx.x];
        atomicMax(&meeting.best, best);
        __threadfence();  // the maximum must be visible before the arrival is counted
        if (atomicAdd(&meeting.arrived, 1ull) + 1 < gridDim.y) return;
        __threadfence();
        best = atomicExch(&meeting.best, 0ull);
        atomicExch(&meeting.arrived, 0ull);
    }
    next[blockIdx.x] = token_of(best);
}

__global__ void __launch_bounds__(THREADS) sample_rows(
    const float* __restrict__ logits, const int64_t* __restrict__ keys, int64_t* chosen, Meeting* meetings,
    int64_t vocabulary, int64_t stride) {
    const float* logit = logits + blockIdx.x * stride;
    const Part part(vocabulary);
    Best best;
    if (keys) {
        const uint64_t key = keys[blockIdx.x];
        for (int64_t i = part.from + threadIdx.x; i < part.to; i += THREADS) best.draw(false, logit[i], key, i);
    } else {
        for (int64_t i = part.from + threadIdx.x; i < part.to; i += THREADS) best.take(false, logit[i], i);
    }
    settle(best.packed, meetings, chosen);
}

__global__ void accept_all(
    const float* __restrict__ probability, const int64_t* __restrict__ keys, bool* accepted, int64_t count) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i < count) accepted[i] = uniform(keys[i]) < probability[i];
}

__global__ void verify_rows(
    const int64_t* __restrict__ tokens, const int64_t* __restrict__ parents, const int64_t* __restrict__ width,
    const int64_t* __restrict__ choices, int64_t* path, int64_t* accepted, int64_t* next, int64_t batch, int64_t slots,
    int64_t parents_stride) {
    const int64_t b = int64_t(blockIdx.x) * WALKERS + threadIdx.x;
    if (b >= batch) return;
    accepted[b] = walk(
        tokens + b * slots, parents + b * parents_stride, choices + b * slots, width[b], slots, path + b * slots,
        next + b);
}

struct Distributions {  // [B, W, V] with any strides but the last
    const float* data;
    int64_t row, slot;
    __device__ const float* at(int64_t b, int64_t w) const { return data + b * row + w * slot; }
};

// Every part repeats the W - 1 tests of its row: cheaper than a second launch.
__global__ void __launch_bounds__(THREADS) rejection_rows(
    Distributions distribution, Distributions q, const int64_t* __restrict__ tokens, const int64_t* __restrict__ width,
    const int64_t* __restrict__ accept_key, const int64_t* __restrict__ residual_key,
    const int64_t* __restrict__ bonus_key, int64_t* path, int64_t* accepted, int64_t* next, Meeting* meetings,
    int slots, int64_t vocabulary) {
    const int64_t b = blockIdx.x, first = b * slots;
    __shared__ int refused;
    if (threadIdx.x == 0) refused = slots - 1;
    __syncthreads();
    for (int i = threadIdx.x; i < slots - 1; i += THREADS) {
        bool kept = i + 1 < width[b];
        if (kept) {
            const int64_t token = tokens[first + i + 1];
            kept = keeps(distribution.at(b, i)[token], q.data ? q.at(b, i)[token] : 1.0f, accept_key[first + i]);
        }
        if (!kept) atomicMin(&refused, i);
    }
    __syncthreads();
    const int count = refused;
    if (blockIdx.y == 0) {
        for (int i = threadIdx.x; i < slots; i += THREADS) path[first + i] = i <= count ? i : -1;
        if (threadIdx.x == 0) accepted[b] = count;
    }

    const bool rejected = count < width[b] - 1;
    const uint64_t key = (rejected ? residual_key : bonus_key)[first + count];
    const float* p = distribution.at(b, count);
    const Part part(vocabulary);
    Best best;
    if (!rejected || slots == 1) {
        for (int64_t i = part.from + threadIdx.x; i < part.to; i += THREADS) best.draw(false, logf(p[i]), key, i);
    } else {
        const int column = min(count, slots - 2);
        const float* taken = q.data ? q.at(b, column) : nullptr;
        const int64_t proposal = tokens[first + column + 1];
        for (int64_t i = part.from + threadIdx.x; i < part.to; i += THREADS)
            best.draw_left(p[i], taken ? taken[i] : i == proposal ? 1.0f : 0.0f, key, i);
    }
    settle(best.packed, meetings, next);
}

unsigned blocks(int64_t count, int each) { return unsigned((count + each - 1) / each); }

}  // namespace

// Each returns the launch's error, 0 for none. Pointers are the device's, strides count elements.

// Whether this library has code for the current device, and the driver takes it.
extern "C" int specdec_probe() {
    cudaFuncAttributes attributes;
    const int error = cudaFuncGetAttributes(&attributes, sample_rows);
    cudaGetLastError();  // clears the error, so that the next launch does not report it
    return error;
}

extern "C" const char* specdec_error(int error) { return cudaGetErrorString(cudaError_t(error)); }

// chosen [rows] of logits [rows, V], keys [rows] or null for no noise; meetings [rows], unused with one part.
extern "C" int specdec_sample(
    const float* logits, const int64_t* keys, int64_t* chosen, void* meetings, int64_t rows, int64_t vocabulary,
    int64_t stride, int parts, cudaStream_t stream) {
    if (!rows) return 0;
    sample_rows<<<dim3(rows, parts), THREADS, 0, stream>>>(
        logits, keys, chosen, (Meeting*)meetings, vocabulary, stride);
    return cudaGetLastError();
}

// All contiguous [count].
extern "C" int specdec_accept(
    const float* probability, const int64_t* keys, bool* accepted, int64_t count, cudaStream_t stream) {
    if (!count) return 0;
    accept_all<<<blocks(count, THREADS), THREADS, 0, stream>>>(probability, keys, accepted, count);
    return cudaGetLastError();
}

// All contiguous [B, W] or [B], except the rows of parents: chains repeat one row.
extern "C" int specdec_verify_prefix(
    const int64_t* tokens, const int64_t* parents, const int64_t* width, const int64_t* choices, int64_t* path,
    int64_t* accepted, int64_t* next, int64_t batch, int64_t slots, int64_t parents_stride, cudaStream_t stream) {
    if (!batch) return 0;
    verify_rows<<<blocks(batch, WALKERS), WALKERS, 0, stream>>>(
        tokens, parents, width, choices, path, accepted, next, batch, slots, parents_stride);
    return cudaGetLastError();
}

// distribution [B, W, V]; q [B, W - 1, V], or null for one-hot rows; strides (row, slot) of distribution, then of q;
// all other tensors are contiguous.
extern "C" int specdec_rejection_sample(
    const float* distribution, const float* q, const int64_t* strides, const int64_t* tokens, const int64_t* width,
    const int64_t* accept_key, const int64_t* residual_key, const int64_t* bonus_key, int64_t* path, int64_t* accepted,
    int64_t* next, void* meetings, int64_t batch, int slots, int64_t vocabulary, int parts, cudaStream_t stream) {
    if (!batch) return 0;
    rejection_rows<<<dim3(batch, parts), THREADS, 0, stream>>>(
        Distributions{distribution, strides[0], strides[1]}, Distributions{q, strides[2], strides[3]}, tokens, width,
        accept_key, residual_key, bonus_key, path, accepted, next, (Meeting*)meetings, slots, vocabulary);
    return cudaGetLastError();
}
