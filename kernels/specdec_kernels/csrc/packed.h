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
constexpr bool COPIES = false;           // to widen weights again in each pass is faster than to read a wide copy
#elif defined(__AVX__)
constexpr int ROWS = 6, REGISTERS = 12;  // of 16; one tile is as fast as several
constexpr bool COPIES = true;
#else
constexpr int ROWS = 3, REGISTERS = 12;
constexpr bool COPIES = true;
#endif

enum Kind { FLOAT32, BFLOAT16, INT8, INT4 };

struct Matrix {  // packed; `scale` is null for floats, float32 for INT8, float16 for INT4; bias may be null
    const void *weight, *scale;
    const float* bias;
    long kind, inputs, outputs;
};

// A kind of weights: `STEP` inputs are stored together, `LINE` inputs of a tile are one line of a cache. `read` loads the
// STEP inputs from k on of one vector of outputs, h; `widen` makes floats of input k + s. `at` is where they lie. More than
// DIRECT passes read a copy that was widened once, `wide`, where COPIES. A block of fewer than SUMS vectors of sums works on
// several chains at once; of kinds whose chains lie farther apart memory is then read more slowly.
// The sums of a chain of a GROUPED kind get scale and offset at its end: see Nibbles.
template <class T>
struct Singles {
    using X = float;
    using Raw = vec;
    static constexpr int STEP = 1, LINE = 64 / (TILE * sizeof(T)), IN_CHAIN = CHAIN, SUMS = 1, DIRECT = 8;
    static constexpr bool GROUPED = false;
    const T* weight;
    long inputs;
    const char* at(long tile, long k) const { return (const char*)(weight + (tile * inputs + k) * TILE); }
    Raw read(long tile, long k, int h) const { return load(weight + (tile * inputs + k) * TILE + h * LANES); }
    vec widen(Raw raw, int) const { return raw; }
    Singles<float> wide(const float* copy, long) const { return {copy, BLOCK}; }
};

using Floats = Singles<float>;
using Bytes = Singles<int8_t>;

// Two inputs of an output side by side, as AVX-512's bfloat16 products take them.
struct Halves {
    using X = float;
    using Raw = uvec;
    static constexpr int STEP = 2, LINE = 2, IN_CHAIN = CHAIN, SUMS = 1, DIRECT = 8;
    static constexpr bool GROUPED = false;
    const bf16* weight;
    long inputs;  // even
    const char* at(long tile, long k) const { return (const char*)(weight + (tile * inputs + k) * TILE); }
    Raw read(long tile, long k, int h) const {
        Raw raw;
        memcpy(&raw, weight + (tile * inputs + k) * TILE + h * LANES * 2, sizeof raw);
        return raw;
    }
    vec widen(Raw raw, int s) const { return vec(s ? raw & 0xffff0000u : raw << 16); }
    Floats wide(const float* copy, long) const { return {copy, BLOCK}; }
};

struct WideNibbles;

// Eight inputs of an output in one word, the first in its lowest four bits; w = code * scale + offset, both of a group of
// inputs. A chain is a group: it sums code * x, and then adds that sum * scale + the sum of x * offset. A code stays
// where it is in its word, and so is 16^s times as large: `for_nibbles` makes x as much smaller.
struct Nibbles {
    using X = float;
    using Raw = ivec;
    static constexpr int STEP = 8, LINE = 8, IN_CHAIN = GROUP, SUMS = 4, DIRECT = 3;
    static constexpr bool GROUPED = true;
    const uint8_t* weight;
    const f16* scale;  // [tile][group][2][TILE]: scales, then offsets
    long inputs;
    const char* at(long tile, long k) const { return (const char*)(weight + (tile * inputs + k) / 2 * TILE); }
    Raw read(long tile, long k, int h) const {
        Raw raw;
        memcpy(&raw, weight + (tile * inputs + k) / 2 * TILE + h * LANES * 4, sizeof raw);
        return raw;
    }
    vec widen(Raw raw, int s) const {
        return __builtin_convertvector(s + 1 < STEP ? raw & 15 << 4 * s : ivec(uvec(raw) >> 28), vec);
    }
    const f16* group(long tile, long k) const { return scale + (tile * inputs + k) / GROUP * 2 * TILE; }
    long sum_of_x(long k) const { return inputs + k / GROUP; }
    WideNibbles wide(const float* copy, long tile) const;
};

