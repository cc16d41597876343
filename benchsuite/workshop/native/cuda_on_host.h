// CUDA for the host, as far as our kernels use it: blocks run one after another, a block's threads in turns, each until
// its next barrier. So a thread sees what all threads wrote before a barrier, and nothing is left to chance.
//
// Not shown: races between blocks, warps that part, the device's own rounding of logf, expf and rsqrtf, and speed.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#define __global__ static
#define __device__
#define __shared__ static  // one block at a time
#define __launch_bounds__(threads)

using std::max;
using std::min;

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
using __half = _Float16;
struct __nv_bfloat16 {  // rounded to nearest even
    uint16_t bits = 0;
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float x) {
        uint32_t wide;
        memcpy(&wide, &x, 4);
        bits = x != x ? 0x7FC0 : uint16_t((wide + 0x7FFF + (wide >> 16 & 1)) >> 16);
    }
    explicit operator float() const {
        const uint32_t wide = uint32_t(bits) << 16;
        float x;
        memcpy(&x, &wide, 4);
        return x;
    }
};

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidValue, cudaErrorInvalidConfiguration = 9 };
struct cudaFuncAttributes {};

namespace on_host {

constexpr int MOST = 1024, STACK = 64 << 10, STRIP = 256;

static int64_t launched[5];  // the last launch's grid, threads of a block, bytes of shared memory
static dim3 grid, block, at_block, at_thread;
static unsigned char* dynamic_shared;
static int error, threads, running;
static jmp_buf scheduler, paused[MOST];
static bool ended[MOST];
static uint64_t lanes[MOST];
static std::unique_ptr<char[]> stacks;
static ucontext_t here;

// What every thread runs. A thread is begun on a stack of its own, and goes on by longjmp: no call of the system.
static void (*body)(void*);
static void* given;

static void begin() {
    body(given);
    ended[running] = true;
    _longjmp(scheduler, 1);
}

static void pause() {
    if (!_setjmp(paused[running])) _longjmp(scheduler, 1);
}

static void run_block() {
    if (!stacks) stacks.reset(new char[size_t(MOST) * STACK]);
    volatile int round = 0, left = threads;
    std::fill(ended, ended + threads, false);
    for (; left; round = 1)
        for (volatile int thread = left = 0; thread < threads; thread = thread + 1) {
            if (ended[thread]) continue;
            running = thread;
            at_thread = dim3(thread, 0, 0);
            if (!_setjmp(scheduler)) {
                if (round) _longjmp(paused[thread], 1);
                ucontext_t made;
                getcontext(&made);
                made.uc_stack.ss_sp = stacks.get() + size_t(thread) * STACK;
                made.uc_stack.ss_size = STACK;
                made.uc_link = &here;
                makecontext(&made, begin, 0);
                setcontext(&made);
            }
            left = left + !ended[thread];
        }
}

// Launches; an error where a device would refuse, and where a kernel wrote past its shared memory.
template <class Kernel>
struct Launch {
    Kernel* kernel;
    dim3 blocks, each;
    size_t shared;

    template <class... Given>
    void operator()(Given... values) const {
        if (!blocks.x || !blocks.y || !blocks.z || blocks.y > 65535 || blocks.z > 65535 || !each.x || each.x > MOST ||
            each.y != 1 || each.z != 1 || shared > 48 << 10) {
            error = cudaErrorInvalidConfiguration;
            return;
        }
        auto call = [&] { kernel(values...); };
        const int64_t asked[] = {blocks.x, blocks.y, blocks.z, each.x, int64_t(shared)};
        memcpy(launched, asked, sizeof asked);
        body = [](void* it) { (*(decltype(call)*)it)(); };
        given = &call;
        grid = blocks, block = each, threads = each.x;
        std::unique_ptr<uint4[]> room(new uint4[(shared + STRIP) / 16 + 1]);
        dynamic_shared = (unsigned char*)room.get();
        for (unsigned z = 0; z < blocks.z; z++)
            for (unsigned y = 0; y < blocks.y; y++)
                for (unsigned x = 0; x < blocks.x; x++) {
                    memset(dynamic_shared, 0xA5, shared + STRIP);
                    at_block = dim3(x, y, z);
                    run_block();
                    for (size_t i = shared; i < shared + STRIP; i++)
                        if (dynamic_shared[i] != 0xA5) error = cudaErrorInvalidValue;
                }
    }
};

template <class Kernel>
Launch<Kernel> launch(Kernel* kernel, dim3 blocks, dim3 each, size_t shared = 0, cudaStream_t = nullptr) {
    return {kernel, blocks, each, shared};
}

}  // namespace on_host

extern "C" inline __attribute__((used)) const int64_t* specdec_launched() { return on_host::launched; }

// What the compiler calls where an index is past the end of an array (-fsanitize=bounds).
extern "C" inline __attribute__((used)) void __ubsan_handle_out_of_bounds(void*, void*) {
    on_host::error = cudaErrorInvalidValue;
}

#define threadIdx on_host::at_thread
#define blockIdx on_host::at_block
#define blockDim on_host::block
#define gridDim on_host::grid

inline void __syncthreads() { on_host::pause(); }
inline void __threadfence() {}

// Of whole warps: every lane writes, and reads when all have written; then all have read before any writes again.
template <class T>
T __shfl_xor_sync(unsigned, T mine, int other) {
    memcpy(&on_host::lanes[on_host::running], &mine, sizeof(T));
    on_host::pause();
    T theirs;
    memcpy(&theirs, &on_host::lanes[on_host::running ^ other], sizeof(T));
    on_host::pause();
    return theirs;
}

template <class T>
T atomicMax(T* at, T value) { return std::exchange(*at, std::max(*at, value)); }
template <class T>
T atomicMin(T* at, T value) { return std::exchange(*at, std::min(*at, value)); }
template <class T>
T atomicAdd(T* at, T value) { return std::exchange(*at, *at + value); }
template <class T>
T atomicExch(T* at, T value) { return std::exchange(*at, value); }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

inline int cudaGetLastError() { return std::exchange(on_host::error, 0); }
template <class Kernel>
int cudaFuncGetAttributes(cudaFuncAttributes*, Kernel*) { return 0; }
inline const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorInvalidConfiguration ? "invalid configuration argument"
           : error                                ? "invalid argument"
                                                  : "no error";
}
