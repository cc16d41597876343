// y = x W^T (+ bias) for 1 to 16 rows of x, at the cost of reading W once.
//
// A block of R rows of W is multiplied with up to 8 rows of x in R * M accumulators. During this, the next block is
// prefetched into L2: short rows (SmolLM2's are 2,304 bytes) end before the hardware prefetcher reaches full speed,
// and without the prefetch four rows of x cost 1.16 times and eight rows 1.5 times as much as one row (docs/log.md).
// More than 8 rows of x take two passes over a block, which is then in L1 or L2.

#include <omp.h>

#include <algorithm>
#include <vector>

#include "vec.h"
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {

constexpr int GROUP = 32;  // inputs of one int4 group, and of one register of bfloat16 pairs
constexpr long MOST_ROWS = 8;
constexpr long WORTH_THREADS = 1 << 15;  // multiplications; below this number, threads cost more than they save

// A kind of weights: how GROUP of them become vectors. `Scaled` kinds multiply the sum of a row by its scale.
template <class T, bool S>
struct Plain {
    using X = float;
    static constexpr bool Scaled = S;
    const T* weight;
    const float* scale;
    long inputs;

    const char* row(long n) const { return (const char*)(weight + n * inputs); }
    static long bytes(long k) { return k * long(sizeof(T)); }
    float final_scale(long n) const { return S ? scale[n] : 1.0f; }
    vec get(long n, long k) const { return load(weight + n * inputs + k); }
    float one(long n, long k) const {
        if constexpr (S) return float(weight[n * inputs + k]);
        else return to_float(weight[n * inputs + k]);
    }
};

// Groups of 32: byte j of a group holds input j in its low and input j + 16 in its high half;
// w = code * scale + offset of the group.
struct Int4 {
    using X = float;
    static constexpr bool Scaled = false;
    const uint8_t* weight;
    const float* scale;
    const float* offset;
    long inputs;

    const char* row(long n) const { return (const char*)(weight + n * inputs / 2); }
    static long bytes(long k) { return k / 2; }
    float final_scale(long) const { return 1.0f; }
    vec get(long n, long k) const {
        typedef uint8_t codes __attribute__((vector_size(LANES)));
        const long at = n * inputs + k, group = at / GROUP, within = at % GROUP;
        codes packed;
        memcpy(&packed, weight + group * 16 + within % 16, sizeof packed);
        packed = within < 16 ? packed & 15 : packed >> 4;
        return load((const int8_t*)&packed) * scale[group] + offset[group];
    }
    float one(long, long) const { return 0.0f; }  // inputs are a multiple of 32
};

// M rows of x against R rows of W; `next` is the start of the block after this block.
template <int R, int M, class W>
inline void block(const W& w, long n, const float* x, float* y, long outputs, const char* next) {
    vec acc[R][M] = {};
    const long whole = w.inputs / LANES * LANES, stride = w.bytes(w.inputs);
    for (long k = 0; k < whole; k += LANES) {
        vec wide[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            wide[r] = w.get(n + r, k);
            __builtin_prefetch(next + r * stride + w.bytes(k), 0, 2);
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            const vec column = load(x + m * w.inputs + k);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) acc[r][m] += wide[r] * column;
        }
    }
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) {
            float total = sum(acc[r][m]);
            for (long k = whole; k < w.inputs; k++) total += w.one(n + r, k) * x[m * w.inputs + k];
            y[m * outputs + n + r] = total * w.final_scale(n + r);
        }
}

#if defined(__AVX512BF16__)
// bfloat16 weights and inputs: 32 exact products a register, summed in float32.
struct Pairs {
    using X = bf16;
    const bf16* weight;
    long inputs;
    const char* row(long n) const { return (const char*)(weight + n * inputs); }
};

template <int R, int M>
inline void block(const Pairs& w, long n, const bf16* x, float* y, long outputs, const char* next) {
    __m512 acc[R][M];
    for (auto& row : acc)
        for (auto& one : row) one = _mm512_setzero_ps();
    const long whole = w.inputs / GROUP * GROUP;
    for (long k = 0; k < whole; k += GROUP) {
        __m512bh wide[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            wide[r] = (__m512bh)_mm512_loadu_si512(w.weight + (n + r) * w.inputs + k);
            __builtin_prefetch(next + (r * w.inputs + k) * 2, 0, 2);
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            const __m512bh column = (__m512bh)_mm512_loadu_si512(x + m * w.inputs + k);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) acc[r][m] = _mm512_dpbf16_ps(acc[r][m], wide[r], column);
        }
    }
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) {
            float total = sum((vec)acc[r][m]);
            for (long k = whole; k < w.inputs; k++)
                total += to_float(w.weight[(n + r) * w.inputs + k]) * to_float(x[m * w.inputs + k]);
            y[m * outputs + n + r] = total;
        }
}
#endif

