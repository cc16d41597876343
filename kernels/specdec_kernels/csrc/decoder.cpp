// The element-wise ops of a decoder layer: see parts.h.

#include "parts.h"
#include "team.h"

namespace {

constexpr long WORTH_THREADS = 1 << 16;  // elements; below this number, threads cost more than they save
constexpr long WORTH_THREADS_SILU = 1 << 13;

template <class T>
void rms_norm(const T* x, const T* weight, T* y, long rows, long size, float eps, float offset, int threads) {
    together(threads, rows * size >= WORTH_THREADS, [&](const Team& team) {
        const auto [from, to] = team.share(rows);
        for (long row = from; row < to; row++)
            rms_norm_row(x + row * size, weight, y + row * size, size, eps, offset);
    });
}

// One tensor [B, heads, W, d] with strides in, contiguous out; cos and sin [B, W, d] with their own row stride.
template <class T>
void turn(
    const T* x, const T* cos, const T* sin, T* y, long batch, long heads, long width, long size, const long* stride,
    long turn_stride) {
    for (long b = 0; b < batch; b++)
        for (long h = 0; h < heads; h++)
            for (long w = 0; w < width; w++) {
                const long at = b * turn_stride + w * size;
                rotate(x + b * stride[0] + h * stride[1] + w * stride[2], cos + at, sin + at,
                       y + ((b * heads + h) * width + w) * size, size);
            }
}

template <class T>
void silu_mul(const T* gate, const T* up, T* y, long rows, long size, long gate_stride, long up_stride, int threads) {
    together(threads, rows * size >= WORTH_THREADS_SILU, [&](const Team& team) {
        const auto [from, to] = team.share(rows);
        for (long row = from; row < to; row++)
            silu_mul_row(gate + row * gate_stride, up + row * up_stride, y + row * size, size);
    });
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
    BOTH((turn((const float*)query, (const float*)cos, (const float*)sin, (float*)out_query, batch, heads, width, size,
               stride, turn_stride),
          turn((const float*)keys, (const float*)cos, (const float*)sin, (float*)out_keys, batch, heads_kv, width, size,
               stride + 3, turn_stride)),
         (turn((const bf16*)query, (const bf16*)cos, (const bf16*)sin, (bf16*)out_query, batch, heads, width, size,
               stride, turn_stride),
          turn((const bf16*)keys, (const bf16*)cos, (const bf16*)sin, (bf16*)out_keys, batch, heads_kv, width, size,
               stride + 3, turn_stride)));
}

extern "C" void specdec_silu_mul(
    int narrow, const void* gate, const void* up, void* y, long rows, long size, long gate_stride, long up_stride,
    int threads) {
    BOTH(silu_mul((const float*)gate, (const float*)up, (float*)y, rows, size, gate_stride, up_stride, threads),
         silu_mul((const bf16*)gate, (const bf16*)up, (bf16*)y, rows, size, gate_stride, up_stride, threads));
}
