// Drawing and verifying: one call for all rows, at any vocabulary.
//
// argmax(logit + Gumbel) without a logarithm for most tokens: with E = -log1p(-v) >= v the noise is -log(E), so a
// token beats the best score so far only if v < exp(logit - best), its reach. v is at least 2^-33, so most tokens
// need no hash either; the few that pass get the exact float32 score of specdec/sampling.py.


#include <algorithm>
#include <vector>

#include "slots.h"
#include "team.h"
#include "vec.h"

namespace {

constexpr float LEAST = 1.0f / 4294967296.0f;  // 2^-32
constexpr float SLACK = 1.001f;                // covers the rounding of the vector exp

struct Best {
    float score = -INFINITY;
    long id = -1;
    void offer(float other, long at) {  // the lower index wins a tie; ids come in rising order
        if (id < 0 || other > score) score = other, id = at;
    }
};

inline float noise(uint64_t key, long id) {
    const uint64_t bits = mix(key + uint64_t(id + 1) * GOLDEN) >> 32;
    const float exponential = -log1pf((float(bits) + 0.5f) * -LEAST);
    return -logf(std::min(exponential, 22.9f));
}

inline float uniform(uint64_t key) { return float(mix(key + GOLDEN) >> 40) * 0x1p-24f; }

inline vec hashed(uint64_t key, long id) {  // v of LANES tokens from `id` on
    typedef uint64_t wide __attribute__((vector_size(LANES * 8)));
    wide lane;
    for (int i = 0; i < LANES; i++) lane[i] = uint64_t(i) * GOLDEN;
    wide x = lane + (key + uint64_t(id + 1) * GOLDEN);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x = (x ^ (x >> 31)) >> 32;
    return __builtin_convertvector(__builtin_convertvector(x, uvec), vec) * LEAST;
}

Best argmax(const float* logit, long from, long to) {
    Best best;
    long i = from;
    for (; i + LANES <= to; i += LANES) {
        const vec x = load(logit + i);
        if (best.id < 0 || any(x > best.score))
            for (int j = 0; j < LANES; j++) best.offer(x[j], i + j);
    }
    for (; i < to; i++) best.offer(logit[i], i);
    return best;
}

// The winner of logit + noise over [from, to). `Distribution` gives one logit, or the reach of LANES tokens.
template <class Distribution>
Best draw(const Distribution& distribution, uint64_t key, long from, long to) {
    Best best;
    long i = from;
    for (; i + LANES <= to; i += LANES) {
        if (best.id >= 0) {
            const vec reach = distribution.reach(i, best.score) * SLACK;
            if (!any(reach > LEAST / 2) || !any(hashed(key, i) < reach)) continue;
        }
        for (int j = 0; j < LANES; j++) best.offer(distribution.logit(i + j) + noise(key, i + j), i + j);
    }
    for (; i < to; i++) best.offer(distribution.logit(i) + noise(key, i), i);
    return best;
}

struct Given {
    const float* logits;
    float logit(long i) const { return logits[i]; }
    vec reach(long i, float best) const { return exp(load(logits + i) - best); }
};

// p, or max(p - q, 0) after a rejection, as a distribution to draw from; a q that is not finite counts as 0. Without q,
// the proposal `taken` has all the mass of q.
struct Residual {
    const float *p, *q;
    long taken;
    float mass(long i) const { return std::max(p[i] - (q ? finite_or_zero(q[i]) : i == taken ? 1.0f : 0.0f), 0.0f); }
    float logit(long i) const { return std::log(mass(i)); }
    vec reach(long i, float best) const {
        vec left = load(p + i);
        if (q) left -= finite_or_zero(load(q + i));
        // Negative where nothing is left; without q, the exact score of the proposal is never used.
        return left * std::exp(-best);
    }
    bool empty(long vocabulary) const {
        for (long i = 0; i < vocabulary; i++)
            if (mass(i) > 0) return false;
        return true;
    }
};

}  // namespace

