// The small ops of decoder layers and the ops on the arena's cells: one launch each, over tensors of any layout.
//
// Arithmetic is float32 for every dtype, rounded once at the end. The order of a row's sum depends only on its length,
// so no result depends on the batch. If every address allows it, accesses have 16 bytes.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

namespace {

constexpr int THREADS = 256;
constexpr int MOST_THREADS = 1024;
constexpr int64_t WIDEST = 16;        // bytes of one access
constexpr int64_t SHARED = 48 << 10;  // shared memory that every device gives a block

struct View {  // [B, heads, cells, d] with strides in bytes; the last axis is contiguous
    char* data;
    int64_t batch, head, cell;
    template <class Unit>
    __device__ Unit* at(int64_t b, int64_t h, int64_t c) const {
        return (Unit*)(data + b * batch + h * head + c * cell);
    }
};

// blockIdx: (units of W slots, head, row and side).
template <class Unit>
__global__ void append_cells(
    View keys, View values, View new_keys, View new_values, const int64_t* __restrict__ cells, int width, int units) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= width * units) return;
    const int slot = i / units, unit = i % units, h = blockIdx.y, b = blockIdx.z / 2;
    const bool second = blockIdx.z % 2;
    const int64_t cell = cells[int64_t(b) * width + slot];
    const Unit moved = (second ? new_values : new_keys).at<Unit>(b, h, slot)[unit];
    (second ? values : keys).at<Unit>(b, h, cell)[unit] = moved;
}

// blockIdx: (columns of a head, head, row and side). A block copies its columns of all source cells to shared memory
// before it writes any; no other block uses these columns. Cells that stay in place are skipped.
template <class Unit>
__global__ void compact_cells(
    View keys, View values, const int64_t* __restrict__ source, const int64_t* __restrict__ target, int depth,
    int units, int columns) {
    extern __shared__ uint4 shared[];
    Unit* held = (Unit*)shared;
    const int64_t h = blockIdx.y, b = blockIdx.z / 2;
    const View view = blockIdx.z % 2 ? values : keys;
    const int64_t *from = source + b * depth, *to = target + b * depth;
    const int first = blockIdx.x * columns, count = min(columns, units - first);
    for (int i = threadIdx.x; i < depth * count; i += THREADS) {
        const int step = i / count;
        if (from[step] != to[step]) held[i] = view.at<Unit>(b, h, from[step])[first + i % count];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < depth * count; i += THREADS) {
        const int step = i / count;
        if (from[step] != to[step]) view.at<Unit>(b, h, to[step])[first + i % count] = held[i];
    }
}

template <class T, int N>
struct alignas(sizeof(T) * N < WIDEST ? sizeof(T) * N : WIDEST) Pack {
    T x[N];
};

template <int N, class T>
__device__ Pack<T, N> load(const T* from) {
    return *(const Pack<T, N>*)from;
}

template <int N, class T>
__device__ void store(T* to, const Pack<T, N>& pack) {
    *(Pack<T, N>*)to = pack;
}

// The sum over a block of whole warps; every thread gets the same number.
__device__ float block_sum(float sum) {
    __shared__ float warps[MOST_THREADS / 32];
    for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int warp = 0; warp < int(blockDim.x) / 32; warp++) sum += warps[warp];
    return sum;
}

// A block is a row of x; y is contiguous.
template <class T, class W, int N>
__global__ void norm_rows(
    const T* __restrict__ x, const W* __restrict__ weight, T* __restrict__ y, int64_t stride, int size, float eps,
    float offset) {
    x += blockIdx.x * stride;
    y += int64_t(blockIdx.x) * size;
    const int first = threadIdx.x * N, step = blockDim.x * N;
    float sum = 0;
    for (int i = first; i < size; i += step) {
        const auto pack = load<N>(x + i);
        for (int j = 0; j < N; j++) sum += float(pack.x[j]) * float(pack.x[j]);
    }
    const float scale = rsqrtf(block_sum(sum) / float(size) + eps);
    for (int i = first; i < size; i += step) {
        auto pack = load<N>(x + i);
        const auto factor = load<N>(weight + i);
        for (int j = 0; j < N; j++) pack.x[j] = T(float(pack.x[j]) * scale * (offset + float(factor.x[j])));
        store<N>(y + i, pack);
    }
}

