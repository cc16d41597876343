// A decoder layer of Llama's kind in one call: runs the ops of the other files in order, over reused buffers. This
// saves the cost between the ops: otherwise a forward of 30 layers makes some 300 calls, each call allocates a tensor,
// and the weights that pass through the caches evict the interpreter's data.

#include <cstdint>
#include <vector>

#include "vec.h"

extern "C" {
void specdec_rms_norm(int, const void*, const void*, void*, long, long, float, float, int);
void specdec_linear(
    int, int, const void*, const float*, const float*, const void*, const void*, void*, long, long, long, int);
void specdec_rotary(
    int, const void*, const void*, const void*, const void*, void*, void*, long, long, long, long, long, long, long,
    long, long, long, long, long);
void specdec_silu_mul(int, const void*, const void*, void*, long, long, long, long, int);
void specdec_kv_append(
    void*, void*, void*, void*, const int64_t*, long, long, long, long, long, long, long, long, long, long, long, long,
    long, long, long, long, long);
void specdec_tree_attention(
    int, const void*, const void*, const void*, const void*, void*, long, long, long, long, long, long, long, long,
    long, long, long, long, long, long, long, long, long, float, float, int);
}

struct Matrix {  // as specdec_linear takes it
    const void* weight;
    const float *scale, *offset;
    const void* bias;
    long kind, inputs, outputs;
};

struct Layer {
    Matrix qkv, out, gate_up, down;
    const void *norm_before, *norm_after;
    long narrow, heads, heads_kv, size;
    float eps_before, eps_after, norm_offset, scaling;
};

namespace {

void add(int narrow, const void* a, void* to, long count) {
    for (long i = 0; i < count; i++)
        if (narrow) put((bf16*)to + i, to_float(((const bf16*)a)[i]) + to_float(((bf16*)to)[i]));
        else ((float*)to)[i] += ((const float*)a)[i];
}

}  // namespace

// y = h + mlp(norm(h)) with h = x + attention(norm(x)); in place: the arena's cells. x and y [batch, width, hidden]
// contiguous; cos and sin [batch or 1, width, size] contiguous; keys and values with strides of batch, head and cell.
extern "C" void specdec_decoder_layer(
    const Layer* layer, const void* x, void* y, const void* cos, const void* sin, long turn_stride, void* keys,
    void* values, const int64_t* cells, const void* mask, long batch, long width, long length, long keys_batch,
    long keys_head, long keys_cell, long values_batch, long values_head, long values_cell, long mask_batch,
    long mask_slot, int threads) {
    const Layer& l = *layer;
    const long item = l.narrow ? 2 : 4, rows = batch * width, hidden = l.qkv.inputs, inner = l.down.inputs;
    const long all = l.qkv.outputs, query = l.heads * l.size, key = l.heads_kv * l.size;
    thread_local std::vector<char> buffers[5];
    const long sizes[5] = {hidden, std::max(all, 2 * inner), std::max(query, inner), key, query};
    for (int i = 0; i < 5; i++)
        if (long(buffers[i].size()) < rows * sizes[i] * item) buffers[i].resize(rows * sizes[i] * item);
    char *normed = buffers[0].data(), *wide = buffers[1].data(), *turned = buffers[2].data();
    char *new_keys = buffers[3].data(), *seen = buffers[4].data();

    auto linear = [&](const Matrix& m, const void* from, void* to) {
        specdec_linear(
            m.kind, l.narrow, m.weight, m.scale, m.offset, from, m.bias, to, rows, m.inputs, m.outputs, threads);
    };
    specdec_rms_norm(l.narrow, x, l.norm_before, normed, rows, hidden, l.eps_before, l.norm_offset, threads);
    linear(l.qkv, normed, wide);
    specdec_rotary(
        l.narrow, wide, wide + query * item, cos, sin, turned, new_keys, batch, l.heads, l.heads_kv, width, l.size,
        width * all, l.size, all, width * all, l.size, all, turn_stride);
    specdec_kv_append(
        keys, values, new_keys, wide + (query + key) * item, cells, item, batch, l.heads_kv, width, l.size, keys_batch,
        keys_head, keys_cell, values_batch, values_head, values_cell, key * width, width * l.size, l.size, width * all,
        l.size, all);
    specdec_tree_attention(
        l.narrow, turned, keys, values, mask, seen, batch, l.heads, l.heads_kv, width, length, l.size, query * width,
        width * l.size, l.size, keys_batch, keys_head, keys_cell, values_batch, values_head, values_cell, mask_batch,
        mask_slot, l.scaling, 0.0f, threads);
    linear(l.out, seen, y);
    add(l.narrow, x, y, rows * hidden);
    specdec_rms_norm(l.narrow, y, l.norm_after, normed, rows, hidden, l.eps_after, l.norm_offset, threads);
    linear(l.gate_up, normed, wide);
    specdec_silu_mul(l.narrow, wide, wide + inner * item, turned, rows, inner, 2 * inner, 2 * inner, threads);
    linear(l.down, turned, normed);
    add(l.narrow, normed, y, rows * hidden);
}
