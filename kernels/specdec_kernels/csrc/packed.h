// y = x W^T over packed weights: specdec/packed.py describes the layouts, docs/kernels.md the measurements.
//
// A tile is 16 outputs. A vector holds one input of several outputs, so a row of x is broadcast number by number and no
// sum across lanes is needed. A block of up to four tiles times up to ROWS rows of x stays in registers; the sums of
// CHAIN inputs are added in memory. More rows take several passes over the same part of the weights, which is in the
// caches by then. The sum of an output is formed in the same order for any number of rows: a row's result does not
// depend on the rows beside it, bit for bit.
#pragma once

#include <type_traits>
#include <vector>

#include "team.h"
#include "vec.h"

constexpr int TILE = 16;           // outputs
constexpr int H = TILE / LANES;    // vectors of a tile
constexpr long BLOCK = 256;        // inputs of a pass; a tile's part in float32 is 16 KiB, half of L1
constexpr long CHAIN = 64;         // inputs that are summed one after the other; of BLOCK, the error would be twice as large
constexpr int GROUP = 32;          // inputs that share a scale and an offset in int4
constexpr long MOST_ROWS = 192;    // rows that share a read of the weights; their x stays in L2
constexpr long AHEAD = 4096;       // bytes that are prefetched ahead of the read
constexpr long WORTH_THREADS_LINEAR = 1 << 15;  // multiplications; below this number, threads cost more than they save

#if defined(__AVX512F__)
constexpr int ROWS = 8, REGISTERS = 24;  // rows of a pass; accumulators, of 32 registers
#elif defined(__AVX__)
constexpr int ROWS = 6, REGISTERS = 12;  // of 16; one tile is as fast as several
#else
constexpr int ROWS = 3, REGISTERS = 12;
#endif

enum Kind { FLOAT32, BFLOAT16, INT8, INT4 };

struct Matrix {  // packed; `scale` is null for floats, bias may be null
    const void* weight;
    const float *scale, *bias;
    long kind, inputs, outputs;
};

// A kind of weights: `STEP` inputs are stored together, `LINE` inputs of a tile are one line of a cache. `read` loads the
// STEP inputs from k on of one vector of outputs, h; `widen` makes floats of input k + s, with the scales of its `group`.
// `at` is where they lie. More than DIRECT passes read a copy that was widened once.
template <class T>
struct Singles {
    using X = float;
    using Raw = vec;
    static constexpr int STEP = 1, LINE = 64 / (TILE * sizeof(T)), DIRECT = 8;
    const T* weight;
    long inputs;
    const char* at(long tile, long k) const { return (const char*)(weight + (tile * inputs + k) * TILE); }
    Raw read(long tile, long k, int h) const { return load(weight + (tile * inputs + k) * TILE + h * LANES); }
    const float* group(long, long) const { return nullptr; }
    vec widen(Raw raw, const float*, int, int) const { return raw; }
};

using Floats = Singles<float>;
using Bytes = Singles<int8_t>;

// Two inputs of an output side by side, as AVX-512's bfloat16 products take them.
struct Halves {
    using X = float;
    using Raw = uvec;
    static constexpr int STEP = 2, LINE = 2, DIRECT = 8;
    const bf16* weight;
    long inputs;  // even
    const char* at(long tile, long k) const { return (const char*)(weight + (tile * inputs + k) * TILE); }
    Raw read(long tile, long k, int h) const {
        Raw raw;
        memcpy(&raw, weight + (tile * inputs + k) * TILE + h * LANES * 2, sizeof raw);
        return raw;
    }
    const float* group(long, long) const { return nullptr; }
    vec widen(Raw raw, const float*, int s, int) const { return vec(s ? raw & 0xffff0000u : raw << 16); }
};

