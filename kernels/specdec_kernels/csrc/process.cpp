// Logit processors: every slot of every row in one pass over its logits, and no sort of the vocabulary.
//
// Top-p needs the likeliest tokens only as far as their mass reaches p. They are collected above a threshold that is
// lowered until they are enough, and divided at the token where the mass is reached. Equal logits keep the order of
// their ids, as in specdec/processors.py.


#include <algorithm>
#include <vector>

#include "team.h"
#include "vec.h"

namespace {

constexpr float NEVER = -INFINITY;

// struct Processors of cpu.py; each pointer may be null where no row needs it. One value a row, or one row of V.
struct Processors {
    const float *temperature, *top_p, *min_p;
    const int64_t* top_k;
    const float* bias;
    const uint8_t* seen;
    const int32_t* emitted;
    const float *repetition, *frequency, *presence;
    const int64_t *paths, *banned;
    long depth, bans, bias_stride, seen_stride, emitted_stride;
};

inline float penalised(float x, bool seen, int count, float repetition, float frequency, float presence) {
    const float scaled = x < 0 ? x * repetition : x / repetition;
    return (seen ? scaled : x) - frequency * float(count) - (count > 0 ? presence : 0.0f);
}

// Bias and penalties of one slot, from its raw logits.
void adjust(const Processors& with, long row, const int64_t* path, const float* raw, float* out, long vocabulary) {
    const float* bias = with.bias ? with.bias + row * with.bias_stride : nullptr;
    if (bias)
        for (long i = 0; i < vocabulary; i++) out[i] = raw[i] + bias[i];
    else
        std::copy(raw, raw + vocabulary, out);
    if (!with.emitted) return;
    const uint8_t* seen = with.seen + row * with.seen_stride;
    const int32_t* emitted = with.emitted + row * with.emitted_stride;
    const float repetition = with.repetition[row], frequency = with.frequency[row], presence = with.presence[row];
    std::vector<std::pair<long, float>> proposed;  // the path's tokens, from what they were before their penalties
    for (long i = 0; i < with.depth && path[i] >= 0; i++)
        if (std::find(path, path + i, path[i]) == path + i) {
            const int count = emitted[path[i]] + int(std::count(path, path + with.depth, path[i]));
            proposed.emplace_back(path[i], penalised(out[path[i]], true, count, repetition, frequency, presence));
        }
    for (long i = 0; i < vocabulary; i++)
        out[i] = penalised(out[i], seen[i] || emitted[i] > 0, emitted[i], repetition, frequency, presence);
    for (const auto& [token, x] : proposed) out[token] = x;
}

// NaN if there is one.
float largest(const float* x, long size) {
    vec best = splat(NEVER);
    ivec none{};
    long i = 0;
    for (; i + LANES <= size; i += LANES) {
        const vec some = load(x + i);
        best = select(some > best, some, best);
        none |= some != some;
    }
    if (any(none)) return NAN;
    float most = NEVER;
    for (int j = 0; j < LANES; j++) most = std::max(most, best[j]);
    for (; i < size; i++)
        if (x[i] > most || x[i] != x[i]) most = x[i];
    return most;
}

// The first place of the largest number, or of the first NaN.
long place_of_largest(const float* x, long size) {
    const float most = largest(x, size);
    if (most != most) return std::find_if(x, x + size, [](float one) { return one != one; }) - x;
    long i = 0;
    for (; i + LANES <= size && !any(load(x + i) >= most); i += LANES) {}
    for (; i < size; i++)
        if (x[i] == most) return i;
    return 0;
}

inline float exp_of(float x) { return exp(splat(x))[0]; }

double mass(const float* x, long size, float most) {
    double total = 0;
    long i = 0;
    for (; i + 64 * LANES <= size; i += 64 * LANES) {  // short float sums, so that rounding stays small
        vec part{};
        for (int j = 0; j < 64; j++) part += exp(load(x + i + j * LANES) - most);
        total += sum(part);
    }
    for (; i < size; i++) total += exp_of(x[i] - most);
    return total;
}

struct Likely {
    float logit, mass;
    long id;
    bool operator<(const Likely& other) const { return logit != other.logit ? logit > other.logit : id < other.id; }
};

// The tokens with logits of at least `least`.
void collect(const float* x, long size, float most, float least, std::vector<Likely>& found) {
    found.clear();
    const auto offer = [&](long i) {
        if (x[i] >= least) found.push_back({x[i], exp_of(x[i] - most), i});
    };
    long i = 0;
    for (; i + LANES <= size; i += LANES)
        if (any(load(x + i) >= least))
            for (int j = 0; j < LANES; j++) offer(i + j);
    for (; i < size; i++) offer(i);
}

double mass(const Likely* from, const Likely* to) {
    double total = 0;
    for (; from != to; from++) total += from->mass;
    return total;
}

// Puts the likeliest tokens in front; returns how many of them precede the one at which their mass reaches `wanted`,
// that one included. Halves the range that holds it, so that few tokens are sorted.
size_t nucleus(std::vector<Likely>& likely, double wanted) {
    Likely *from = likely.data(), *to = from + likely.size();
    double before = 0;
    while (to - from > 32) {
        Likely* middle = from + (to - from) / 2;
        std::nth_element(from, middle, to);
        const double upper = before + mass(from, middle);
        if (upper >= wanted)
            to = middle;
        else
            before = upper, from = middle;
    }
    std::sort(from, to);
    // The likeliest token stays whatever its mass.
    for (; from != to && (before < wanted || from == likely.data()); from++) before += from->mass;
    return from - likely.data();
}

// Top-k, top-p and min-p in place; `most` is the largest logit. Logits with a NaN or an infinite largest are no
// distribution, and stay.
void filter(float* x, long size, float most, long top_k, float top_p, float min_p, std::vector<Likely>& likely) {
    if (!std::isfinite(most)) return;
    const bool few = top_k > 0 && top_k < size;
    if (!few && top_p >= 1 && min_p == 0) return;
    // What min-p drops need not be collected: it is less likely than all that stays. A little more, for rounding.
    const float lowest = min_p > 0 ? most + std::log(min_p) - 1e-3f : NEVER;
    const double whole = !few && top_p < 1 ? mass(x, size, most) : 0;
    for (float reach = few || top_p < 1 ? 4 : INFINITY;; reach = reach > 64 ? INFINITY : reach * 2) {
        const bool all = most - reach <= lowest;
        collect(x, size, most, few ? most - reach : std::max(most - reach, lowest), likely);
        if (few ? long(likely.size()) >= top_k || reach == INFINITY
                : all || mass(likely.data(), likely.data() + likely.size()) >= double(top_p) * whole)
            break;
    }
    if (few) {
        std::nth_element(likely.begin(), likely.begin() + (top_k - 1), likely.end());
        const float floor = likely[top_k - 1].logit;
        likely.erase(
            std::remove_if(likely.begin(), likely.end(), [&](const Likely& token) { return token.logit < floor; }),
            likely.end());
    }
    if (top_p < 1) {
        const double total = few ? mass(likely.data(), likely.data() + likely.size()) : whole;
        likely.resize(nucleus(likely, double(top_p) * total));
    }
    std::fill(x, x + size, NEVER);
    for (const Likely& token : likely)
        if (token.logit == most || token.mass >= min_p) x[token.id] = token.logit;
}

void process(const Processors& with, long row, long slot, const float* raw, float* out, long size) {
    static thread_local std::vector<Likely> likely;
    const int64_t* path = with.paths ? with.paths + slot * with.depth : nullptr;
    const float heat = with.temperature[row];
    const auto one_hot = [&](long best) {
        std::fill(out, out + size, NEVER);
        out[best] = 0;
    };
    if (heat == 0 && !with.bias && !with.emitted && !with.banned) return one_hot(place_of_largest(raw, size));
    adjust(with, row, path, raw, out, size);
    if (with.banned) {
        const int64_t* banned = with.banned + slot * with.bans;
        for (long i = 0; i < with.bans; i++)
            if (banned[i] >= 0) out[banned[i]] += NEVER;  // a NaN stays one
        if (largest(out, size) == NEVER) adjust(with, row, path, raw, out, size);  // where all is forbidden, nothing is
    }
    if (heat == 0) return one_hot(place_of_largest(out, size));
    for (long i = 0; i < size; i++) out[i] /= heat;
    filter(out, size, largest(out, size), with.top_k[row], with.top_p[row], with.min_p[row], likely);
}

}  // namespace

// out [B, N, V] from logits [B, N, V], contiguous.
extern "C" void specdec_process(
    const Processors* with, const float* logits, float* out, long rows, long slots, long vocabulary, int threads) {
    in_turns(threads, rows * slots > 1, rows * slots, [&](long slot) {
        process(*with, slot / slots, slot, logits + slot * vocabulary, out + slot * vocabulary, vocabulary);
    });
}
