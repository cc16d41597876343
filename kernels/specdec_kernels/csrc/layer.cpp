// Decoder layers of Llama's kind, one after the other: threads start once, and wait for each other nine times a layer. Apart
// from the arena's cells, everything between x and y is float32 (bfloat16 where the processor multiplies bfloat16). Padding
// is left out: a row of it is neither computed nor written to the arena.

#include <cstdint>

#include "attention.h"
#include "parts.h"
#include "slots.h"

struct Layer {
    Matrix qkv, out, gate_up, down;
    const void *norm_before, *norm_after;
    long heads, heads_kv, size;
    float eps_before, eps_after, norm_offset, scaling;
};

struct Cells {  // of the arena: strides of batch, head and cell; of the mask's batch and slot
    void *keys, *values;
    const int64_t* cells;  // [batch, width]
    const void* mask;
    long length, keys_stride[3], values_stride[3], mask_stride[2];
};

struct Turn {  // cos and sin [batch or 1, width, size] contiguous
    const void *cos, *sin;
    long stride;  // of the batch
};

namespace {

// Memory between the parts of a layer, kept from call to call.
struct Scratch {
    std::vector<float> wide, turned, middle, shared;
    std::vector<char> ready;  // the input of the next product

    void fit(const Slots& slots, long batch, const Layer& l, const Cells* at, long count, int threads) {
        const long rows = slots.count(), query = l.heads * l.size, inner = l.down.inputs, hidden = l.qkv.inputs;
        grow(wide, rows * std::max(l.qkv.outputs, l.gate_up.outputs));
        grow(turned, rows * query);
        grow(middle, rows * hidden);
        grow(ready, rows * std::max(std::max(hidden, inner), query) * sizeof(float));
        for (long i = 0; i < count; i++) {
            const Cut cut(batch * l.heads_kv, l.heads / l.heads_kv * slots.width, at[i].length, threads);
            grow(shared, cut.shared(l.size));
        }
    }

    template <class T>
    static void grow(std::vector<T>& buffer, size_t size) {
        if (buffer.size() < size) buffer.resize(size);
    }
};

// T: x, y, the arena, norms and angles; X: the inputs of products. x and y have the slots that count alone.
template <class T, class X>
void run(
    const Layer& l, const T* x, T* y, const Turn& turn, const Cells& at, const Slots& slots, Scratch& s,
    const Team& team) {
    const long rows = slots.count(), width = slots.width, batch = slots.first.size() - 1, hidden = l.qkv.inputs, inner = l.down.inputs;
    const long all = l.qkv.outputs, query = l.heads * l.size, key = l.heads_kv * l.size;
    const auto [from, to] = team.share(rows);
    float *wide = s.wide.data(), *middle = s.middle.data();
    X* ready = (X*)s.ready.data();

    for (long row = from; row < to; row++)
        rms_norm_row(
            x + row * hidden, (const T*)l.norm_before, ready + row * hidden, hidden, l.eps_before, l.norm_offset);
    team.wait();
    multiply(l.qkv, ready, rows, Ends{wide, nullptr, nullptr, false}, team);
    team.wait();
    for (long row = from; row < to; row++) {
        const long place = slots.place[row], b = place / width, w = place % width;
        const long angle = b * turn.stride + w * l.size, cell = at.cells[place];
        const T *cos = (const T*)turn.cos + angle, *sin = (const T*)turn.sin + angle;
        const float* of = wide + row * all;
        for (long h = 0; h < l.heads; h++)
            rotate(of + h * l.size, cos, sin, s.turned.data() + row * query + h * l.size, l.size);
        for (long h = 0; h < l.heads_kv; h++) {
            const long* k = at.keys_stride;
            const long* v = at.values_stride;
            rotate(of + query + h * l.size, cos, sin, (T*)at.keys + b * k[0] + h * k[1] + cell * k[2], l.size);
            T* value = (T*)at.values + b * v[0] + h * v[1] + cell * v[2];
            for (long i = 0; i < l.size; i++) put(value + i, of[query + key + h * l.size + i]);
        }
    }
    team.wait();
    const long stride[11] = {0, l.size, query, at.keys_stride[0], at.keys_stride[1], at.keys_stride[2],
                             at.values_stride[0], at.values_stride[1], at.values_stride[2], at.mask_stride[0],
                             at.mask_stride[1]};
    attention(
        Attention<float, T, X>{s.turned.data(), (const T*)at.keys, (const T*)at.values, (const T*)at.mask, ready, batch,
                               l.heads, l.heads_kv, width, at.length, l.size, stride, l.scaling, 0.0f,
                               s.shared.data(), nullptr, slots.first.data()},
        team);
    team.wait();
    multiply(l.out, ready, rows, ends_of(middle, x), team);
    team.wait();
    for (long row = from; row < to; row++)
        rms_norm_row(
            middle + row * hidden, (const T*)l.norm_after, ready + row * hidden, hidden, l.eps_after, l.norm_offset);
    team.wait();
    multiply(l.gate_up, ready, rows, Ends{wide, nullptr, nullptr, false}, team);
    team.wait();
    constexpr long PART = 256;  // numbers of a row that a thread takes at a time
    const long parts = (inner + PART - 1) / PART;
    const auto [first, last] = team.share(rows * parts);
    for (long part = first; part < last; part++) {
        const long row = part / parts, i = part % parts * PART;
        const float* gate = wide + row * 2 * inner + i;
        silu_mul_row(gate, gate + inner, ready + row * inner + i, std::min(PART, inner - i));
    }
    team.wait();
    multiply(l.down, ready, rows, Ends{y, middle, nullptr, sizeof(T) == 2}, team);
}

}  // namespace

