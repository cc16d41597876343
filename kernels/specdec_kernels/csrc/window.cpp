// A window before and after its verification: where it lies in the arena, and what it emits.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

// T: the bits of a float of any dtype, of which 0 is zero. `least` has those of -inf.
template <class T>
void plan(
    const int64_t* parents, const int64_t* committed, int64_t* depths, int64_t* positions, int64_t* cells, T* mask,
    T least, long batch, long width, long span, long capacity, long look, long limit) {
    std::vector<char> own(width * width);  // [slot, slot]: an ancestor or itself
    std::vector<int64_t> held(look);       // the position in each cell; negative: none yet
    for (long b = 0; b < batch; b++) {
        const int64_t start = committed[b], *parent = parents + b * width;
        int64_t* depth = depths + b * width;
        for (long c = 0; c < look; c++) held[c] = start - 1 - (start - 1 - c + capacity) % capacity;
        std::fill(own.begin(), own.end(), 0);
        for (long w = 0; w < width; w++) {
            char* mine = &own[w * width];
            const long above = parent[w];
            const bool child = above >= 0 && above < w;  // a parent lies before its child
            if (child) memcpy(mine, &own[above * width], width);
            mine[w] = 1;
            depth[w] = child ? depth[above] + 1 : 0;
            const int64_t position = start + depth[w];
            positions[b * width + w] = limit ? std::min<int64_t>(position, limit - 1) : position;
            cells[b * width + w] = (start + w) % capacity;
            const int64_t first = span ? std::max<int64_t>(position - span + 1, 0) : 0;
            T* row = mask + (b * width + w) * look;
            for (long c = 0; c < look; c++) row[c] = held[c] >= first ? 0 : least;
            for (long other = 0; other < width; other++) {
                const long cell = (start + other) % capacity;
                const bool near = !span || depth[w] - depth[other] < span;  // a later slot is no ancestor
                if (cell < look) row[cell] = mine[other] && near ? 0 : least;
            }
        }
    }
}

}  // namespace

// parents, depths, positions and cells [batch, width], committed [batch], mask [batch, width, look] of floats of `item`
// bytes, where `least` has the bits of -inf; span 0: no span, limit 0: no limit. All contiguous.
extern "C" void specdec_kv_plan(
    const int64_t* parents, const int64_t* committed, int64_t* depths, int64_t* positions, int64_t* cells, void* mask,
    long item, uint64_t least, long batch, long width, long span, long capacity, long look, long limit) {
    auto all = [&](auto* typed, auto none) {
        plan(
            parents, committed, depths, positions, cells, typed, none, batch, width, span, capacity, look, limit);
    };
    if (item == 2) all((uint16_t*)mask, uint16_t(least));
    else if (item == 4) all((uint32_t*)mask, uint32_t(least));
    else all((uint64_t*)mask, least);
}

// In place: the tokens that each row emits into tokens [batch, …], of two strides, from its length on. proposed and depths
// [batch, slots], width, accepted, next and length [batch], path [batch, steps], packed [batch, steps + 4].
extern "C" void specdec_emit(
    const int64_t* proposed, const int64_t* depths, const int64_t* width, const int64_t* path, const int64_t* accepted,
    const int64_t* next, const int64_t* length, int64_t* tokens, int64_t* packed, long batch, long slots, long steps,
    long row, long place) {
    for (long b = 0; b < batch; b++) {
        const int64_t *on = path + b * steps, *depth = depths + b * slots;
        int64_t *to = packed + b * (steps + 4), *text = tokens + b * row + length[b] * place;
        int64_t moved = 0, deepest = 0;
        for (long i = 0; i < steps; i++) {
            const bool last = i == accepted[b] || i == steps - 1;
            text[i * place] = to[i] = last ? next[b] : proposed[b * slots + std::max<int64_t>(on[i + 1], 0)];
            moved += on[i] != i && on[i] > 0;
        }
        for (long i = 0; i < std::min<long>(slots, width[b]); i++) deepest = std::max(deepest, depth[i]);
        to += steps;
        to[0] = accepted[b], to[1] = width[b] - 1, to[2] = deepest, to[3] = moved;
    }
}
