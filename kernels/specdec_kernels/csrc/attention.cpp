// Attention of a few slots over the arena: grouped queries read each key and value once per group of QUERIES.

#include <omp.h>

#include <algorithm>
#include <vector>

#include "vec.h"

namespace {

constexpr int QUERIES = 4;
constexpr long WORTH_THREADS = 1 << 15;  // multiplications; below this number, threads cost more than they save

template <class T>
struct Call {
    const T *query, *keys, *values, *mask;
    T* out;
    long batch, heads, heads_kv, width, length, size;
    const long* stride;  // batch, head, slot of query; batch, head, cell of keys, then values; batch, slot of mask
    float scaling, softcap;

    const T* query_at(long b, long h, long w) const {
        return query + b * stride[0] + h * stride[1] + w * stride[2];
    }
    const T* keys_at(long b, long h) const { return keys + b * stride[3] + h * stride[4]; }
    const T* values_at(long b, long h) const { return values + b * stride[6] + h * stride[7]; }
    const T* mask_at(long b, long w) const { return mask + b * stride[9] + w * stride[10]; }
};

template <class T>
inline float dot(const float* a, const T* b, long size) {
    float out = 0;
    for (long i = 0; i < size; i++) out += a[i] * to_float(b[i]);
    return out;
}

inline float capped(float score, float softcap) { return softcap > 0 ? softcap * std::tanh(score / softcap) : score; }

// Scores of one query over all cells; a masked cell gets -inf for any content. A key has V vectors; V = 0: any size.
template <int V, class T>
void score(const Call<T>& c, const float* query, const T* mask, const T* keys, float* out) {
    const long stride = c.stride[5], whole = V ? c.length / LANES * LANES : 0;
    vec part[V ? V : 1];
    for (int i = 0; i < V; i++) part[i] = load(query + i * LANES);
    for (long cell = 0; cell < whole; cell += LANES) {
        vec partial[LANES];
        const T* key = keys + cell * stride;
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++) {
            partial[j] = part[0] * load(key + j * stride);
#pragma GCC unroll 16
            for (int i = 1; i < V; i++) partial[j] += part[i] * load(key + j * stride + i * LANES);
        }
        vec total = sums(partial);
        if (c.softcap > 0)
            for (int j = 0; j < LANES; j++) total[j] = capped(total[j], c.softcap);
        const vec bias = load(mask + cell);
        store(out + cell, select(bias == -INFINITY, bias, total + bias));
    }
    for (long cell = whole; cell < c.length; cell++) {
        const float bias = to_float(mask[cell]);
        const float total = capped(dot(query, keys + cell * stride, c.size), c.softcap);
        out[cell] = bias == -INFINITY ? bias : total + bias;
    }
}

// out[q] = sum over cells of weights[q][cell] * value, for up to QUERIES queries; D vectors of a value at a time.
template <int D, class T>
void weigh(const Call<T>& c, const T* values, const float* weights, long count, float* out) {
    const long stride = c.stride[8];
    long from = 0;
    for (; from + D * LANES <= c.size; from += D * LANES) {
        vec acc[QUERIES][D] = {};
        for (long cell = 0; cell < c.length; cell++) {
            float weight[QUERIES], any = 0;
            for (int q = 0; q < QUERIES; q++) any += weight[q] = weights[q * c.length + cell];
            if (any == 0) continue;  // no query sees this cell, so its value is not read
            const T* value = values + cell * stride + from;
#pragma GCC unroll 4
            for (int d = 0; d < D; d++) {
                const vec column = load(value + d * LANES);
#pragma GCC unroll 4
                for (int q = 0; q < QUERIES; q++) acc[q][d] += column * weight[q];
            }
        }
        for (long q = 0; q < count; q++)
            for (int d = 0; d < D; d++) store(out + q * c.size + from + d * LANES, acc[q][d]);
    }
    if (D > 1 && from < c.size) return weigh<1>(c, values, weights, count, out);
    for (long i = from; i < c.size; i++)
        for (long q = 0; q < count; q++) {
            float total = 0;
            for (long cell = 0; cell < c.length; cell++)
                if (weights[q * c.length + cell] != 0)
                    total += weights[q * c.length + cell] * to_float(values[cell * stride + i]);
            out[q * c.size + i] = total;
        }
}