// Byte j of a step holds output j's code of input k in its low and of k + 1 in its high half; w = code * scale + offset.
struct Nibbles {
    using X = float;
    using Raw = ivec;
    static constexpr int STEP = 2, LINE = 8, DIRECT = 3;
    const uint8_t* weight;
    const float* scale;  // [tile][group][2][TILE]: scales, then offsets
    long inputs;
    const char* at(long tile, long k) const { return (const char*)(weight + (tile * inputs + k) / 2 * TILE); }
    Raw read(long tile, long k, int h) const {
        const uint8_t* from = weight + (tile * inputs + k) / 2 * TILE + h * LANES;
#if defined(__AVX512F__)
        return (Raw)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
        return (Raw)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
        Raw raw;
        for (int i = 0; i < LANES; i++) raw[i] = from[i];
        return raw;
#endif
    }
    const float* group(long tile, long k) const {
        return scale + (unsigned long)(tile * inputs + k) / GROUP * 2 * TILE;
    }
    vec widen(Raw raw, const float* group, int s, int h) const {
#if defined(__AVX512F__)
        const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __m512i at = s ? _mm512_srli_epi32((__m512i)raw, 4) : (__m512i)raw;
        const vec code = (vec)_mm512_permutexvar_ps(at, table);  // looks at the low four bits alone
#else
        const vec code = __builtin_convertvector(s ? raw >> 4 : raw & 15, vec);
#endif
        return code * load(group + h * LANES) + load(group + TILE + h * LANES);
    }
};

#if defined(__AVX512BF16__)
// Products of bfloat16 pairs, exact, summed in float32.
struct Pairs : Halves {
    using X = bf16;
};
#endif

// Tiles that a block of some rows works on together. Codes take registers of their own before they are widened.
template <class W>
constexpr int tiles_of(int rows) {
    return LANES == 16 ? std::max(1, std::min(4, (W::STEP > 1 ? 16 : REGISTERS) / rows)) : 1;
}

// y[m, NB tiles] (+)= x[m, k0 .. k1] W^T; `step` is the distance of two rows of `part`, which holds whole tiles.
template <int NB, int M, class W>
__attribute__((noinline)) void chain(  // inlined, gcc 12 would spill
    const W& w, long tile, long k0, long k1, const typename W::X* x, long stride, float* part, long step) {
    vec acc[NB][H][M] = {};
    const float* group[NB] = {};
    auto some = [&](long k, int wanted) __attribute__((always_inline)) {
#if defined(__AVX512BF16__)
        if constexpr (std::is_same_v<typename W::X, bf16>) {
            __m512bh wide[NB];
#pragma GCC unroll 4
            for (int b = 0; b < NB; b++) wide[b] = (__m512bh)_mm512_loadu_si512(w.at(tile + b, k));
#pragma GCC unroll 8
            for (int m = 0; m < M; m++) {
                int32_t two = 0;
                memcpy(&two, x + m * stride + k, wanted * sizeof(bf16));
                const __m512bh column = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 4
                for (int b = 0; b < NB; b++) acc[b][0][m] = (vec)_mm512_dpbf16_ps((__m512)acc[b][0][m], wide[b], column);
            }
        } else
#endif
        {
            typename W::Raw raw[NB][H];
#pragma GCC unroll 4
            for (int b = 0; b < NB; b++)
#pragma GCC unroll 4
                for (int h = 0; h < H; h++) raw[b][h] = w.read(tile + b, k, h);
#pragma GCC unroll 2
            for (int s = 0; s < wanted; s++) {
                vec wide[NB][H];
#pragma GCC unroll 4
                for (int b = 0; b < NB; b++)
#pragma GCC unroll 4
                    for (int h = 0; h < H; h++) {
                        wide[b][h] = w.widen(raw[b][h], group[b], s, h);
                        if (M > 1) in_register(wide[b][h]);
                    }
#pragma GCC unroll 8
                for (int m = 0; m < M; m++) {
                    const vec column = splat(x[m * stride + k + s]);
#pragma GCC unroll 4
                    for (int b = 0; b < NB; b++)
#pragma GCC unroll 4
                        for (int h = 0; h < H; h++) acc[b][h][m] += wide[b][h] * column;
                }
            }
        }
    };
    long k = k0;
    for (; k + W::LINE <= k1; k += W::LINE) {
#pragma GCC unroll 4
        for (int b = 0; b < NB; b++) {
            __builtin_prefetch(w.at(tile + b, k) + AHEAD);
            group[b] = w.group(tile + b, k);
        }
#pragma GCC unroll 4
        for (int i = 0; i < W::LINE; i += W::STEP) some(k + i, W::STEP);
    }
    for (; k + W::STEP <= k1; k += W::STEP) some(k, W::STEP);
    if (k < k1) some(k, 1);
#pragma GCC unroll 4
    for (int b = 0; b < NB; b++)
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
#pragma GCC unroll 4
            for (int h = 0; h < H; h++) {
                float* sum = part + m * step + b * TILE + h * LANES;
                store(sum, k0 ? load(sum) + acc[b][h][m] : acc[b][h][m]);
            }
}

