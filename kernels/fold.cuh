// The reduction of many: ((s0 op s1) op s2) op ..., the same to every output, which may be the very
// memory of a source. Each element is read and written by one thread.
// A block takes tiles of vectors, whose loads are all under way before the first is used; what
// comes before the first and after the last whole tile is done an element at a time by the grid.
#pragma once

#include "load.cuh"
#include "step.cuh"

// Memory by its table of pointers, which the device reads, and an offset for all of them. One or
// more.
struct Memories {
    const void *const *table;
    u32 n;
    u64 at;

    RR_INLINE u64 address(u32 i) const { return load_one<u64>(address_of(table + i)) + at; }

    // The bits in which addresses differ from `other`.
    RR_INLINE u32 differ(u32 other) const {
        u32 bits = 0, i = 0;
        RR_ROLLED
        do {
            bits |= (u32)address(i) ^ other;
        } while (++i < n);
        return bits;
    }
};

template <int U> RR_INLINE void load_vectors(Vector (&v)[U], u64 address, u32 stride) {
    RR_UNROLL
    for (int j = 0; j < U; j++) {
        v[j] = load_vector(address + j * stride);
    }
}

// `U` vectors of each source which lie `stride` bytes apart, from `from` on.
template <class F, class Op, int U>
RR_INLINE void fold_vectors(
    const Memories &sources, const Memories &outs, u64 from, u32 stride, const Given<F> &given
) {
    using Wide = typename F::Wide;
    using Lane = typename F::Lane;
    Wide all[U][LANES<F>];
    Vector v[U];
    load_vectors<U>(v, sources.address(0) + from, stride);
    RR_UNROLL
    for (int j = 0; j < U; j++) {
        RR_UNROLL
        for (int i = 0; i < LANES<F>; i++) {
            all[j][i] = Op::template first<F>(F::widen(lane(v[j], i, (Lane *)0)), given);
        }
    }
    RR_ROLLED
    for (u32 s = 1; s < sources.n; s++) {
        load_vectors<U>(v, sources.address(s) + from, stride);
        RR_UNROLL
        for (int j = 0; j < U; j++) {
            RR_UNROLL
            for (int i = 0; i < LANES<F>; i++) {
                const Wide one = Op::template other<F>(F::widen(lane(v[j], i, (Lane *)0)), given);
                all[j][i] = Op::combine(all[j][i], one);
            }
        }
    }
    if (Op::finishes(given)) {
        RR_UNROLL
        for (int j = 0; j < U; j++) {
            RR_UNROLL
            for (int i = 0; i < LANES<F>; i++) {
                all[j][i] = Op::template finish<F>(all[j][i], given);
            }
        }
    }
    RR_UNROLL
    for (int j = 0; j < U; j++) {
        v[j] = {};
        RR_UNROLL
        for (int i = 0; i < LANES<F>; i++) {
            put_lane(v[j], i, F::narrow(all[j][i]));
        }
    }
    u32 o = 0;
    RR_ROLLED
    do {
        const u64 address = outs.address(o) + from;
        RR_UNROLL
        for (int j = 0; j < U; j++) {
            store_vector(address + j * stride, v[j]);
        }
    } while (++o < outs.n);
}

// One element, `from` bytes on.
template <class F, class Op>
RR_INLINE void fold_element(
    const Memories &sources, const Memories &outs, u64 from, bool aligned, const Given<F> &given
) {
    using Bits = typename F::Bits;
    Bits *const kind = 0;
    const Bits bits = load_element(sources.address(0) + from, aligned, kind);
    auto all = Op::template first<F>(F::widen(bits), given);
    RR_ROLLED
    for (u32 s = 1; s < sources.n; s++) {
        const Bits more = load_element(sources.address(s) + from, aligned, kind);
        all = Op::combine(all, Op::template other<F>(F::widen(more), given));
    }
    if (Op::finishes(given)) {
        all = Op::template finish<F>(all, given);
    }
    const Bits result = (Bits)F::narrow(all);
    u32 o = 0;
    RR_ROLLED
    do {
        store_element(outs.address(o) + from, aligned, result);
    } while (++o < outs.n);
}

template <class F, class Op, int U>
RR_INLINE void fold(
    const Memories &sources, const Memories &outs, u64 count, u32 last, const void *scalar
) {
    using Bits = typename F::Bits;
    constexpr u64 SIZE = sizeof(Bits);
    Given<F> given{{}, last};
    if (scalar) {
        given.scalar = F::widen(load_element(address_of(scalar), false, (Bits *)0));
    }
    const Place me = place();
    const u32 start = (u32)sources.address(0);
    const u32 differ = sources.differ(start) | outs.differ(start);
    const bool aligned = ((start | differ) & (Alignment<Bits>::BYTES - 1)) == 0;

    // Vectors need addresses that all become multiples of 16 after as many whole elements.
    const u32 before = (0 - start) & 15;
    u64 head = before / SIZE, tiles = 0;
    const u32 tile = me.threads * U * 16;
    if ((differ & 15) == 0 && before % SIZE == 0 && head < count) {
        tiles = (count - head) * SIZE / tile;
    }
    RR_ROLLED
    for (u64 t = me.block; t < tiles; t += me.blocks) {
        const u64 from = before + t * tile + me.thread * 16;
        fold_vectors<F, Op, U>(sources, outs, from, me.threads * 16, given);
    }
    const u64 whole = tiles * tile / SIZE;
    RR_ROLLED
    for (u64 i = (u64)me.block * me.threads + me.thread; i < count - whole;
         i += (u64)me.blocks * me.threads) {
        const u64 element = i < head ? i : i + whole;
        fold_element<F, Op>(sources, outs, element * SIZE, aligned, given);
    }
}