struct WideNibbles : Floats {
    static constexpr int IN_CHAIN = GROUP;
    static constexpr bool GROUPED = true;
    Nibbles codes;
    long first;  // the tile of `codes` that is tile 0
    WideNibbles(const float* copy, const Nibbles& codes, long first)
        : Floats{copy, BLOCK}, codes(codes), first(first) {}
    const f16* group(long tile, long k) const { return codes.group(first + tile, k); }
    long sum_of_x(long k) const { return codes.sum_of_x(k); }
};

inline WideNibbles Nibbles::wide(const float* copy, long tile) const { return {copy, *this, tile}; }

// x [rows, inputs] as Nibbles multiply it: each row's numbers, divided by 16^s, and then the sum of each group, undivided.
inline const float* for_nibbles(const float* x, long rows, long inputs) {
    static constexpr float DIVIDED[16] = {1, 0x1p-4, 0x1p-8, 0x1p-12, 0x1p-16, 0x1p-20, 0x1p-24, 1,
                                          1, 0x1p-4, 0x1p-8, 0x1p-12, 0x1p-16, 0x1p-20, 0x1p-24, 1};
    thread_local std::vector<float> made;
    const size_t size = rows * (inputs + inputs / GROUP);
    if (made.size() < size) made.resize(size);
    float* to = made.data();
    for (long row = 0; row < rows; row++, x += inputs, to += inputs + inputs / GROUP)
        for (long k = 0; k < inputs; k += GROUP) {
            vec total{};
            for (long i = k; i < k + GROUP; i += LANES) {
                total += load(x + i);
                store(to + i, load(x + i) * load(DIVIDED + i % Nibbles::STEP));
            }
            to[inputs + k / GROUP] = sum(total);
        }
    return made.data();
}

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

// Chains that a block of few rows sums side by side, because in one chain each sum waits for the one before it.
template <class W>
constexpr int chains_of(int tiles, int rows) {
    return std::max(1, W::SUMS / (tiles * H * rows));
}

