// Attention of a few slots over the arena. Queries of one key head share each read of its cells, which are cut into pieces
// at fixed places. Of a piece: the scores; weights, relative to the greatest score of the piece; the sum of weights times
// values. Pieces are added up in their order, whichever threads they had. A query's sums have the same order beside any
// other queries, and cells that it does not see add nothing: its result does not depend on the width of its window.
#pragma once

#include <tuple>

#include "packed.h"

constexpr long PIECE = 256;                // cells
constexpr long APART = PIECE + 16;         // from one query's scores to the next one's: a power of two would share sets of L1
constexpr long MOST = 24;                  // queries that share one read of the cells from memory
constexpr int FEW = LANES == 16 ? 6 : 3;   // queries that share a register's cell: 4 x FEW sums fill the registers

inline long whole_vectors(long size) { return (size + LANES - 1) / LANES * LANES; }

// What some queries see of some cells: of each the greatest score, the sum of its weights relative to that, and the sum of
// values times these weights, in whole vectors.
struct Seen {
    float *top, *total, *sums;
    long count, wide;

    static long numbers(long count, long wide) { return count * (2 + wide); }

    Seen(float* at, long count, long wide)
        : top(at), total(at + count), sums(at + 2 * count), count(count), wide(wide) {}

    void clear() const {
        std::fill(top, top + count, -INFINITY);
        std::fill(total, total + count * (1 + wide), 0.0f);
    }

    __attribute__((noinline)) void add(const Seen& more) const {  // inlined, each place might round in its own way
        for (long q = 0; q < count; q++) {
            if (more.total[q] == 0) continue;  // it sees none of these cells
            const float highest = std::max(top[q], more.top[q]);
            const float mine = std::exp(top[q] - highest), its = std::exp(more.top[q] - highest);
            top[q] = highest;
            total[q] = total[q] * mine + more.total[q] * its;
            for (long i = q * wide; i < (q + 1) * wide; i += LANES)
                store(sums + i, load(sums + i) * mine + load(more.sums + i) * its);
        }
    }
};

// How attention is cut into tasks: the queries of each head into blocks, and, if threads would be idle otherwise, each
// block's cells into pieces.
struct Cut {
    long heads, blocks, pieces, each;  // `each`: the most queries of a block
    bool split;                        // pieces are tasks

    Cut(long heads, long queries, long length, int threads)
        : heads(heads), blocks((queries + MOST - 1) / MOST), pieces((length + PIECE - 1) / PIECE) {
        auto uneven = [&](long tasks, long enough) { return tasks % threads && tasks < enough * threads; };
        while (uneven(heads * blocks * pieces, 4) && blocks < queries) blocks++;
        split = pieces > 1 && uneven(heads * blocks, 8);
        each = (queries + blocks - 1) / blocks;
    }

    long shared(long size) const {
        return split ? heads * blocks * pieces * Seen::numbers(each, whole_vectors(size)) : 0;
    }
};

template <class Q, class T, class O>
struct Attention {
    const Q* query;
    const T *keys, *values, *mask;
    O* out;  // [batch, width, heads, size] contiguous
    long batch, heads, heads_kv, width, length, size;
    const long* stride;  // batch, head, slot of query; batch, head, cell of keys, then values; batch, slot of mask
    float scaling, softcap;
    float* shared;  // `Cut::shared` numbers, for all threads
    const T* sinks = nullptr;  // of each head the score of a cell without a value, if there are any
    const long* first = nullptr;  // where query and out are [slots, heads, size]: of each row its first slot, then all

    long wide() const { return whole_vectors(size); }
    long slots(long b) const { return first ? first[b + 1] - first[b] : width; }
    long out_slot(long b) const { return first ? first[b] : b * width; }
    const Q* query_of(long b) const { return query + (first ? first[b] * stride[2] : b * stride[0]); }
    Cut cut(int threads) const { return {batch * heads_kv, heads / heads_kv * width, length, threads}; }
};

// Scores of M queries, [M, wide], over some cells, four at a time; up to three numbers behind the last one are written.
template <int M, class T>
inline void score(const T* keys, long stride, long cells, const float* query, long wide, float* scores) {
    for (long cell = 0; cell < cells; cell += 4) {
        const T* key[4];
        for (int j = 0; j < 4; j++) key[j] = keys + std::min(cell + j, cells - 1) * stride;
        vec acc[4][M] = {};
        for (long i = 0; i < wide; i += LANES) {
            vec of[M];
#pragma GCC unroll 6
            for (int m = 0; m < M; m++) {
                of[m] = load(query + m * wide + i);
                in_register(of[m]);
            }
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                vec x = load(key[j] + i);
                if (M > 1) in_register(x);
#pragma GCC unroll 6
                for (int m = 0; m < M; m++) acc[j][m] = fused(x, of[m], acc[j][m]);
            }
        }
#pragma GCC unroll 6
        for (int m = 0; m < M; m++) {
            const four sums = sums_of(acc[0][m], acc[1][m], acc[2][m], acc[3][m]);
            memcpy(scores + m * APART + cell, &sums, sizeof sums);
        }
    }
}