// In place: scores become weights; returns their sum. Cells with score -inf, which are not seen, get weight 0.
inline float softmax(float* score, long length) {
    float top = -INFINITY;
    for (long i = 0; i < length; i++) top = std::max(top, score[i]);
    vec totals{};
    long i = 0;
    for (; i + LANES <= length; i += LANES) {
        const vec weight = exp(load(score + i) - top);
        store(score + i, weight);
        totals += weight;
    }
    float total = sum(totals);
    for (; i < length; i++) total += score[i] = score[i] == -INFINITY ? 0.0f : std::exp(score[i] - top);
    return total;
}

// Queries [first, first + count) of one key head; query number g * width + w is slot w of the group's head g.
template <class T>
void attend(const Call<T>& c, long b, long kv, long first, long count, float* scratch) {
    const long group = c.heads / c.heads_kv;
    float *query = scratch, *scores = query + QUERIES * c.size, *out = scores + QUERIES * c.length;
    const T* mask[QUERIES];
    for (long q = 0; q < count; q++) {
        const long head = kv * group + (first + q) / c.width, slot = (first + q) % c.width;
        const T* from = c.query_at(b, head, slot);
        for (long i = 0; i < c.size; i++) query[q * c.size + i] = to_float(from[i]) * c.scaling;
        mask[q] = c.mask_at(b, slot);
    }
    std::fill(scores, scores + QUERIES * c.length, 0.0f);  // weight 0 for queries that the last block lacks
    for (long q = 0; q < count; q++) {
        float* row = scores + q * c.length;
        const float* from = query + q * c.size;
        switch (c.size % LANES ? 0 : c.size / LANES) {
            case 1: score<1>(c, from, mask[q], c.keys_at(b, kv), row); break;
            case 2: score<2>(c, from, mask[q], c.keys_at(b, kv), row); break;
            case 4: score<4>(c, from, mask[q], c.keys_at(b, kv), row); break;
            case 8: score<8>(c, from, mask[q], c.keys_at(b, kv), row); break;
            case 16: score<16>(c, from, mask[q], c.keys_at(b, kv), row); break;
            default: score<0>(c, from, mask[q], c.keys_at(b, kv), row);
        }
        const float inverse = 1.0f / softmax(row, c.length);
        for (long i = 0; i < c.length; i++) row[i] *= inverse;
    }
    weigh<LANES == 16 ? 4 : 2>(c, c.values_at(b, kv), scores, count, out);
    for (long q = 0; q < count; q++) {
        const long head = kv * group + (first + q) / c.width, slot = (first + q) % c.width;
        T* to = c.out + ((b * c.width + slot) * c.heads + head) * c.size;
        for (long i = 0; i < c.size; i++) put(to + i, out[q * c.size + i]);
    }
}

template <class T>
void all(const Call<T>& c, int threads) {
    const long queries = c.heads / c.heads_kv * c.width;
    const long blocks = (queries + QUERIES - 1) / QUERIES, tasks = c.batch * c.heads_kv * blocks;
    const bool many = c.batch * c.heads * c.width * c.length * c.size >= WORTH_THREADS;
#pragma omp parallel num_threads(threads) if (many && tasks > 1)
    {
        std::vector<float> scratch(QUERIES * (2 * c.size + c.length));
#pragma omp for schedule(dynamic)
        for (long task = 0; task < tasks; task++) {
            const long first = task % blocks * QUERIES, row = task / blocks;
            attend(c, row / c.heads_kv, row % c.heads_kv, first, std::min<long>(QUERIES, queries - first),
                   scratch.data());
        }
    }
}

}  // namespace

// out [B, W, heads, d] contiguous; softcap 0 is off.
extern "C" void specdec_tree_attention(
    int narrow, const void* query, const void* keys, const void* values, const void* mask, void* out, long batch,
    long heads, long heads_kv, long width, long length, long size, long query_batch, long query_head, long query_slot,
    long keys_batch, long keys_head, long keys_cell, long values_batch, long values_head, long values_cell,
    long mask_batch, long mask_slot, float scaling, float softcap, int threads) {
    const long stride[11] = {query_batch, query_head, query_slot, keys_batch, keys_head, keys_cell,
                             values_batch, values_head, values_cell, mask_batch, mask_slot};
    if (narrow)
        all(Call<bf16>{(const bf16*)query, (const bf16*)keys, (const bf16*)values, (const bf16*)mask, (bf16*)out, batch,
                       heads, heads_kv, width, length, size, stride, scaling, softcap},
            threads);
    else
        all(Call<float>{(const float*)query, (const float*)keys, (const float*)values, (const float*)mask, (float*)out,
                        batch, heads, heads_kv, width, length, size, stride, scaling, softcap},
            threads);
}