// y[m, NB tiles] (+)= x[m, k0 .. k1] W^T, C chains at a time; the last one may be shorter if C is 1. `step` is the distance of
// two rows of `part`, which holds whole tiles.
template <int C, int NB, int M, class W>
__attribute__((noinline)) void chains(  // inlined, gcc 12 would spill
    const W& w, long tile, long k0, long k1, const typename W::X* x, long stride, float* part, long step) {
    for (; k0 < k1; k0 += C * W::IN_CHAIN) {
        vec acc[C][NB][H][M] = {};
        auto some = [&](long from, int wanted) __attribute__((always_inline)) {
#if defined(__AVX512BF16__)
            if constexpr (std::is_same_v<typename W::X, bf16>) {
                static_assert(C == 1);
                __m512bh wide[NB];
#pragma GCC unroll 4
                for (int b = 0; b < NB; b++) wide[b] = (__m512bh)_mm512_loadu_si512(w.at(tile + b, from));
#pragma GCC unroll 8
                for (int m = 0; m < M; m++) {
                    int32_t two = 0;
                    memcpy(&two, x + m * stride + from, wanted * sizeof(bf16));
                    const __m512bh column = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 4
                    for (int b = 0; b < NB; b++)
                        acc[0][b][0][m] = (vec)_mm512_dpbf16_ps((__m512)acc[0][b][0][m], wide[b], column);
                }
            } else
#endif
            {
                typename W::Raw raw[C][NB][H];
#pragma GCC unroll 4
                for (int c = 0; c < C; c++)
#pragma GCC unroll 4
                    for (int b = 0; b < NB; b++)
#pragma GCC unroll 4
                        for (int h = 0; h < H; h++) raw[c][b][h] = w.read(tile + b, from + c * W::IN_CHAIN, h);
#pragma GCC unroll 8
                for (int s = 0; s < wanted; s++)
#pragma GCC unroll 4
                    for (int c = 0; c < C; c++) {
                        vec wide[NB][H];
#pragma GCC unroll 4
                        for (int b = 0; b < NB; b++)
#pragma GCC unroll 4
                            for (int h = 0; h < H; h++) {
                                wide[b][h] = w.widen(raw[c][b][h], s);
                                if (M > 1) in_register(wide[b][h]);
                            }
#pragma GCC unroll 8
                        for (int m = 0; m < M; m++) {
                            const vec column = splat(x[m * stride + from + c * W::IN_CHAIN + s]);
#pragma GCC unroll 4
                            for (int b = 0; b < NB; b++)
#pragma GCC unroll 4
                                for (int h = 0; h < H; h++) acc[c][b][h][m] += wide[b][h] * column;
                        }
                    }
            }
        };
        long k = k0;
        const long end = std::min(k0 + W::IN_CHAIN, k1);
        for (; k + W::LINE <= end; k += W::LINE) {
#pragma GCC unroll 4
            for (int c = 0; c < C; c++)
#pragma GCC unroll 4
                for (int b = 0; b < NB; b++) __builtin_prefetch(w.at(tile + b, k + c * W::IN_CHAIN) + AHEAD);
#pragma GCC unroll 4
            for (int i = 0; i < W::LINE; i += W::STEP) some(k + i, W::STEP);
        }
        for (; k + W::STEP <= end; k += W::STEP) some(k, W::STEP);
        if (k < end) some(k, 1);
#pragma GCC unroll 4
        for (int b = 0; b < NB; b++)
#pragma GCC unroll 4
            for (int h = 0; h < H; h++) {
                vec scale[C], offset[C];
                if constexpr (W::GROUPED)
#pragma GCC unroll 4
                    for (int c = 0; c < C; c++) {
                        const f16* group = w.group(tile + b, k0 + c * W::IN_CHAIN) + h * LANES;
                        scale[c] = load(group), offset[c] = load(group + TILE);
                    }
#pragma GCC unroll 8
                for (int m = 0; m < M; m++) {
                    float* sum = part + m * step + b * TILE + h * LANES;
                    vec total = k0 ? load(sum) : vec{};
#pragma GCC unroll 4
                    for (int c = 0; c < C; c++)
                        if constexpr (W::GROUPED) {
                            total += acc[c][b][h][m] * scale[c];
                            total += splat(x[m * stride + w.sum_of_x(k0 + c * W::IN_CHAIN)]) * offset[c];
                        } else total += acc[c][b][h][m];
                    store(sum, total);
                }
            }
    }
}