// N vectors of the values of some cells times the weights of M queries, added to what there is unless it is the first.
template <int N, int M, class T>
inline void weighted(
    const T* values, long stride, long cells, const float* weights, float* sums, long wide, bool first) {
    vec acc[N][M] = {};
    for (long cell = 0; cell < cells; cell++) {
        vec of[M];
#pragma GCC unroll 6
        for (int m = 0; m < M; m++) of[m] = splat(weights[m * APART + cell]);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            vec x = load(values + cell * stride + n * LANES);
            if (M > 1) in_register(x);
#pragma GCC unroll 6
            for (int m = 0; m < M; m++) acc[n][m] = fused(x, of[m], acc[n][m]);
        }
    }
#pragma GCC unroll 6
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            float* sum = sums + m * wide + n * LANES;
            store(sum, first ? acc[n][m] : load(sum) + acc[n][m]);
        }
}

template <int M, class T>
inline void weighted(
    const T* values, long stride, long cells, const float* weights, float* sums, long wide, bool first) {
    long i = 0;
    for (; i + 4 * LANES <= wide; i += 4 * LANES)
        weighted<4, M>(values + i, stride, cells, weights, sums + i, wide, first);
    for (; i < wide; i += LANES) weighted<1, M>(values + i, stride, cells, weights, sums + i, wide, first);
}

// Calls work(M, q) for groups of M queries, up to FEW, from query q on; M is a constant of the compiler.
template <int M, class F>
inline void in_group(long rows, long q, const F& work) {
    if constexpr (M > 1)
        if (rows < M) return in_group<M - 1>(rows, q, work);
    work(std::integral_constant<int, M>{}, q);
}

template <class F>
inline void in_groups(long count, const F& work) {
    for (long groups = (count + FEW - 1) / FEW, q = 0; groups; groups--) {
        const long rows = (count - q + groups - 1) / groups;
        in_group<FEW>(rows, q, work);
        q += rows;
    }
}

// In place: scores, in whole vectors, become weights relative to the greatest, which is returned with their sum. Cells with
// score -inf get weight 0.
inline std::pair<float, float> weigh(float* score, long length) {
    vec tops = splat(-INFINITY), totals{};
    for (long i = 0; i < length; i += LANES) {
        const vec x = load(score + i);
        tops = select(x > tops, x, tops);
    }
    float top = tops[0];
    for (int i = 1; i < LANES; i++) top = std::max(top, tops[i]);
    const float zero = top == -INFINITY ? 0.0f : top;
    for (long i = 0; i < length; i += LANES) {
        const vec weight = exp(load(score + i) - zero);
        store(score + i, weight);
        totals += weight;
    }
    return {top, sum(totals)};
}

// Some queries of one key head; query number g * slots + w of a head is slot w of the group's head g.
template <class Q, class T, class O>
struct Queries {
    const Attention<Q, T, O>& c;
    const long wide;
    long b, kv, slots, first, count;
    float *query, *scores, *floats;  // memory

    static long numbers(long count, long wide) { return count * (wide + APART) + CHAIN * wide; }

    Queries(const Attention<Q, T, O>& c, const Cut& cut, long task, float* memory)
        : c(c), wide(c.wide()), b(task / cut.blocks / c.heads_kv), kv(task / cut.blocks % c.heads_kv), slots(c.slots(b)) {
        const long queries = c.heads / c.heads_kv * slots, block = task % cut.blocks;
        const long blocks = queries > cut.each ? cut.blocks : 1;  // a row with few slots needs no more than one
        first = queries * std::min(block, blocks) / blocks;
        count = queries * std::min(block + 1, blocks) / blocks - first;
        query = memory, scores = query + count * wide, floats = scores + count * APART;
        for (long q = 0; q < count; q++) {
            const Q* from = c.query_of(b) + head(q) * c.stride[1] + slot(q) * c.stride[2];
            for (long i = 0; i < wide; i++) query[q * wide + i] = i < c.size ? to_float(from[i]) * c.scaling : 0.0f;
        }
    }

    long head(long q) const { return kv * (c.heads / c.heads_kv) + (first + q) / slots; }
    long slot(long q) const { return (first + q) % slots; }
    const T* mask(long q) const { return c.mask + b * c.stride[9] + slot(q) * c.stride[10]; }

    // The cells of [from, to) that some query sees, with all before them in their chain; none if the first is the last.
    std::pair<long, long> visible(long from, long to) const {
        long begin = to, end = from;
        for (long q = 0; q < std::min(count, slots); q++) {
            const T* row = mask(q);
            for (long i = from; i < begin; i++)
                if (to_float(row[i]) != -INFINITY) begin = i;
            for (long i = to; i > end; i--)
                if (to_float(row[i - 1]) != -INFINITY) end = i;
        }
        return {from + (begin - from) / CHAIN * CHAIN, end};
    }

