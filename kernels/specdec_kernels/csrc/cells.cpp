// Moves keys and values, as bytes of any dtype, to and between the cells of the arena.

#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct View {  // [B, heads, cells, d] with strides in bytes; the last axis is contiguous
    char* data;
    long batch, head, cell;
    char* at(long b, long h, long c) const { return data + b * batch + h * head + c * cell; }
};

}  // namespace

// In place: slot w of row b is written to cell cells[b, w]. Strides are of the batch, head and cell, in items; `size`
// is the items of one head's vector.
extern "C" void specdec_kv_append(
    void* keys, void* values, void* new_keys, void* new_values, const int64_t* cells, long item, long batch, long heads,
    long width, long size, long keys_batch, long keys_head, long keys_cell, long values_batch, long values_head,
    long values_cell, long new_keys_batch, long new_keys_head, long new_keys_slot, long new_values_batch,
    long new_values_head, long new_values_slot) {
    const View to[2] = {{(char*)keys, keys_batch * item, keys_head * item, keys_cell * item},
                        {(char*)values, values_batch * item, values_head * item, values_cell * item}};
    const View from[2] = {{(char*)new_keys, new_keys_batch * item, new_keys_head * item, new_keys_slot * item},
                          {(char*)new_values, new_values_batch * item, new_values_head * item, new_values_slot * item}};
    for (int side = 0; side < 2; side++)
        for (long b = 0; b < batch; b++)
            for (long h = 0; h < heads; h++)
                for (long w = 0; w < width; w++)
                    memcpy(to[side].at(b, h, cells[b * width + w]), from[side].at(b, h, w), size * item);
}

// In place: copies cells source[b, :] to cells target[b, :]; all that move are read before any is written.
extern "C" void specdec_kv_compact(
    void* keys, void* values, const int64_t* source, const int64_t* target, long batch, long heads, long depth,
    long items, long item, long keys_batch, long keys_head, long keys_cell, long values_batch, long values_head,
    long values_cell) {
    const long size = items * item;
    const View views[2] = {{(char*)keys, keys_batch * item, keys_head * item, keys_cell * item},
                           {(char*)values, values_batch * item, values_head * item, values_cell * item}};
    std::vector<char> held(depth * size);
    for (const View& view : views) {
        for (long b = 0; b < batch; b++) {
            const int64_t *from = source + b * depth, *to = target + b * depth;
            for (long h = 0; h < heads; h++) {
                for (long i = 0; i < depth; i++)
                    if (from[i] != to[i]) memcpy(&held[i * size], view.at(b, h, from[i]), size);
                for (long i = 0; i < depth; i++)
                    if (from[i] != to[i]) memcpy(view.at(b, h, to[i]), &held[i * size], size);
            }
        }
    }
}
