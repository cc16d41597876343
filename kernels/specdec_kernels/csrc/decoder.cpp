// The element-wise parts of a decoder layer, each one pass, computed in float32 and rounded once.

#include <omp.h>

#include <algorithm>

#include "vec.h"

namespace {

constexpr long WORTH_THREADS = 1 << 16;  // elements; below this number, threads cost more than they save

template <class T>
void rms_norm(const T* x, const T* weight, T* y, long rows, long size, float eps, float offset, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * size >= WORTH_THREADS)
    for (long row = 0; row < rows; row++) {
        const T* from = x + row * size;
        T* to = y + row * size;
        vec squares{};
        long i = 0;
        for (; i + LANES <= size; i += LANES) squares += load(from + i) * load(from + i);
        float total = sum(squares);
        for (long j = i; j < size; j++) total += to_float(from[j]) * to_float(from[j]);
        const float scale = 1.0f / std::sqrt(total / size + eps);
        for (i = 0; i + LANES <= size; i += LANES) store(to + i, load(from + i) * scale * (load(weight + i) + offset));
        for (; i < size; i++) put(to + i, to_float(from[i]) * scale * (to_float(weight[i]) + offset));
    }
}

// One tensor [B, heads, W, d] with strides in, contiguous out; cos and sin [B, W, d] with their own row stride.
template <class T>
void rotate(
    const T* x, const T* cos, const T* sin, T* y, long batch, long heads, long width, long size, const long* stride,
    long turn_stride) {
    const long half = size / 2;
    for (long b = 0; b < batch; b++)
        for (long h = 0; h < heads; h++)
            for (long w = 0; w < width; w++) {
                const T* from = x + b * stride[0] + h * stride[1] + w * stride[2];
                const T *c = cos + b * turn_stride + w * size, *s = sin + b * turn_stride + w * size;
                T* to = y + ((b * heads + h) * width + w) * size;
                long i = 0;
                for (; i + LANES <= half; i += LANES) {
                    const vec first = load(from + i), second = load(from + half + i);
                    store(to + i, first * load(c + i) - second * load(s + i));
                    store(to + half + i, second * load(c + half + i) + first * load(s + half + i));
                }
                for (; i < half; i++) {
                    const float first = to_float(from[i]), second = to_float(from[half + i]);
                    put(to + i, first * to_float(c[i]) - second * to_float(s[i]));
                    put(to + half + i, second * to_float(c[half + i]) + first * to_float(s[half + i]));
                }
            }
}

template <class T>
void silu_mul(const T* gate, const T* up, T* y, long rows, long size, long gate_stride, long up_stride, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * size >= WORTH_THREADS)
    for (long row = 0; row < rows; row++) {
        const T *g = gate + row * gate_stride, *u = up + row * up_stride;
        T* to = y + row * size;
        long i = 0;
        for (; i + LANES <= size; i += LANES) {
            const vec x = load(g + i);
            store(to + i, x / (1.0f + exp(-x)) * load(u + i));
        }
        for (; i < size; i++) {
            const float x = to_float(g[i]);
            put(to + i, x / (1.0f + std::exp(-x)) * to_float(u[i]));
        }
    }
}

}  // namespace

#define BOTH(call_float, call_bf16) \
    if (narrow) call_bf16;          \
    else call_float

extern "C" void specdec_rms_norm(
    int narrow, const void* x, const void* weight, void* y, long rows, long size, float eps, float offset,
    int threads) {
    BOTH(rms_norm((const float*)x, (const float*)weight, (float*)y, rows, size, eps, offset, threads),
         rms_norm((const bf16*)x, (const bf16*)weight, (bf16*)y, rows, size, eps, offset, threads));
}

// Strides are of the batch, head and slot.
extern "C" void specdec_rotary(
    int narrow, const void* query, const void* keys, const void* cos, const void* sin, void* out_query, void* out_keys,
    long batch, long heads, long heads_kv, long width, long size, long query_batch, long query_head, long query_slot,
    long keys_batch, long keys_head, long keys_slot, long turn_stride) {
    const long stride[6] = {query_batch, query_head, query_slot, keys_batch, keys_head, keys_slot};
    BOTH((rotate((const float*)query, (const float*)cos, (const float*)sin, (float*)out_query, batch, heads, width,
                 size, stride, turn_stride),
          rotate((const float*)keys, (const float*)cos, (const float*)sin, (float*)out_keys, batch, heads_kv, width,
                 size, stride + 3, turn_stride)),
         (rotate((const bf16*)query, (const bf16*)cos, (const bf16*)sin, (bf16*)out_query, batch, heads, width, size,
                 stride, turn_stride),
          rotate((const bf16*)keys, (const bf16*)cos, (const bf16*)sin, (bf16*)out_keys, batch, heads_kv, width, size,
                 stride + 3, turn_stride)));
}

extern "C" void specdec_silu_mul(
    int narrow, const void* gate, const void* up, void* y, long rows, long size, long gate_stride, long up_stride,
    int threads) {
    BOTH(silu_mul((const float*)gate, (const float*)up, (float*)y, rows, size, gate_stride, up_stride, threads),
         silu_mul((const bf16*)gate, (const bf16*)up, (bf16*)y, rows, size, gate_stride, up_stride, threads));
}