// blockIdx: (N lanes of half a head of W slots, query and key heads, row). The new tensors are contiguous.
template <class T, int N>
__global__ void rotate_heads(
    View query, View keys, const T* __restrict__ cos, const T* __restrict__ sin, T* __restrict__ new_query,
    T* __restrict__ new_keys, int heads, int width, int half, int64_t turn) {
    const int chunks = half / N, i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= width * chunks) return;
    const int slot = i / chunks, lane = i % chunks * N;
    const bool second = blockIdx.y >= heads;
    const int64_t b = blockIdx.z, h = second ? blockIdx.y - heads : blockIdx.y, d = 2 * half;
    const int64_t all = second ? gridDim.y - heads : heads;
    const T* from = (second ? keys : query).at<T>(b, h, slot) + lane;
    T* to = (second ? new_keys : new_query) + ((b * all + h) * width + slot) * d + lane;
    const int64_t angle = b * turn + slot * d + lane;
    const auto low = load<N>(from), high = load<N>(from + half);
    const auto low_cos = load<N>(cos + angle), high_cos = load<N>(cos + angle + half);
    const auto low_sin = load<N>(sin + angle), high_sin = load<N>(sin + angle + half);
    Pack<T, N> new_low, new_high;
    for (int j = 0; j < N; j++) {
        const float x = float(low.x[j]), y = float(high.x[j]);
        new_low.x[j] = T(x * float(low_cos.x[j]) - y * float(low_sin.x[j]));
        new_high.x[j] = T(y * float(high_cos.x[j]) + x * float(high_sin.x[j]));
    }
    store<N>(to, new_low);
    store<N>(to + half, new_high);
}

// blockIdx: (row, columns). y is contiguous.
template <class T, int N>
__global__ void silu_rows(
    const T* __restrict__ gate, const T* __restrict__ up, T* __restrict__ y, int size, int64_t gate_stride,
    int64_t up_stride) {
    const int i = (blockIdx.y * THREADS + threadIdx.x) * N;
    if (i >= size) return;
    auto pack = load<N>(gate + blockIdx.x * gate_stride + i);
    const auto other = load<N>(up + blockIdx.x * up_stride + i);
    for (int j = 0; j < N; j++) {
        const float x = float(pack.x[j]);
        pack.x[j] = T(x / (1.0f + expf(-x)) * float(other.x[j]));
    }
    store<N>(y + int64_t(blockIdx.x) * size + i, pack);
}

// Bytes of one access: WIDEST if all of these addresses, strides and sizes in bytes are multiples of it, else `least`.
int64_t access(std::initializer_list<int64_t> all, int64_t least) {
    int64_t bits = 0;
    for (int64_t one : all) bits |= one;
    return bits % WIDEST == 0 ? WIDEST : least;
}

int64_t address(const void* pointer) { return int64_t(pointer); }

int64_t bits_of(const View& view) { return address(view.data) | view.batch | view.head | view.cell; }

// Calls f(a T, N as a constant), where N is the number of elements of one access.
template <class T, class F>
void with_access(bool wide, F f) {
    if (wide) f(T(), std::integral_constant<int, WIDEST / sizeof(T)>());
    else f(T(), std::integral_constant<int, 1>());
}

enum Kind { FLOAT32, BFLOAT16, FLOAT16 };

int64_t bytes_of(int kind) { return kind == FLOAT32 ? 4 : 2; }

template <class F>
void with_type(int kind, bool wide, F f) {
    if (kind == FLOAT32) with_access<float>(wide, f);
    else if (kind == BFLOAT16) with_access<__nv_bfloat16>(wide, f);
    else with_access<__half>(wide, f);
}

// Calls f(a unit) with the type of a unit of `bytes` bytes.
template <class F>
void with_unit(int64_t bytes, F f) {
    if (bytes == 16) f(uint4());
    else if (bytes == 4) f(uint32_t());
    else f(uint16_t());
}

unsigned blocks(int64_t count, int64_t each) { return unsigned((count + each - 1) / each); }

View view(const void* data, const int64_t* strides) { return {(char*)data, strides[0], strides[1], strides[2]}; }

}  // namespace

// Each returns the launch's error, 0 for none. All pointers except `strides` point to device memory.

// In place: slot w of row b goes to cell cells[b, w]. strides in bytes: (batch, head, cell) of keys, values, new keys,
// new values; `size` is the bytes of one head's vector, `element` those of one of its numbers.
extern "C" int specdec_kv_append(
    void* keys, void* values, const void* new_keys, const void* new_values, const int64_t* cells, int64_t batch,
    int64_t heads, int64_t width, int64_t size, int64_t element, const int64_t* strides, cudaStream_t stream) {
    if (batch * heads * width * size == 0) return 0;
    const View to[2] = {view(keys, strides), view(values, strides + 3)};
    const View from[2] = {view(new_keys, strides + 6), view(new_values, strides + 9)};
    const int64_t bytes = access({bits_of(to[0]), bits_of(to[1]), bits_of(from[0]), bits_of(from[1]), size}, element);
    with_unit(bytes, [&](auto unit) {
        const dim3 grid(blocks(width * (size / bytes), THREADS), heads, batch * 2);
        append_cells<decltype(unit)><<<grid, THREADS, 0, stream>>>(
            to[0], to[1], from[0], from[1], cells, width, size / bytes);
    });
    return cudaGetLastError();
}

