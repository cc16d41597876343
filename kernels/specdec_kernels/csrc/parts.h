// The element-wise parts of a decoder layer, each one pass, computed in float32 and rounded once. T is float or bf16.
#pragma once

#include "vec.h"

template <class T, class W, class Y>
void rms_norm_row(const T* x, const W* weight, Y* y, long size, float eps, float offset) {
    vec squares{};
    long i = 0;
    for (; i + LANES <= size; i += LANES) squares += load(x + i) * load(x + i);
    float total = sum(squares);
    for (long j = i; j < size; j++) total += to_float(x[j]) * to_float(x[j]);
    const float scale = 1.0f / std::sqrt(total / size + eps);
    for (i = 0; i + LANES <= size; i += LANES) store(y + i, load(x + i) * scale * (load(weight + i) + offset));
    for (; i < size; i++) put(y + i, to_float(x[i]) * scale * (to_float(weight[i]) + offset));
}

// One head's vector.
template <class X, class T, class Y>
void rotate(const X* x, const T* cos, const T* sin, Y* y, long size) {
    const long half = size / 2;
    long i = 0;
    for (; i + LANES <= half; i += LANES) {
        const vec first = load(x + i), second = load(x + half + i);
        store(y + i, first * load(cos + i) - second * load(sin + i));
        store(y + half + i, second * load(cos + half + i) + first * load(sin + half + i));
    }
    for (; i < half; i++) {
        const float first = to_float(x[i]), second = to_float(x[half + i]);
        put(y + i, first * to_float(cos[i]) - second * to_float(sin[i]));
        put(y + half + i, second * to_float(cos[half + i]) + first * to_float(sin[half + i]));
    }
}

template <class T, class Y>
void silu_mul_row(const T* gate, const T* up, Y* y, long size) {
    long i = 0;
    for (; i + LANES <= size; i += LANES) {
        const vec x = load(gate + i);
        store(y + i, x / (1.0f + exp(-x)) * load(up + i));
    }
    for (; i < size; i++) {
        const float x = to_float(gate[i]);
        put(y + i, x / (1.0f + std::exp(-x)) * to_float(up[i]));
    }
}
