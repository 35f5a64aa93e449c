// Elements in vectors and in memory. A GPU faults at an element that is not aligned to its own
// size, so that such elements are read and written byte by byte.
#pragma once

#include "number.cuh"

// The number of lanes of a vector.
template <class F> constexpr int LANES = 16 / sizeof(typename F::Lane);

template <class B> RR_INLINE B lane(const Vector &v, int i, B *) {
    constexpr int in_word = 4 / (int)sizeof(B);
    return (B)(v.words[i / in_word] >> (8 * (int)sizeof(B) * (i % in_word)));
}
RR_INLINE u64 lane(const Vector &v, int i, u64 *) {
    return (u64)v.words[2 * i + 1] << 32 | v.words[2 * i];
}
template <class B> RR_INLINE Two<B> lane(const Vector &v, int i, Two<B> *) {
    return {lane(v, 2 * i, (B *)0), lane(v, 2 * i + 1, (B *)0)};
}

// Puts a lane into a vector whose lane is zero.
template <class B> RR_INLINE void put_lane(Vector &v, int i, B bits) {
    constexpr int in_word = 4 / (int)sizeof(B);
    v.words[i / in_word] |= (u32)bits << (8 * (int)sizeof(B) * (i % in_word));
}
RR_INLINE void put_lane(Vector &v, int i, u64 bits) {
    v.words[2 * i] = (u32)bits;
    v.words[2 * i + 1] = (u32)(bits >> 32);
}
template <class B> RR_INLINE void put_lane(Vector &v, int i, Two<B> bits) {
    put_lane(v, 2 * i, bits.first);
    put_lane(v, 2 * i + 1, bits.second);
}

// An address that is a multiple of this can be read in one load.
template <class B> struct Alignment { static constexpr u32 BYTES = sizeof(B); };
template <class B> struct Alignment<Two<B>> { static constexpr u32 BYTES = sizeof(B); };

template <class B> RR_INLINE B load_element(u64 address, bool aligned, B *) {
    if (sizeof(B) == 1 || aligned) {
        return load_one<B>(address);
    }
    B bits = 0;
    RR_ROLLED
    for (u32 i = 0; i < sizeof(B); i++) {
        bits = (B)(bits | (B)load_one<u8>(address + i) << (8 * i));
    }
    return bits;
}
template <class B> RR_INLINE Two<B> load_element(u64 address, bool aligned, Two<B> *) {
    return {load_element(address, aligned, (B *)0),
            load_element(address + sizeof(B), aligned, (B *)0)};
}

template <class B> RR_INLINE void store_element(u64 address, bool aligned, B bits) {
    if (sizeof(B) == 1 || aligned) {
        return store_one<B>(address, bits);
    }
    RR_ROLLED
    for (u32 i = 0; i < sizeof(B); i++) {
        store_one<u8>(address + i, (u8)(bits >> (8 * i)));
    }
}
template <class B> RR_INLINE void store_element(u64 address, bool aligned, Two<B> bits) {
    store_element(address, aligned, bits.first);
    store_element(address + sizeof(B), aligned, bits.second);
}
