// Moving keys and values: bytes of any dtype, cells of an arena that is addressed in place.

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

// In place: slot w of row b is written to cell cells[b, w]. strides: (batch, head, cell) of keys, values, new keys,
// new values; `size` is the bytes of one head's vector.
extern "C" void specdec_kv_append(
    void* keys, void* values, void* new_keys, void* new_values, const int64_t* cells, long batch, long heads,
    long width, long size, const long* strides) {
    const View to[2] = {{(char*)keys, strides[0], strides[1], strides[2]},
                        {(char*)values, strides[3], strides[4], strides[5]}};
    const View from[2] = {{(char*)new_keys, strides[6], strides[7], strides[8]},
                          {(char*)new_values, strides[9], strides[10], strides[11]}};
    for (int side = 0; side < 2; side++)
        for (long b = 0; b < batch; b++)
            for (long h = 0; h < heads; h++)
                for (long w = 0; w < width; w++)
                    memcpy(to[side].at(b, h, cells[b * width + w]), from[side].at(b, h, w), size);
}

// In place: cells source[b, :] become cells target[b, :], all read before any is written.
extern "C" void specdec_kv_compact(
    void* keys, void* values, const int64_t* source, const int64_t* target, long batch, long heads, long depth,
    long size, const long* strides) {
    std::vector<char> held(depth * size);
    for (int side = 0; side < 2; side++) {
        const View view = {(char*)(side ? values : keys), strides[side * 3], strides[side * 3 + 1],
                           strides[side * 3 + 2]};
        for (long b = 0; b < batch; b++) {
            const int64_t *from = source + b * depth, *to = target + b * depth;
            for (long h = 0; h < heads; h++) {
                for (long i = 0; i < depth; i++) memcpy(&held[i * size], view.at(b, h, from[i]), size);
                for (long i = 0; i < depth; i++)
                    if (from[i] != to[i]) memcpy(view.at(b, h, to[i]), &held[i * size], size);
            }
        }
    }
}