// chosen [batch, width] of logits [batch, width, V], each slot `stride` apart; keys [batch, width], or null for no noise.
// `counts` [batch]: the slots of each row that count, or null: all; for the others 0 is chosen.
extern "C" void specdec_sample(
    const float* logits, const int64_t* keys, int64_t* chosen, const int64_t* counts, long batch, long width,
    long vocabulary, long stride, int threads) {
    const Slots slots(counts, batch, width);
    const long rows = slots.count();
    // A single row is split, so that plain decoding uses every thread too.
    const long parts = rows < threads && vocabulary >= 4096 ? threads : 1;
    const long each = (vocabulary / LANES / parts + 1) * LANES;
    std::vector<Best> found(rows * parts);
    in_turns(threads, rows * vocabulary >= 8192, rows * parts, [&](long task) {
        const long row = slots.place[task / parts], from = std::min(task % parts * each, vocabulary);
        const long to = std::min(from + each, vocabulary);
        const float* logit = logits + row * stride;
        if (from < to) found[task] = keys ? draw(Given{logit}, keys[row], from, to) : argmax(logit, from, to);
    });
    std::fill(chosen, chosen + batch * width, 0);
    for (long row = 0; row < rows; row++) {
        Best best = found[row * parts];
        for (long part = 1; part < parts; part++)
            if (found[row * parts + part].id >= 0)
                best.offer(found[row * parts + part].score, found[row * parts + part].id);
        chosen[slots.place[row]] = best.id;
    }
}

// path [B, W] with -1 past the end; the walk goes to the first child with the chosen token, while there is one.
extern "C" void specdec_verify_prefix(
    const int64_t* tokens, const int64_t* parents, const int64_t* width, const int64_t* choices, int64_t* path,
    int64_t* accepted, int64_t* next, long batch, long slots) {
    for (long b = 0; b < batch; b++) {
        const int64_t *token = tokens + b * slots, *parent = parents + b * slots, *choice = choices + b * slots;
        int64_t* to = path + b * slots;
        std::fill(to, to + slots, -1);
        long at = to[0] = 0, depth = 0;
        for (long child = 1; child < std::min<long>(slots, width[b]); child++)  // a child's slot is past its parent's
            if (parent[child] == at && token[child] == choice[at]) to[++depth] = at = child;
        accepted[b] = depth;
        next[b] = choice[at];
    }
}

// Leviathan et al. 2211.17192, algorithm 1, over a chain. distribution [B, W, V]; q [B, W - 1, V] or null for one-hot
// rows; keys [B, W]. All contiguous.
extern "C" void specdec_rejection_sample(
    const float* distribution, const float* q, const int64_t* tokens, const int64_t* width, const int64_t* accept_key,
    const int64_t* residual_key, const int64_t* bonus_key, int64_t* path, int64_t* accepted, int64_t* next, long batch,
    long slots, long vocabulary, int threads) {
    in_turns(threads, batch > 1, batch, [&](long b) {
        const float* p = distribution + b * slots * vocabulary;
        const float* q_row = q ? q + b * (slots - 1) * vocabulary : nullptr;
        long kept = 0;
        for (; kept < std::min<long>(width[b], slots) - 1; kept++) {
            const int64_t token = tokens[b * slots + kept + 1];
            const float chance = q_row ? q_row[kept * vocabulary + token] : 1.0f;
            const float ratio = chance > 0 ? p[kept * vocabulary + token] / chance : 0.0f;
            if (!(uniform(accept_key[b * slots + kept]) < ratio)) break;
        }
        const bool rejected = kept < width[b] - 1;
        const float* at = p + kept * vocabulary;
        Residual residual{at, nullptr, -1};
        if (rejected) {
            if (q_row) residual.q = q_row + kept * vocabulary;
            else residual.taken = tokens[b * slots + kept + 1];
            // If p == q up to rounding, the residual is empty; then the draw is from p.
            if (residual.empty(vocabulary)) residual = Residual{at, nullptr, -1};
        }
        const uint64_t key = (rejected ? residual_key : bonus_key)[b * slots + kept];
        next[b] = draw(residual, key, 0, vocabulary).id;
        accepted[b] = kept;
        for (long i = 0; i < slots; i++) path[b * slots + i] = i <= kept ? i : -1;
    });
}