template <int R, class W>
void passes(const W& w, long n, const typename W::X* x, float* y, long rows, long outputs, const char* next) {
    for (long done = 0; done < rows; done += MOST_ROWS, next = w.row(n)) {
        const auto* from = x + done * w.inputs;
        float* to = y + done * outputs;
        switch (std::min(rows - done, MOST_ROWS)) {
            case 1: block<R, 1>(w, n, from, to, outputs, next); break;
            case 2: block<R, 2>(w, n, from, to, outputs, next); break;
            case 3: block<R, 3>(w, n, from, to, outputs, next); break;
            case 4: block<R, 4>(w, n, from, to, outputs, next); break;
            case 5: block<R, 5>(w, n, from, to, outputs, next); break;
            case 6: block<R, 6>(w, n, from, to, outputs, next); break;
            case 7: block<R, 7>(w, n, from, to, outputs, next); break;
            default: block<R, 8>(w, n, from, to, outputs, next); break;
        }
    }
}

template <int R, class W>
void span(const W& w, const typename W::X* x, float* y, long rows, long outputs, long from, long to) {
    long n = from;
    for (; n + R <= to; n += R) passes<R>(w, n, x, y, rows, outputs, w.row(std::min(n + R, outputs - R)));
    for (; n < to; n++) passes<1>(w, n, x, y, rows, outputs, w.row(n));
}

template <class W>
void multiply(const W& w, const typename W::X* x, float* y, long rows, long outputs, int threads) {
    const bool tall = ACCUMULATORS / std::min(rows, MOST_ROWS) >= 4;
#pragma omp parallel num_threads(threads) if (outputs * w.inputs * rows >= WORTH_THREADS)
    {
        const long each = (outputs / 12 + omp_get_num_threads()) / omp_get_num_threads() * 12;
        const long from = std::min(omp_get_thread_num() * each, outputs), to = std::min(from + each, outputs);
        if (tall) span<4>(w, x, y, rows, outputs, from, to);
        else if (LANES == 16) span<3>(w, x, y, rows, outputs, from, to);
        else span<1>(w, x, y, rows, outputs, from, to);
    }
}

template <class T>
std::vector<float> widened(const T* x, long count) {
    std::vector<float> out(count);
    for (long i = 0; i < count; i++) out[i] = to_float(x[i]);
    return out;
}

}  // namespace

enum Kind { FLOAT32, BFLOAT16, INT8, INT4 };

// x [rows, inputs] and y [rows, outputs] are contiguous float32, or bfloat16 with `narrow`; bias like them, or null.
extern "C" void specdec_linear(
    int kind, int narrow, const void* weight, const float* scale, const float* offset, const void* x, const void* bias,
    void* y, long rows, long inputs, long outputs, int threads) {
    if (rows == 0) return;
    std::vector<float> wide_x, wide_y;
    const float* from = (const float*)x;
    float* to = (float*)y;
    if (narrow) {
        wide_y.resize(rows * outputs);
        to = wide_y.data();
#if defined(__AVX512BF16__)
        if (kind == BFLOAT16) multiply(Pairs{(const bf16*)weight, inputs}, (const bf16*)x, to, rows, outputs, threads);
        else
#endif
        {
            wide_x = widened((const bf16*)x, rows * inputs);
            from = wide_x.data();
        }
    }
    if (kind == FLOAT32)
        multiply(Plain<float, false>{(const float*)weight, nullptr, inputs}, from, to, rows, outputs, threads);
    else if (kind == INT8)
        multiply(Plain<int8_t, true>{(const int8_t*)weight, scale, inputs}, from, to, rows, outputs, threads);
    else if (kind == INT4)
        multiply(Int4{(const uint8_t*)weight, scale, offset, inputs}, from, to, rows, outputs, threads);
#if defined(__AVX512BF16__)
    else if (!narrow)
#else
    else
#endif
        multiply(Plain<bf16, false>{(const bf16*)weight, nullptr, inputs}, from, to, rows, outputs, threads);
    for (long m = 0; m < rows; m++)
        for (long n = 0; (bias || narrow) && n < outputs; n++) {
            float total = to[m * outputs + n];
            if (bias) total += narrow ? to_float(((const bf16*)bias)[n]) : ((const float*)bias)[n];
            if (narrow) put((bf16*)y + m * outputs + n, total);
            else to[m * outputs + n] = total;
        }
}
