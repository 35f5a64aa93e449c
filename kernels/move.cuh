// The move: copies by descriptor, of which gathers, scatters and broadcasts are made. A row of the
// grid takes one descriptor after the other. No descriptor may write what another one reads; a
// descriptor may move memory onto itself.
#pragma once

#include "load.cuh"

struct Move {
    const void *from;
    void *to;
    u64 bytes;
};

// Copies the whole words of `bytes` at `from` to `apart` bytes further on; returns how many bytes.
template <class Word> RR_INLINE u64 move_words(u64 from, u64 apart, u64 bytes, const Place &me) {
    const u64 all = bytes / sizeof(Word) * sizeof(Word), end = from + all;
    RR_ROLLED
    for (u64 at = from + ((u64)me.block * me.threads + me.thread) * sizeof(Word); at < end;
         at += (u64)me.blocks * me.threads * sizeof(Word)) {
        store_one<Word>(at + apart, load_one<Word>(at));
    }
    return all;
}

// Copies whole tiles of four vectors for each thread, likewise.
RR_INLINE u64 move_tiles(u64 from, u64 apart, u64 bytes, const Place &me) {
    constexpr int U = 4;
    const u32 stride = me.threads * 16, tile = stride * U;
    const u64 all = bytes / tile * tile, end = from + all;
    RR_ROLLED
    for (u64 at = from + (u64)me.block * tile + me.thread * 16; at < end;
         at += (u64)me.blocks * tile) {
        Vector v[U];
        RR_UNROLL
        for (int j = 0; j < U; j++) {
            v[j] = load_vector(at + j * stride);
        }
        RR_UNROLL
        for (int j = 0; j < U; j++) {
            store_vector(at + apart + j * stride, v[j]);
        }
    }
    return all;
}

RR_INLINE void move_one(u64 from, u64 to, u64 bytes, const Place &me) {
    const u64 apart = to - from;
    u64 done = 0;
    if ((apart & 3) == 0) {
        // Single bytes up to the address where both are aligned as well as they can be.
        const u32 best = (apart & 15) == 0 ? 16 : 4;
        const u64 lead = (0 - (u32)from) & (best - 1);
        done = move_words<u8>(from, apart, lead < bytes ? lead : bytes, me);
        if (best == 16) {
            done += move_tiles(from + done, apart, bytes - done, me);
        }
        done += move_words<u32>(from + done, apart, bytes - done, me);
    }
    move_words<u8>(from + done, apart, bytes - done, me);
}

// Descriptors that a block has read, as numbers, and the stop word.
struct Moves {
    u64 words[32 * 3];
    u32 stop;
};

// Each row of blocks takes every `rows`-th descriptor, and reads 32 of them at a time.
RR_INLINE void move_all(Moves &moves, const Move *list, u32 n, const Words &words) {
    constexpr u32 STOP = sizeof(moves.words) / 8;
    const Place me = place();
    const Share mine = share(me);
    u32 i = me.row;
    RR_ROLLED
    for (u32 had = 0; i < n; had++) {
        RR_ROLLED
        for (u32 k = mine.first; k <= STOP; k += mine.step) {
            const u64 item = i + (u64)(k / 3) * me.rows;
            if (k < STOP && item < n) {
                moves.words[k] = load_strong(address_of(list + item) + k % 3 * 8, (u64)0);
            } else if (k == STOP && had == 0) {
                moves.stop = is_stopped(words);
            }
        }
        barrier();
        if (moves.stop) {
            return;
        }
        RR_ROLLED
        for (u32 k = 0; k < STOP && i < n; k += 3, i += me.rows) {
            if (moves.words[k] != moves.words[k + 1]) {
                move_one(moves.words[k], moves.words[k + 1], moves.words[k + 2], me);
            }
        }
        // No thread may overwrite the descriptors before all threads have used them.
        barrier();
    }
}
