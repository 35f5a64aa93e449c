// The fold: a reduction of any number of sources, ((s0 op s1) op s2) op ..., stored to every
// output. An output may be the very memory of a source, for one thread reads and writes each
// element. A block takes tiles of vectors and starts all loads of a tile before it uses the first.
// The elements before the first whole tile and after the last are done one at a time by all threads
// of the grid.
#pragma once

#include "load.cuh"
#include "step.cuh"

// The number of source addresses, and of output addresses, that a block keeps in shared memory.
constexpr u32 HELD = 64;

// The part of a call that a block reads once. It may lie in the host's memory, from which a load
// takes longer than a tile. Different warps read the parts, so that all loads are under way at
// once.
struct Held {
    // The sources' addresses, then the outputs'.
    u64 addresses[2 * HELD];
    alignas(16) u8 scalar[16];
    u32 stop;
};

// Buffers by their table of pointers in memory that the device reads, with one offset for all. A
// table has at least one pointer.
struct Memories {
    const void *const *table;
    u32 n;
    u64 at;
    const u64 *held;

    RR_INLINE u64 address(u32 i) const {
        return i < HELD ? held[i] : load_strong(address_of(table + i), (u64)0) + at;
    }
};

// The bits in which any address differs from `start`.
RR_INLINE u32 differ(const Memories &sources, const Memories &outs, u32 start) {
    u32 bits = 0;
    RR_ROLLED
    for (u32 i = 0; i < sources.n + outs.n; i++) {
        const bool source = i < sources.n;
        const Memories &all = source ? sources : outs;
        bits |= (u32)all.address(source ? i : i - sources.n) ^ start;
    }
    return bits;
}

// Fills the shared memory. `size` is the scalar's, or 0 if the operation has none.
RR_INLINE void hold(
    Held &held, const Memories &sources, const Memories &outs, const void *scalar, u32 size,
    const Words &words, const Place &me
) {
    constexpr u32 SCALAR = 2 * HELD, STOP = SCALAR + 32;
    const Share mine = share(me);
    RR_ROLLED
    for (u32 i = mine.first; i <= STOP; i += mine.step) {
        if (i < SCALAR) {
            const Memories &all = i < HELD ? sources : outs;
            const u32 k = i % HELD;
            if (k < all.n) {
                held.addresses[i] = load_strong(address_of(all.table + k), (u64)0) + all.at;
            }
        } else if (i == STOP) {
            held.stop = is_stopped(words);
        } else if (size > 0 && i - SCALAR < size && scalar) {
            held.scalar[i - SCALAR] = load_strong(address_of(scalar) + (i - SCALAR), (u8)0);
        }
    }
    barrier();
}

template <int U> RR_INLINE void load_vectors(Vector (&v)[U], u64 address, u32 stride) {
    RR_UNROLL
    for (int j = 0; j < U; j++) {
        v[j] = load_vector(address + j * stride);
    }
}

// Folds `U` vectors of each source, `stride` bytes apart, from byte `from` on.
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

// Folds one element of each source, at byte `from`.
template <class F, class Op>
RR_INLINE void fold_element(
    const Memories &sources, const Memories &outs, u64 from, bool aligned, const Given<F> &given
) {
    using Bits = typename F::Bits;
    Bits *const kind = 0;
    typename F::Wide all{};
    u32 s = 0;
    RR_ROLLED
    do {
        const auto one = F::widen(load_element(sources.address(s) + from, aligned, kind));
        if (s == 0) {
            all = Op::template first<F>(one, given);
        } else {
            all = Op::combine(all, Op::template other<F>(one, given));
        }
    } while (++s < sources.n);
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
    Held &held, const Memories &sources, const Memories &outs, u64 count, u32 last,
    const void *scalar, const Words &words
) {
    using Bits = typename F::Bits;
    constexpr u64 SIZE = sizeof(Bits);
    const Place me = place();
    hold(held, sources, outs, scalar, Op::SCALED ? SIZE : 0, words, me);
    if (held.stop) {
        return;
    }
    Given<F> given{{}, last};
    if (Op::SCALED && scalar) {
        given.scalar = F::widen(*(const Bits *)held.scalar);
    }
    const u32 start = (u32)sources.address(0);
    const u32 bits = differ(sources, outs, start);
    const bool aligned = ((start | bits) & (Alignment<Bits>::BYTES - 1)) == 0;

    // Vectors need a whole number of elements after which all addresses are multiples of 16.
    const u32 before = (0 - start) & 15;
    u64 head = before / SIZE, tiles = 0;
    const u32 tile = me.threads * U * 16;
    if ((bits & 15) == 0 && before % SIZE == 0 && head < count) {
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