    // Calls work(rows, stride, q, M, first cell, cells) for each chain of keys or values and each group of queries. Rows
    // are copied as floats in whole vectors if they are not, or if several groups would widen each of them.
    template <class F>
    void each_chain(const T* from, long stride, long cells, const F& work) const {
        const bool direct = c.size == wide && (std::is_same_v<T, float> || count <= FEW);
        for (long cell = 0; cell < cells; cell += CHAIN) {
            const T* rows = from + cell * stride;
            const long some = std::min(CHAIN, cells - cell);
            if (!direct)
                for (long j = 0; j < some; j++)
                    for (long i = 0; i < wide; i++) floats[j * wide + i] = i < c.size ? to_float(rows[j * stride + i]) : 0;
            in_groups(count, [&](auto m, long q) {
                if (direct) work(rows, stride, m, q, cell, some);
                else work((const float*)floats, wide, m, q, cell, some);
            });
        }
    }

    // What they see of a piece.
    void look(long piece, const Seen& seen) const {
        const auto [from, to] = visible(piece * PIECE, std::min((piece + 1) * PIECE, c.length));
        if (from >= to) return seen.clear();
        const long cells = to - from, key = c.stride[5], value = c.stride[8];
        each_chain(
            c.keys + b * c.stride[3] + kv * c.stride[4] + from * key, key, cells,
            [&](auto rows, long stride, auto m, long q, long cell, long some) {
                score<m()>(rows, stride, some, query + q * wide, wide, scores + q * APART + cell);
            });
        for (long q = 0; q < count; q++) {
            float* row = scores + q * APART;
            add_mask(row, mask(q) + from, cells);
            std::fill(row + cells, row + whole_vectors(cells), -INFINITY);
            std::tie(seen.top[q], seen.total[q]) = weigh(row, whole_vectors(cells));
        }
        each_chain(
            c.values + b * c.stride[6] + kv * c.stride[7] + from * value, value, cells,
            [&](auto rows, long stride, auto m, long q, long cell, long some) {
                const float* weights = scores + q * APART + cell;
                weighted<m()>(rows, stride, some, weights, seen.sums + q * wide, wide, cell == 0);
            });
    }

    void add_mask(float* row, const T* mask, long cells) const {
        long i = 0;
        for (; i + LANES <= cells; i += LANES) {
            vec score = load(row + i);
            if (c.softcap > 0)
                for (int j = 0; j < LANES; j++) score[j] = c.softcap * std::tanh(score[j] / c.softcap);
            const vec bias = load(mask + i);
            store(row + i, select(bias == -INFINITY, bias, score + bias));  // for any content of a masked cell
        }
        for (; i < cells; i++) {
            const float bias = to_float(mask[i]);
            const float score = c.softcap > 0 ? c.softcap * std::tanh(row[i] / c.softcap) : row[i];
            row[i] = bias == -INFINITY ? bias : score + bias;
        }
    }

    void write(const Seen& seen) const {
        for (long q = 0; q < count; q++) {
            O* to = c.out + ((c.out_slot(b) + slot(q)) * c.heads + head(q)) * c.size;
            const float sink = c.sinks ? std::exp(to_float(c.sinks[head(q)]) - seen.top[q]) : 0.0f;
            const float share = 1.0f / (seen.total[q] + sink);
            for (long i = 0; i < c.size; i++) put(to + i, seen.sums[q * wide + i] * share);
        }
    }
};

// This thread's part. The results are in `out` after a barrier.
template <class Q, class T, class O>
void attention(const Attention<Q, T, O>& c, const Team& team) {
    const Cut cut = c.cut(team.count);
    const long wide = c.wide(), room = Seen::numbers(cut.each, wide), pieces = cut.pieces;
    thread_local std::vector<float> memory;
    const size_t needed = 2 * room + Queries<Q, T, O>::numbers(cut.each, wide);
    if (memory.size() < needed) memory.resize(needed);
    float *one = memory.data(), *all = one + room, *rest = all + room;
    if (cut.split) {
        const auto [from, to] = team.share(cut.heads * cut.blocks * pieces);
        for (long task = from; task < to; task++) {
            const Queries<Q, T, O> queries(c, cut, task / pieces, rest);
            queries.look(task % pieces, Seen(c.shared + task * room, queries.count, wide));
        }
        team.wait();
    }
    const auto [from, to] = team.share(cut.heads * cut.blocks);
    for (long task = from; task < to; task++) {
        const Queries<Q, T, O> queries(c, cut, task, rest);
        const Seen whole(all, queries.count, wide);
        whole.clear();
        for (long piece = 0; piece < pieces; piece++) {
            const Seen seen(cut.split ? c.shared + (task * pieces + piece) * room : one, queries.count, wide);
            if (!cut.split) queries.look(piece, seen);
            whole.add(seen);
        }
        queries.write(whole);
    }
}
