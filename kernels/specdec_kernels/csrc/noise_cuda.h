// Keyed noise and the comparison of tokens, one token at a time, for the device and for the host.
//
// A drawn token must equal the reference's, so every operation of specdec/sampling.py is repeated in float32, with the
// library's log1pf and logf, without fast intrinsics, and without a sum fused with a product.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define BOTH __host__ __device__ inline
#else
#define BOTH inline
#endif

constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;  // SplitMix64's increment
constexpr float HIGHEST = 22.9f;                  // above every Gumbel value
constexpr int64_t INDICES = 0x7FFFFFFF;           // the largest token id that a packed score holds

BOTH uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

BOTH float gumbel(uint64_t key, int64_t id) {
    const uint32_t bits = uint32_t(mix(key + uint64_t(id + 1) * GOLDEN) >> 32);
    const float exponential = -log1pf((float(bits) + 0.5f) * -0x1p-32f);
    return -logf(fminf(exponential, HIGHEST));
}

BOTH float uniform(uint64_t key) { return float(uint32_t(mix(key + GOLDEN) >> 40)) * 0x1p-24f; }

BOTH float rounded_sum(float a, float b) {
#if defined(__CUDA_ARCH__)
    return __fadd_rn(a, b);  // never fused with a product inside logf: the reference rounds the noise first
#else
    return a + b;
#endif
}

// Orders floats as unsigned numbers: NaN above everything, as in torch's max, and -0 equal to 0.
BOTH uint32_t ordered(float x) {
    if (x != x) return ~0u;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x == 0) bits = 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// [rank: 1 bit][score: 32][INDICES - id: 31]. Larger is better: the lowest id wins a tie. No token packs to 0.
BOTH uint64_t pack(bool rank, float score, int64_t id) {
    return uint64_t(rank) << 63 | uint64_t(ordered(score)) << 31 | uint64_t(INDICES - id);
}

BOTH int64_t token_of(uint64_t packed) { return INDICES - int64_t(packed & uint64_t(INDICES)); }

// The best of the tokens that one thread has seen.
struct Best {
    uint64_t packed = 0;
    float score = -INFINITY;
    bool rank = false;

    BOTH void take(bool other_rank, float other_score, int64_t id) {
        const uint64_t other = pack(other_rank, other_score, id);
        if (other > packed) packed = other, score = other_score, rank = other_rank;
    }

    // Takes a logit plus the noise of its token. A token that cannot win is skipped without a hash.
    BOTH void draw(bool other_rank, float logit, uint64_t key, int64_t id) {
        if (other_rank == rank && logit + HIGHEST < score) return;
        take(other_rank, logit > -INFINITY ? rounded_sum(logit, gumbel(key, id)) : logit, id);
    }

    // A token with probability p, from which `taken` is subtracted, unless it is NaN or infinite. If any token of the
    // row has a remainder, the draw is from the remainders, else from p. The rank lets one pass run both draws, each
    // token in the draw it can win.
    BOTH void draw_left(float p, float taken, uint64_t key, int64_t id) {
        const float left = p - (fabsf(taken) < INFINITY ? taken : 0.0f);
        if (left > 0) draw(true, logf(left), key, id);
        else if (!rank) draw(false, logf(p), key, id);
    }
};

// Whether a proposal with draft probability q is accepted under p; never if q is 0, NaN or infinite.
BOTH bool keeps(float p, float q, uint64_t key) { return uniform(key) < (q > 0 ? p / q : 0.0f); }

// The walk of one row from the root to the child that is the choice at its parent; a child's slot is after its
// parent's, so one pass finds the path. Writes the path with -1 past its end; returns the number accepted.
BOTH int64_t walk(
    const int64_t* tokens, const int64_t* parents, const int64_t* choices, int64_t width, int64_t slots, int64_t* path,
    int64_t* next) {
    int64_t at = 0, accepted = 0, wanted = choices[0];
    path[0] = 0;
    for (int64_t slot = 1; slot < slots && slot < width; slot++)
        if (parents[slot] == at && tokens[slot] == wanted) {
            path[++accepted] = at = slot;
            wanted = choices[at];
        }
    for (int64_t slot = accepted + 1; slot < slots; slot++) path[slot] = -1;
    *next = wanted;
    return accepted;
}
