// What differs between a GPU and the host, and nothing else does: how a function is marked, which
// thread this is, how memory is read and written. On the host every thread of a grid is run after
// the other, by the very same loops.
// Loads and stores are plain ones: peers write what is read here, so nothing may come from the
// read-only cache. Pointers are global ones, which is told to the compiler by the address space.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;

// Threads of a block, and blocks that fit on a multiprocessor: 64 registers for each thread.
constexpr u32 BLOCK = 512;

// Where a thread stands in its grid.
struct Place {
    u32 thread, threads, block, blocks;
    // The second dimension of the grid.
    u32 row, rows;
};

// Of a block's common work a thread takes the `first` and every `step` after.
struct Share {
    u32 first, step;
};

// 16 bytes: what one thread reads or writes at once.
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

// What the threads of a block do together, each takes every so manieth of.
RR_INLINE Share share(const Place &me) { return {me.thread, me.threads}; }

RR_INLINE void barrier() { __syncthreads(); }

RR_INLINE void must_be_aligned(u64, u32) {}

// What others write at any time.
RR_INLINE u32 load_flag(u64 address) {
    u32 flag;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(flag) : "l"(address) : "memory");
    return flag;
}

// In assembly, for the compiler splits a vector into its elements where they are smaller.
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

// Which thread the host is at: see host.cpp.
extern Place host_place;

RR_INLINE Place place() { return host_place; }

// Threads run one after the other: each does it all, for itself.
RR_INLINE Share share(const Place &) { return {0, 1}; }

RR_INLINE void barrier() {}

// A GPU faults where an address is not a multiple of what is read there. So does the host.
RR_INLINE void must_be_aligned(u64 address, u32 to) {
    if (address % to != 0) {
        __builtin_trap();
    }
}

RR_INLINE u32 load_flag(u64 address) {
    must_be_aligned(address, 4);
    return *(const volatile u32 *)address;
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

// A global address as a number. The cast to the address space is what makes it a global one.
RR_INLINE u64 address_of(const void *pointer) { return (u64)(const RR_GLOBAL void *)pointer; }

template <class T> RR_INLINE T load_one(u64 address) {
    must_be_aligned(address, sizeof(T));
    return *(const RR_GLOBAL T *)address;
}

template <class T> RR_INLINE void store_one(u64 address, T value) {
    must_be_aligned(address, sizeof(T));
    *(RR_GLOBAL T *)address = value;
}

// The same bits as another type.
template <class To, class From> RR_INLINE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    __builtin_memcpy(&to, &from, sizeof(To));
    return to;
}
