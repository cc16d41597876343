// The slots of a window [batch, width] that count: of each row the first few. What follows them is padding, which products
// and layers leave out: they work on the slots that count, one after the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

struct Slots {
    std::vector<long> place;  // of each slot that counts, its place in [batch, width]
    std::vector<long> first;  // of each row, the number of such slots before it; then the number of all
    long width;

    // `counts` [batch]: of each row how many, from 1 to width; null: all.
    Slots(const int64_t* counts, long batch, long width) : first(1, 0), width(width) {
        for (long b = 0; b < batch; b++) {
            const long count = counts ? std::clamp(counts[b], (int64_t)1, (int64_t)width) : width;
            for (long w = 0; w < count; w++) place.push_back(b * width + w);
            first.push_back(place.size());
        }
    }

    long count() const { return place.size(); }
    bool all() const { return count() == ((long)first.size() - 1) * width; }

    // The slots that count of x [batch, width, size] to `to`, one after the other.
    template <class T>
    void gather(const T* x, long size, T* to) const {
        for (long i = 0; i < count(); i++) std::copy_n(x + place[i] * size, size, to + i * size);
    }

    // In place: the first slots of x go where they belong in [batch, width, size]; padding is not written, and has what it
    // had or what was there of a slot.
    template <class T>
    void spread(T* x, long size) const {
        for (long i = count() - 1; i >= 0; i--)
            memmove((void*)(x + place[i] * size), x + i * size, size * sizeof(T));
    }
};
