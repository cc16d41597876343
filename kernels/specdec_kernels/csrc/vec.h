// One vector type for every instruction set: GCC's vector extensions, LANES floats wide. The same source is
// compiled once for each level (plain, AVX2, AVX-512, AVX-512-BF16); only bfloat16 products differ by level.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));
typedef uint32_t uvec __attribute__((vector_size(LANES * 4)));

struct bf16 {
    uint16_t bits;
};

struct f16 {
    uint16_t bits;
};

inline float to_float(float x) { return x; }

inline float to_float(bf16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

inline void put(float* to, float x) { *to = x; }

inline void put(bf16* to, float x) {  // round to nearest even, NaN stays NaN
    uint32_t bits;
    memcpy(&bits, &x, 4);
    to->bits = x != x ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

inline vec splat(float x) { return x - vec{}; }  // 0 + x would be an addition, because of -0

inline vec load(const float* from) {
    vec out;
    memcpy(&out, from, sizeof out);
    return out;
}

inline vec load(const bf16* from) {
    typedef uint16_t half __attribute__((vector_size(LANES * 2)));
    half bits;
    memcpy(&bits, from, sizeof bits);
    return vec(__builtin_convertvector(bits, uvec) << 16);
}

inline vec load(const f16* from) {  // no infinity, no NaN
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__)
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else
    typedef uint16_t half __attribute__((vector_size(LANES * 2)));
    half bits;
    memcpy(&bits, from, sizeof bits);
    const uvec wide = __builtin_convertvector(bits, uvec);
    const vec size = vec((wide & 0x7fff) << 13) * 0x1p112f;  // the exponent counts from another number
    return vec(uvec(size) | (wide & 0x8000) << 16);
#endif
}

inline vec load(const int8_t* from) {
    // gcc 12 would convert lane by lane.
#if defined(__AVX512F__)
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#elif defined(__AVX2__)
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
    vec out;
    for (int i = 0; i < LANES; i++) out[i] = from[i];
    return out;
#endif
}

// The compiler may not load x again for each use.
inline void in_register(vec& x) {
#if defined(__AVX512F__)
    asm("" : "+v"(x));
#elif defined(__x86_64__)
    asm("" : "+x"(x));
#endif
}

inline void store(float* to, vec x) { memcpy(to, &x, sizeof x); }

inline void store(bf16* to, vec x) {
    for (int i = 0; i < LANES; i++) put(to + i, x[i]);
}

typedef float four __attribute__((vector_size(16)));

// The sums of every fourth lane.
inline four fourths(vec x) {
#if defined(__AVX512F__)
    const four a = __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
    const four b = __builtin_shufflevector(x, x, 8, 9, 10, 11) + __builtin_shufflevector(x, x, 12, 13, 14, 15);
    return a + b;
#elif defined(__AVX__)
    return __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
#else
    return x;
#endif
}

inline float sum(vec x) {
    four y = fourths(x);
    y += __builtin_shufflevector(y, y, 2, 3, 0, 1);
    return y[0] + y[1];
}

template <int... I>
inline four sums_of(vec a, vec b, vec c, vec d, std::integer_sequence<int, I...>) {
    // Of lanes 4 l + k, k = 0 to 3: a and b in turn, of their first two lanes and of the last two; then pairs of these.
    const vec ab = __builtin_shufflevector(a, b, (I / 4 * 4 + I % 4 / 2 + I % 2 * LANES)...) +
                   __builtin_shufflevector(a, b, (I / 4 * 4 + I % 4 / 2 + 2 + I % 2 * LANES)...);
    const vec cd = __builtin_shufflevector(c, d, (I / 4 * 4 + I % 4 / 2 + I % 2 * LANES)...) +
                   __builtin_shufflevector(c, d, (I / 4 * 4 + I % 4 / 2 + 2 + I % 2 * LANES)...);
    return fourths(
        __builtin_shufflevector(ab, cd, (I / 4 * 4 + I % 2 + I % 4 / 2 * LANES)...) +
        __builtin_shufflevector(ab, cd, (I / 4 * 4 + 2 + I % 2 + I % 4 / 2 * LANES)...));
}

// The sums of four vectors.
inline four sums_of(vec a, vec b, vec c, vec d) {
    return sums_of(a, b, c, d, std::make_integer_sequence<int, LANES>{});
}

inline bool any(ivec x) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)x, (__m512i)x) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)x, (__m256i)x);
#else
    return (x[0] | x[1] | x[2] | x[3]) != 0;
#endif
}

// a * b + c. Where gcc chooses, it fuses in some places and not in others: sums that are equal bit for bit say it.
inline vec fused(vec a, vec b, vec c) {
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

inline vec select(ivec where, vec yes, vec no) { return vec((where & ivec(yes)) | (~where & ivec(no))); }

// 0 in place of NaN and infinities.
inline vec finite_or_zero(vec x) { return select(x - x == 0.0f, x, vec{}); }
inline float finite_or_zero(float x) { return x - x == 0.0f ? x : 0.0f; }

// exp to about one unit in the last place: x = n ln 2 + r, a polynomial in r (Cephes' expf), scaled by 2^n.
// Below -87 it is 0, above 88 it is the value at 88.
inline vec exp(vec x) {
    const vec low = splat(-87.0f), high = splat(88.0f);
    const ivec vanishes = x < low;
    x = select(x > high, high, select(vanishes, low, x));
    const vec shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    const vec n = (x * 1.44269504f + shift) - shift;
    const vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const vec out = vec(ivec(p) + (__builtin_convertvector(n, ivec) << 23));
    return select(vanishes, vec{}, out);
}

// SplitMix64's finaliser, as in specdec/sampling.py.
constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

inline uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}