// In place: copies cells source[b, :] to cells target[b, :]. As above; at most 3072 cells a row.
extern "C" int specdec_kv_compact(
    void* keys, void* values, const int64_t* source, const int64_t* target, int64_t batch, int64_t heads,
    int64_t depth, int64_t size, int64_t element, const int64_t* strides, cudaStream_t stream) {
    if (batch * heads * depth * size == 0) return 0;
    const View side[2] = {view(keys, strides), view(values, strides + 3)};
    const int64_t bytes = access({bits_of(side[0]), bits_of(side[1]), size}, element), units = size / bytes;
    const int64_t columns = std::min(units, SHARED / (depth * bytes));
    if (!columns) return cudaErrorInvalidValue;
    with_unit(bytes, [&](auto unit) {
        const dim3 grid(blocks(units, columns), heads, batch * 2);
        compact_cells<decltype(unit)><<<grid, THREADS, depth * columns * bytes, stream>>>(
            side[0], side[1], source, target, depth, units, columns);
    });
    return cudaGetLastError();
}

// x [rows, size] with rows `stride` elements apart; weight [size] in x's dtype, or in float32 with `wide_weight`.
extern "C" int specdec_rms_norm(
    int kind, int wide_weight, const void* x, const void* weight, void* y, int64_t rows, int64_t size, int64_t stride,
    float eps, float offset, cudaStream_t stream) {
    if (rows * size == 0) return 0;
    const int64_t bytes = bytes_of(kind);
    const bool wide = access({address(x), address(weight), address(y), size * bytes, stride * bytes}, 0);
    with_type(kind, wide, [&](auto type, auto count) {
        using T = decltype(type);
        constexpr int N = decltype(count)::value;
        const int threads = std::min<int64_t>((size / N + 31) / 32 * 32, MOST_THREADS);
        if (wide_weight)
            norm_rows<T, float, N><<<rows, threads, 0, stream>>>(
                (const T*)x, (const float*)weight, (T*)y, stride, size, eps, offset);
        else
            norm_rows<T, T, N><<<rows, threads, 0, stream>>>(
                (const T*)x, (const T*)weight, (T*)y, stride, size, eps, offset);
    });
    return cudaGetLastError();
}

// query [B, heads, W, d], keys [B, heads_kv, W, d] with strides in bytes (batch, head, slot) of query, then of keys;
// cos and sin contiguous [1 or B, W, d], rows `turn` elements apart (0 for 1).
extern "C" int specdec_rotary(
    int kind, const void* query, const void* keys, const void* cos, const void* sin, void* new_query, void* new_keys,
    int64_t batch, int64_t heads, int64_t heads_kv, int64_t width, int64_t size, int64_t turn, const int64_t* strides,
    cudaStream_t stream) {
    if (batch * width * size == 0) return 0;
    const View from[2] = {view(query, strides), view(keys, strides + 3)};
    const int64_t half = size / 2, tensors = address(cos) | address(sin) | address(new_query) | address(new_keys);
    const bool wide = access({bits_of(from[0]), bits_of(from[1]), tensors, half * bytes_of(kind)}, 0);
    with_type(kind, wide, [&](auto type, auto count) {
        using T = decltype(type);
        constexpr int N = decltype(count)::value;
        const dim3 grid(blocks(width * (half / N), THREADS), heads + heads_kv, batch);
        rotate_heads<T, N><<<grid, THREADS, 0, stream>>>(
            from[0], from[1], (const T*)cos, (const T*)sin, (T*)new_query, (T*)new_keys, heads, width, half, turn);
    });
    return cudaGetLastError();
}

// gate and up [rows, size], with gate_stride and up_stride elements between rows.
extern "C" int specdec_silu_mul(
    int kind, const void* gate, const void* up, void* y, int64_t rows, int64_t size, int64_t gate_stride,
    int64_t up_stride, cudaStream_t stream) {
    if (rows * size == 0) return 0;
    const int64_t bytes = bytes_of(kind), tensors = address(gate) | address(up) | address(y);
    const bool wide = access({tensors, size * bytes, gate_stride * bytes, up_stride * bytes}, 0);
    with_type(kind, wide, [&](auto type, auto count) {
        using T = decltype(type);
        constexpr int N = decltype(count)::value;
        const dim3 grid(rows, blocks(size, THREADS * N));
        silu_rows<T, N><<<grid, THREADS, 0, stream>>>(
            (const T*)gate, (const T*)up, (T*)y, size, gate_stride, up_stride);
    });
    return cudaGetLastError();
}