template <int NB, int M, class W>
void block(const W& w, long tile, long k0, long k1, const typename W::X* x, long stride, float* part, long step) {
    for (long k = k0; k < k1; k += CHAIN)
        chain<NB, M>(w, tile, k, std::min(k + CHAIN, k1), x, stride, part, step);
}

template <class W>
using Block = void (*)(const W&, long, long, long, const typename W::X*, long, float*, long);

template <class W, int M>
Block<W> block_of(long tiles) {  // M rows stand beside passes of M or of M + 1 rows, whose tiles they share
    if (tiles == 1) return block<1, M, W>;
    return tiles == tiles_of<W>(M) ? block<tiles_of<W>(M), M, W> : block<tiles_of<W>(M + 1), M, W>;
}

template <class W>
Block<W> block_of(long rows, long tiles) {
    switch (rows) {
        case 1: return block_of<W, 1>(tiles);
        case 2: return block_of<W, 2>(tiles);
#if defined(__AVX__)
        case 3: return block_of<W, 3>(tiles);
        case 4: return block_of<W, 4>(tiles);
        case 5: return block_of<W, 5>(tiles);
#endif
#if defined(__AVX512F__)
        case 6: return block_of<W, 6>(tiles);
        case 7: return block_of<W, 7>(tiles);
#endif
        default: return block_of<W, ROWS>(tiles);
    }
}

// Rows in passes of equal length, or one less.
struct Passes {
    long count, most, longer;  // the first `longer` passes have `most` rows
    explicit Passes(long rows)
        : count((rows + ROWS - 1) / ROWS), most((rows + count - 1) / count), longer(rows - count * (most - 1)) {}

    template <class W>
    void over(
        const W& w, long tile, long tiles, long k0, long k1, const typename W::X* x, long stride, float* part,
        long step) const {
        const Block<W> full = block_of<W>(most, tiles), less = block_of<W>(std::max(most - 1, 1L), tiles);
        for (long pass = 0; pass < count; pass++) {
            const long rows = most - (pass >= longer);
            (pass < longer ? full : less)(w, tile, k0, k1, x, stride, part, step);
            x += rows * stride;
            part += rows * step;
        }
    }
};

// Where results go: `out` [rows, outputs] float32 or, with `narrow`, bfloat16. `add` or `add_narrow`, of the same shape,
// is added; either may be null.
struct Ends {
    void* out;
    const float* add;
    const bf16* add_narrow;
    bool narrow;

    Ends after(long numbers) const {
        void* rest = narrow ? (void*)((bf16*)out + numbers) : (void*)((float*)out + numbers);
        return {rest, add ? add + numbers : nullptr, add_narrow ? add_narrow + numbers : nullptr, narrow};
    }
};

inline Ends ends_of(float* out, const float* add) { return {out, add, nullptr, false}; }
inline Ends ends_of(float* out, const bf16* add) { return {out, nullptr, add, false}; }

// One tile group of all rows; `part` holds rows x tiles x TILE floats.
inline void finish(const Matrix& m, long tile, long tiles, const float* part, long rows, const Ends& ends) {
    const long from = tile * TILE, to = std::min((tile + tiles) * TILE, m.outputs), step = tiles * TILE;
    const bool scaled = m.kind == INT8;
    for (long row = 0; row < rows; row++) {
        const float* sums = part + row * step - from;
        const long at = row * m.outputs;
        auto one = [&](long n) {
            float total = sums[n];
            if (scaled) total *= m.scale[n];
            if (m.bias) total += m.bias[n];
            if (ends.add) total += ends.add[at + n];
            if (ends.add_narrow) total += to_float(ends.add_narrow[at + n]);
            return total;
        };
        long n = from;
        if (!ends.narrow)
            for (; n + LANES <= to; n += LANES) {
                vec total = load(sums + n);
                if (scaled) total *= load(m.scale + n);
                if (m.bias) total += load(m.bias + n);
                if (ends.add) total += load(ends.add + at + n);
                if (ends.add_narrow) total += load(ends.add_narrow + at + n);
                store((float*)ends.out + at + n, total);
            }
        for (; n < to; n++)
            if (ends.narrow) put((bf16*)ends.out + at + n, one(n));
            else ((float*)ends.out)[at + n] = one(n);
    }
}

