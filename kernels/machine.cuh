// All differences between a GPU and the host: how a function is marked, which thread runs, and how
// memory is read and written. The host runs every thread of a grid one after the other, by the same
// loops. Loads and stores are plain: peers write what is read here, so that nothing may come from
// the read-only cache. The address space of a pointer tells the compiler that it is a global one.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;

// Threads of a block. With two blocks on a multiprocessor each thread has 64 registers.
constexpr u32 BLOCK = 512;

// The position of a thread in its grid.
struct Place {
    u32 thread, threads, block, blocks;
    // The second dimension of the grid.
    u32 row, rows;
};

// A thread's share of a block's common work: the item `first`, and every `step`-th after it.
struct Share {
    u32 first, step;
};

// 16 bytes, which a thread reads or writes at once.
struct Vector {
    u32 words[4];
};

#ifdef __CUDA__

#define RR_KERNEL extern "C" __attribute__((global)) __attribute__((launch_bounds(BLOCK, 2))) void
#define RR_INLINE __attribute__((device)) __attribute__((always_inline)) inline
#define RR_UNROLL _Pragma("unroll")
#define RR_ROLLED _Pragma("nounroll")
#define RR_GLOBAL __attribute__((address_space(1)))
#define RR_SHARED __attribute__((shared))

RR_INLINE Place place() {
    return {
        (u32)__nvvm_read_ptx_sreg_tid_x(),   (u32)__nvvm_read_ptx_sreg_ntid_x(),
        (u32)__nvvm_read_ptx_sreg_ctaid_x(), (u32)__nvvm_read_ptx_sreg_nctaid_x(),
        (u32)__nvvm_read_ptx_sreg_ctaid_y(), (u32)__nvvm_read_ptx_sreg_nctaid_y(),
    };
}

// The threads of a block share its common work item by item.
RR_INLINE Share share(const Place &me) { return {me.thread, me.threads}; }

RR_INLINE void barrier() { __syncthreads(); }

RR_INLINE void must_be_aligned(u64, u32) {}

// Loads of memory that the host and other devices may write at any time: the stop word, and tables
// in the host's memory.
RR_INLINE u32 load_strong(u64 address, u32) {
    u32 word;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
    return word;
}

RR_INLINE u64 load_strong(u64 address, u64) {
    u64 word;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(address) : "memory");
    return word;
}

RR_INLINE u8 load_strong(u64 address, u8) {
    u32 byte;
    asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(byte) : "l"(address) : "memory");
    return (u8)byte;
}

// Stores a flag that the host may read at any time. The whole system has seen it before this thread
// goes on.
RR_INLINE void store_flag(u64 address, u32 flag) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;\n\tfence.sc.sys;"
                 :
                 : "l"(address), "r"(flag)
                 : "memory");
}

// In assembly, because the compiler splits a vector into elements that are smaller.
RR_INLINE Vector load_vector(u64 address) {
    Vector v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3])
                 : "l"(address)
                 : "memory");
    return v;
}

RR_INLINE void store_vector(u64 address, const Vector &v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(address), "r"(v.words[0]), "r"(v.words[1]), "r"(v.words[2]),
                   "r"(v.words[3])
                 : "memory");
}

#else

#define RR_KERNEL extern "C" void
#define RR_INLINE inline
#define RR_UNROLL
#define RR_ROLLED
#define RR_GLOBAL
#define RR_SHARED static

// The thread that the host runs: see host.cpp.
extern Place host_place;

RR_INLINE Place place() { return host_place; }

// The host runs threads one after the other, so that each does all common work for itself.
RR_INLINE Share share(const Place &) { return {0, 1}; }

RR_INLINE void barrier() {}

// The host traps where a GPU faults: at an address that is not a multiple of the size read there.
RR_INLINE void must_be_aligned(u64 address, u32 to) {
    if (address % to != 0) {
        __builtin_trap();
    }
}

template <class T> RR_INLINE T load_strong(u64 address, T) {
    must_be_aligned(address, sizeof(T));
    return *(const volatile T *)address;
}

RR_INLINE void store_flag(u64 address, u32 flag) {
    must_be_aligned(address, 4);
    *(volatile u32 *)address = flag;
}

RR_INLINE Vector load_vector(u64 address) {
    must_be_aligned(address, 16);
    return *(const Vector *)address;
}

RR_INLINE void store_vector(u64 address, const Vector &v) {
    must_be_aligned(address, 16);
    *(Vector *)address = v;
}

#endif

// A global address as a number. The cast to the address space makes the pointer a global one.
RR_INLINE u64 address_of(const void *pointer) { return (u64)(const RR_GLOBAL void *)pointer; }

template <class T> RR_INLINE T load_one(u64 address) {
    must_be_aligned(address, sizeof(T));
    return *(const RR_GLOBAL T *)address;
}

template <class T> RR_INLINE void store_one(u64 address, T value) {
    must_be_aligned(address, sizeof(T));
    *(RR_GLOBAL T *)address = value;
}

// The words by which the host and a kernel agree whether the kernel may run. The host sets `stop`
// and then reads `works`; a kernel sets `works` and then reads `stop`. With a full fence between
// the two on either side, one of them sees the other. Both may be null.
struct Words {
    const u32 *stop;
    u32 *works;
};

// Sets `works`, then returns `stop`, or 0 if there is no such word.
RR_INLINE u32 is_stopped(const Words &words) {
    if (words.works) {
        store_flag(address_of(words.works), 1);
    }
    return words.stop ? load_strong(address_of(words.stop), (u32)0) : 0;
}

// The bits of a value as another type.
template <class To, class From> RR_INLINE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    __builtin_memcpy(&to, &from, sizeof(To));
    return to;
}