template <int NB, int M, class W>
void block(const W& w, long tile, long k0, long k1, const typename W::X* x, long stride, float* part, long step) {
    constexpr int C = chains_of<W>(NB, M);
    const long middle = k1 - (k1 - k0) % (C * W::IN_CHAIN);
    if (C > 1) chains<C, NB, M>(w, tile, k0, middle, x, stride, part, step);
    chains<1, NB, M>(w, tile, C > 1 ? middle : k0, k1, x, stride, part, step);
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
    const float* scale = m.kind == INT8 ? (const float*)m.scale : nullptr;
    for (long row = 0; row < rows; row++) {
        const float* sums = part + row * step - from;
        const long at = row * m.outputs;
        auto one = [&](long n) {
            float total = sums[n];
            if (scale) total *= scale[n];
            if (m.bias) total += m.bias[n];
            if (ends.add) total += ends.add[at + n];
            if (ends.add_narrow) total += to_float(ends.add_narrow[at + n]);
            return total;
        };
        long n = from;
        if (!ends.narrow)
            for (; n + LANES <= to; n += LANES) {
                vec total = load(sums + n);
                if (scale) total *= load(scale + n);
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
                    store(to + (b * BLOCK + k - k0 + s) * TILE + h * LANES, w.widen(raw, s));
            }
}

template <class W>
void multiply_few(
    const W& w, const Matrix& m, const typename W::X* x, long stride, long rows, const Ends& ends, const Team& team) {
    const Passes passes(rows);
    constexpr bool may_widen = COPIES && !std::is_same_v<W, Floats> && std::is_same_v<typename W::X, float>;
    const bool widens = may_widen && passes.count > W::DIRECT;
    const auto [first, last] = team.share((m.outputs + TILE - 1) / TILE);
    thread_local std::vector<float> part, wide(4 * BLOCK * TILE);
    part.resize(std::max<size_t>(part.size(), rows * 4 * TILE));
    const long together = widens ? tiles_of<Floats>(passes.most) : tiles_of<W>(passes.most);
    for (long tile = first, tiles; tile < last; tile += tiles) {
        tiles = tile + together <= last ? together : 1;
        const long each = passes.count > 1 ? BLOCK : m.inputs;  // one pass need not stay in the cache
        for (long k = 0; k < m.inputs; k += each) {
            const long end = std::min(k + each, m.inputs);
            if (widens) {
                widen(w, tile, tiles, k, end, wide.data());
                if constexpr (may_widen)  // input k is the first of the copy
                    passes.over(
                        w.wide(wide.data() - k * TILE, tile), 0, tiles, k, end, x, stride, part.data(), tiles * TILE);
            } else {
                passes.over(w, tile, tiles, k, end, x, stride, part.data(), tiles * TILE);
            }
        }
        finish(m, tile, tiles, part.data(), rows, ends);
    }
}

// This thread's part of the outputs. Rows of x are `stride` apart. The results are in `ends.out` after a barrier.
template <class W>
void multiply(
    const W& w, const Matrix& m, const typename W::X* x, long stride, long rows, const Ends& ends, const Team& team) {
    const long parts = (rows + MOST_ROWS - 1) / MOST_ROWS;
    for (long part = 0; part < parts; part++) {
        const long from = rows * part / parts, to = rows * (part + 1) / parts;
        multiply_few(w, m, x + from * stride, stride, to - from, ends.after(from * m.outputs), team);
    }
}

// x [rows, inputs] contiguous.
inline void multiply(const Matrix& m, const float* x, long rows, const Ends& ends, const Team& team) {
    const long n = m.inputs;
    if (m.kind == FLOAT32) multiply(Floats{(const float*)m.weight, n}, m, x, n, rows, ends, team);
    else if (m.kind == INT8) multiply(Bytes{(const int8_t*)m.weight, n}, m, x, n, rows, ends, team);
    else if (m.kind == BFLOAT16) multiply(Halves{(const bf16*)m.weight, (n + 1) / 2 * 2}, m, x, n, rows, ends, team);
    else {
        const Nibbles nibbles{(const uint8_t*)m.weight, (const f16*)m.scale, n};
        multiply(nibbles, m, for_nibbles(x, rows, n), n + n / GROUP, rows, ends, team);
    }
}

// Only for bfloat16 weights, where the processor multiplies bfloat16.
inline void multiply(
    [[maybe_unused]] const Matrix& m, [[maybe_unused]] const bf16* x, [[maybe_unused]] long rows,
    [[maybe_unused]] const Ends& ends, [[maybe_unused]] const Team& team) {
#if defined(__AVX512BF16__)
    multiply(Pairs{{(const bf16*)m.weight, (m.inputs + 1) / 2 * 2}}, m, x, m.inputs, rows, ends, team);
#endif
}

#if defined(__AVX512BF16__)
constexpr bool MULTIPLIES_BF16 = true;
#else
constexpr bool MULTIPLIES_BF16 = false;
#endif
