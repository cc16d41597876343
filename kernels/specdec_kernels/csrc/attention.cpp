// The op tree_attention: see attention.h.

#include "attention.h"

namespace {

constexpr long WORTH_THREADS = 1 << 15;  // multiplications; below this number, threads cost more than they save

template <class T>
void all(Attention<T, T, T> c, int threads) {
    thread_local std::vector<float> shared;
    shared.resize(std::max<size_t>(shared.size(), c.cut(threads).shared(c.size)));
    c.shared = shared.data();
    const bool worth = c.batch * c.heads * c.width * c.length * c.size >= WORTH_THREADS;
    together(threads, worth, [&](const Team& team) { attention(c, team); });
}

}  // namespace

// out [B, W, heads, d] contiguous; softcap 0 is off; sinks [heads] contiguous, or null.
extern "C" void specdec_tree_attention(
    int narrow, const void* query, const void* keys, const void* values, const void* mask, const void* sinks, void* out,
    long batch, long heads, long heads_kv, long width, long length, long size, long query_batch, long query_head, long query_slot,
    long keys_batch, long keys_head, long keys_cell, long values_batch, long values_head, long values_cell,
    long mask_batch, long mask_slot, float scaling, float softcap, int threads) {
    const long stride[11] = {query_batch, query_head, query_slot, keys_batch, keys_head, keys_cell,
                             values_batch, values_head, values_cell, mask_batch, mask_slot};
    if (narrow)
        all(Attention<bf16, bf16, bf16>{(const bf16*)query, (const bf16*)keys, (const bf16*)values, (const bf16*)mask,
                                        (bf16*)out, batch, heads, heads_kv, width, length, size, stride, scaling,
                                        softcap, nullptr, (const bf16*)sinks},
            threads);
    else
        all(Attention<float, float, float>{(const float*)query, (const float*)keys, (const float*)values,
                                           (const float*)mask, (float*)out, batch, heads, heads_kv, width, length, size,
                                           stride, scaling, softcap, nullptr, (const float*)sinks},
            threads);
}
