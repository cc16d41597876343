// Attention of a few slots over the arena, for a part of the queries of one key head, in three steps: scores of 16 cells
// at a time, whose keys are turned into a tile of packed.h; softmax; weights times values, which lie as the tiles of
// packed.h do. A query's sums have the same order beside any other queries, and cells that it does not see add nothing:
// its result does not depend on the width of its window.
#pragma once

#include "packed.h"

template <class Q, class T, class O>
struct Attention {
    const Q* query;
    const T *keys, *values, *mask;
    O* out;  // [batch, width, heads, size] contiguous
    long batch, heads, heads_kv, width, length, size;
    const long* stride;  // batch, head, slot of query; batch, head, cell of keys, then values; batch, slot of mask
    float scaling, softcap;

    long queries() const { return heads / heads_kv * width; }  // of one key head
    long padded() const { return (length + TILE - 1) / TILE * TILE; }
};

// Values of one head as weights: cells are inputs, the numbers of a value are outputs.
template <class T>
struct Values {
    using X = float;
    using Raw = vec;
    static constexpr int STEP = 1, LINE = 1, DIRECT = 1;
    const T* values;
    long stride;
    const char* at(long tile, long k) const { return (const char*)(values + k * stride + tile * TILE); }
    Raw read(long tile, long k, int h) const { return load(values + k * stride + tile * TILE + h * LANES); }
    const float* group(long, long) const { return nullptr; }
    vec widen(Raw raw, const float*, int, int) const { return raw; }
};

// Swaps rows and columns of LANES vectors, stage by stage: blocks of BLOCK lanes change places between two vectors.
template <int BLOCK, bool HIGH, int... I>
inline vec interleaved(vec a, vec b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(
        a, b, ((I / BLOCK % 2 ? LANES : 0) + (I / (2 * BLOCK) * 2 + HIGH) * BLOCK + I % BLOCK)...);
}

template <int BLOCK = 1>
inline void transpose(vec* x) {
    if constexpr (BLOCK < LANES) {
        constexpr auto lanes = std::make_integer_sequence<int, LANES>{};
        for (int i = 0; i < LANES; i++)
            if (!(i & BLOCK)) {
                const vec low = x[i], high = x[i + BLOCK];
                x[i] = interleaved<BLOCK, false>(low, high, lanes);
                x[i + BLOCK] = interleaved<BLOCK, true>(low, high, lanes);
            }
        transpose<2 * BLOCK>(x);
    }
}

// to[i][j] = keys[j][i] for `cells` up to TILE keys; the others are 0.
template <class T>
inline void tile_of_keys(const T* keys, long stride, long cells, long size, float* to) {
    long i = 0;
    if (cells == TILE)
        for (; i + LANES <= size; i += LANES)
            for (int h = 0; h < H; h++) {
                vec x[LANES];
#pragma GCC unroll 16
                for (int j = 0; j < LANES; j++) x[j] = load(keys + (h * LANES + j) * stride + i);
                transpose(x);
#pragma GCC unroll 16
                for (int j = 0; j < LANES; j++) store(to + (i + j) * TILE + h * LANES, x[j]);
            }
    for (; i < size; i++)
        for (long j = 0; j < TILE; j++) to[i * TILE + j] = j < cells ? to_float(keys[j * stride + i]) : 0.0f;
}

// The scores of a few queries over LANES cells: the sums of `block` over a tile of keys, without the tile in memory.
template <int M, class T>
inline void score_few(const T* keys, long stride, long size, const float* query, float* scores, long padded) {
    vec acc[M] = {};
    for (long i = 0; i < size; i += LANES) {
        if (i && i % CHAIN == 0)
            for (int m = 0; m < M; m++) {
                float* sum = scores + m * padded;
                store(sum, i > CHAIN ? load(sum) + acc[m] : acc[m]);
                acc[m] = vec{};
            }
        vec x[LANES];
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++) x[j] = load(keys + j * stride + i);
        transpose(x);
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++)
#pragma GCC unroll 8
            for (int m = 0; m < M; m++) acc[m] += x[j] * splat(query[m * size + i + j]);
    }
    for (int m = 0; m < M; m++) {
        float* sum = scores + m * padded;
        store(sum, size > CHAIN ? load(sum) + acc[m] : acc[m]);
    }
}

template <class T>
inline void score_few(
    const T* keys, long stride, long size, const float* query, float* scores, long padded, long count) {
    switch (count) {
        case 1: return score_few<1>(keys, stride, size, query, scores, padded);
        case 2: return score_few<2>(keys, stride, size, query, scores, padded);
        case 3: return score_few<3>(keys, stride, size, query, scores, padded);
        default: return score_few<4>(keys, stride, size, query, scores, padded);
    }
}

// In place: scores, whose number is a multiple of TILE, become weights. Cells with score -inf get weight 0.
inline void softmax(float* score, long length) {
    vec tops = splat(-INFINITY), totals{};
    for (long i = 0; i < length; i += LANES) {
        const vec x = load(score + i);
        tops = select(x > tops, x, tops);
    }
    float top = tops[0];
    for (int i = 1; i < LANES; i++) top = std::max(top, tops[i]);
    for (long i = 0; i < length; i += LANES) {
        const vec weight = exp(load(score + i) - top);
        store(score + i, weight);
        totals += weight;
    }
    const vec inverse = splat(1.0f / sum(totals));
    for (long i = 0; i < length; i += LANES) store(score + i, load(score + i) * inverse);
}

