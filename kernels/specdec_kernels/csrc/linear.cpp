// The product of x and one packed matrix: see packed.h.

#include "packed.h"
#include "slots.h"

namespace {

std::vector<float> floats(const bf16* x, long count) {
    std::vector<float> out(count);
    long i = 0;
    for (; i + LANES <= count; i += LANES) store(out.data() + i, load(x + i));
    for (; i < count; i++) out[i] = to_float(x[i]);
    return out;
}

}  // namespace

extern "C" long specdec_slots_of_a_pass() { return ROWS; }

// x [rows, inputs] and y [rows, outputs] are contiguous float32; x is bfloat16 with `narrow`, y with `narrow_out`. `weight`
// is packed, `scale` as its kind has them (see Matrix), or null; `bias` float32 or null.
extern "C" void specdec_linear(
    int kind, const void* weight, const void* scale, const float* bias, int narrow, int narrow_out, const void* x,
    void* y, long rows, long inputs, long outputs, int threads) {
    if (rows == 0) return;
    const Matrix m{weight, scale, bias, kind, inputs, outputs};
    const Ends ends{y, nullptr, nullptr, narrow_out != 0};
    const bool worth = outputs * inputs * rows >= WORTH_THREADS_LINEAR;
    if (narrow && kind == BFLOAT16 && MULTIPLIES_BF16) {
        together(threads, worth, [&](const Team& team) { multiply(m, (const bf16*)x, rows, ends, team); });
        return;
    }
    const std::vector<float> wide = narrow ? floats((const bf16*)x, rows * inputs) : std::vector<float>();
    const float* from = narrow ? wide.data() : (const float*)x;
    together(threads, worth, [&](const Team& team) { multiply(m, from, rows, ends, team); });
}

// The same for x [batch, width, inputs], of which each row has `counts` [batch] slots that count; for the others y
// has what it had, or numbers of another slot.
extern "C" void specdec_linear_of_slots(
    int kind, const void* weight, const void* scale, const float* bias, int narrow, int narrow_out, const void* x,
    void* y, const int64_t* counts, long batch, long width, long inputs, long outputs, int threads) {
    const Slots slots(counts, batch, width);
    auto product = [&](const void* of) {
        specdec_linear(
            kind, weight, scale, bias, narrow, narrow_out, of, y, slots.count(), inputs, outputs, threads);
    };
    if (slots.all()) return product(x);
    auto some = [&](auto* of) {
        std::vector<std::remove_cv_t<std::remove_pointer_t<decltype(of)>>> those(slots.count() * inputs);
        slots.gather(of, inputs, those.data());
        product(those.data());
    };
    if (narrow) some((const bf16*)x);
    else some((const float*)x);
    if (narrow_out) slots.spread((bf16*)y, outputs);
    else slots.spread((float*)y, outputs);
}