// Inputs k0 .. k1 of some tiles as floats, tile after tile at a distance of BLOCK inputs.
template <class W>
void widen(const W& w, long tile, long tiles, long k0, long k1, float* to) {
    for (long b = 0; b < tiles; b++)
        for (long k = k0; k < k1; k += W::STEP)
            for (int h = 0; h < H; h++) {
                const auto raw = w.read(tile + b, k, h);
                for (int s = 0; s < W::STEP; s++)
                    store(to + (b * BLOCK + k - k0 + s) * TILE + h * LANES, w.widen(raw, w.group(tile + b, k), s, h));
            }
}

template <class W>
void multiply_few(const W& w, const Matrix& m, const typename W::X* x, long rows, const Ends& ends, const Team& team) {
    const Passes passes(rows);
    constexpr bool may_widen = !std::is_same_v<W, Floats> && std::is_same_v<typename W::X, float>;
    const bool widens = may_widen && passes.count > W::DIRECT;
    const auto [first, last] = team.share((m.outputs + TILE - 1) / TILE);
    thread_local std::vector<float> part, wide(4 * BLOCK * TILE);
    part.resize(std::max<size_t>(part.size(), rows * 4 * TILE));
    const long together = widens ? tiles_of<Floats>(passes.most) : tiles_of<W>(passes.most);
    for (long tile = first, tiles; tile < last; tile += tiles) {
        tiles = tile + together <= last ? together : 1;
        for (long k = 0; k < m.inputs; k += BLOCK) {
            const long end = std::min(k + BLOCK, m.inputs);
            if (widens) {
                widen(w, tile, tiles, k, end, wide.data());
                const Floats floats{wide.data() - k * TILE, BLOCK};  // its input k is the first of the block
                if constexpr (may_widen) passes.over(floats, 0, tiles, k, end, x, m.inputs, part.data(), tiles * TILE);
            } else {
                passes.over(w, tile, tiles, k, end, x, m.inputs, part.data(), tiles * TILE);
            }
        }
        finish(m, tile, tiles, part.data(), rows, ends);
    }
}

// This thread's part of the outputs. x [rows, inputs] contiguous. The results are in `ends.out` after a barrier.
template <class W>
void multiply(const W& w, const Matrix& m, const typename W::X* x, long rows, const Ends& ends, const Team& team) {
    const long parts = (rows + MOST_ROWS - 1) / MOST_ROWS;
    for (long part = 0; part < parts; part++) {
        const long from = rows * part / parts, to = rows * (part + 1) / parts;
        multiply_few(w, m, x + from * m.inputs, to - from, ends.after(from * m.outputs), team);
    }
}

inline void multiply(const Matrix& m, const float* x, long rows, const Ends& ends, const Team& team) {
    if (m.kind == FLOAT32) multiply(Floats{(const float*)m.weight, m.inputs}, m, x, rows, ends, team);
    else if (m.kind == INT8) multiply(Bytes{(const int8_t*)m.weight, m.inputs}, m, x, rows, ends, team);
    else if (m.kind == INT4) multiply(Nibbles{(const uint8_t*)m.weight, m.scale, m.inputs}, m, x, rows, ends, team);
    else multiply(Halves{(const bf16*)m.weight, (m.inputs + 1) / 2 * 2}, m, x, rows, ends, team);
}

// Only for bfloat16 weights, where the processor multiplies bfloat16.
inline void multiply(
    [[maybe_unused]] const Matrix& m, [[maybe_unused]] const bf16* x, [[maybe_unused]] long rows,
    [[maybe_unused]] const Ends& ends, [[maybe_unused]] const Team& team) {
#if defined(__AVX512BF16__)
    multiply(Pairs{{(const bf16*)m.weight, (m.inputs + 1) / 2 * 2}}, m, x, rows, ends, team);
#endif
}

#if defined(__AVX512BF16__)
constexpr bool MULTIPLIES_BF16 = true;
#else
constexpr bool MULTIPLIES_BF16 = false;
#endif