// Queries [first, first + count) of one key head; query number g * width + w is slot w of the group's head g.
template <class Q, class T, class O>
void attend(const Attention<Q, T, O>& c, long b, long kv, long first, long count, float* scratch) {
    const long group = c.heads / c.heads_kv, padded = c.padded(), tiles = (c.size + TILE - 1) / TILE;
    float *query = scratch, *tile = query + count * c.size, *scores = tile + std::max(c.size, BLOCK) * TILE;
    float* out = scores + count * padded;
    auto head = [&](long q) { return kv * group + (first + q) / c.width; };
    auto slot = [&](long q) { return (first + q) % c.width; };
    for (long q = 0; q < count; q++) {
        const Q* from = c.query + b * c.stride[0] + head(q) * c.stride[1] + slot(q) * c.stride[2];
        for (long i = 0; i < c.size; i++) query[q * c.size + i] = to_float(from[i]) * c.scaling;
    }
    const Passes passes(count);
    const T* keys = c.keys + b * c.stride[3] + kv * c.stride[4];
    constexpr long FEW = 4;
    long cell = 0;
    if (count <= FEW && c.size % LANES == 0)
        for (; cell + LANES <= c.length; cell += LANES)
            score_few(keys + cell * c.stride[5], c.stride[5], c.size, query, scores + cell, padded, count);
    for (cell = cell / TILE * TILE; cell < c.length; cell += TILE) {
        tile_of_keys(keys + cell * c.stride[5], c.stride[5], std::min<long>(TILE, c.length - cell), c.size, tile);
        passes.over(Floats{tile, c.size}, 0, 1, 0, c.size, query, c.size, scores + cell, padded);
    }
    for (long q = 0; q < count; q++) {
        float* row = scores + q * padded;
        const T* mask = c.mask + b * c.stride[9] + slot(q) * c.stride[10];
        long i = 0;
        for (; i + LANES <= c.length; i += LANES) {
            vec score = load(row + i);
            if (c.softcap > 0)
                for (int j = 0; j < LANES; j++) score[j] = c.softcap * std::tanh(score[j] / c.softcap);
            const vec bias = load(mask + i);
            store(row + i, select(bias == -INFINITY, bias, score + bias));  // for any content of a masked cell
        }
        for (; i < c.length; i++) {
            const float bias = to_float(mask[i]);
            const float score = c.softcap > 0 ? c.softcap * std::tanh(row[i] / c.softcap) : row[i];
            row[i] = bias == -INFINITY ? bias : score + bias;
        }
        std::fill(row + c.length, row + padded, -INFINITY);
        softmax(row, padded);
    }
    const T* values = c.values + b * c.stride[6] + kv * c.stride[7];
    for (long t = 0; t < tiles; t++)
        for (long cell = 0; cell < c.length; cell += BLOCK) {
            const long end = std::min(cell + BLOCK, c.length);
            float* to = out + t * count * TILE;
            if ((t + 1) * TILE <= c.size) {
                const Values<T> whole{values, c.stride[8]};
                passes.over(whole, t, 1, cell, end, scores, padded, to, TILE);
                continue;
            }
            for (long i = cell; i < end; i++)  // the last numbers of a value, in a tile with zeros
                for (long j = 0; j < TILE; j++)
                    tile[(i - cell) * TILE + j] =
                        t * TILE + j < c.size ? to_float(values[i * c.stride[8] + t * TILE + j]) : 0.0f;
            passes.over(Floats{tile - cell * TILE, BLOCK}, 0, 1, cell, end, scores, padded, to, TILE);
        }
    for (long q = 0; q < count; q++) {
        O* to = c.out + ((b * c.width + slot(q)) * c.heads + head(q)) * c.size;
        for (long i = 0; i < c.size; i++) put(to + i, out[(i / TILE * count + q) * TILE + i % TILE]);
    }
}

// This thread's part of the queries.
template <class Q, class T, class O>
void attention(const Attention<Q, T, O>& c, const Team& team) {
    constexpr long MOST = 24;  // queries that share one tile of keys
    const long queries = c.queries(), heads = c.batch * c.heads_kv;
    // Blocks of a head's queries: enough for every thread to have as much to do, and none of more than MOST.
    long blocks = (queries + MOST - 1) / MOST;
    while (heads * blocks % team.count && blocks < queries) blocks++;
    const long each = (queries + blocks - 1) / blocks;
    thread_local std::vector<float> scratch;
    const long size = each * (c.size + c.padded() + c.size + TILE) + std::max(c.size, BLOCK) * TILE;
    if (long(scratch.size()) < size) scratch.resize(size);
    const auto [from, to] = team.share(heads * blocks);
    for (long task = from; task < to; task++) {
        const long first = queries * (task % blocks) / blocks, last = queries * (task % blocks + 1) / blocks;
        attend(c, task / blocks / c.heads_kv, task / blocks % c.heads_kv, first, last - first, scratch.data());
    }
}