// y = h + mlp(norm(h)) with h = x + attention(norm(x)), and y is the next layer's x; in place: the arena's cells. x and y
// [batch, width, hidden] contiguous, bfloat16 with `narrow`; `at` one for each layer. The layers have the same sizes.
// `counts` [batch]: the slots of each row that count, or null: all. For the others y has what it had, or numbers
// of another slot, and their cells stay as they are.
extern "C" void specdec_decoder_layers(
    const Layer* const* layers, long count, int narrow, const void* x, void* y, const Turn* turn, const Cells* at,
    const int64_t* counts, long batch, long width, int threads) {
    thread_local Scratch scratch;
    const Slots slots(counts, batch, width);
    scratch.fit(slots, batch, *layers[0], at, count, threads);
    Scratch& s = scratch;
    const long hidden = layers[0]->qkv.inputs;
    auto moved = [&](auto move) {
        if (slots.all()) return;
        if (narrow) move((const bf16*)x, (bf16*)y);
        else move((const float*)x, (float*)y);
    };
    moved([&](auto from, auto to) { slots.gather(from, hidden, to); });
    if (!slots.all()) x = y;
    const bool worth = layers[0]->gate_up.inputs * layers[0]->gate_up.outputs * slots.count() >= WORTH_THREADS_LINEAR;
    together(threads, worth, [&](const Team& team) {
        for (long i = 0; i < count; i++) {
            const Layer& layer = *layers[i];
            const void* from = i ? y : x;  // a layer reads the last of x before it writes y
            if (i) team.wait();
            if (!narrow) run<float, float>(layer, (const float*)from, (float*)y, *turn, at[i], slots, s, team);
            else if (layer.qkv.kind == BFLOAT16 && MULTIPLIES_BF16)
                run<bf16, bf16>(layer, (const bf16*)from, (bf16*)y, *turn, at[i], slots, s, team);
            else run<bf16, float>(layer, (const bf16*)from, (bf16*)y, *turn, at[i], slots, s, team);
        }
    });
    moved([&](auto, auto to) { slots.spread(to, hidden); });
}
