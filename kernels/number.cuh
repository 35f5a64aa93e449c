// The types of elements: how each is stored, and the type in which it is reduced. 16- and 8-bit
// floats are reduced as f32 and rounded once, to nearest, ties to even; all other types are reduced
// as they are. Every NaN must stay one: a GPU's own NaN has all bits of its mantissa set, and would
// round to zero.
#pragma once

#include "machine.cuh"

// Two numbers that are one element, aligned as one of them is.
template <class B> struct Two {
    B first, second;
};

template <class T> struct Complex {
    T re, im;
};

// A value and the index at which it was found.
template <class V, class I> struct Located {
    V value;
    I index;
};

// A type that is reduced in its own bits. `Bits` is an element in memory, `Lane` what a vector is
// made of, `Wide` what is reduced.
template <class B, class W = B> struct AsIs {
    using Bits = B;
    using Lane = B;
    using Wide = W;
    static RR_INLINE Wide widen(Lane bits) { return bits_as<Wide>(bits); }
    static RR_INLINE Lane narrow(Wide wide) { return bits_as<Lane>(wide); }
};

// Elements that are reduced side by side in 32 bits. An element alone is in the lowest bits.
template <class B> struct Packed {
    using Bits = B;
    using Lane = u32;
    using Wide = u32;
    static RR_INLINE Wide widen(u32 bits) { return bits; }
    static RR_INLINE u32 narrow(Wide wide) { return wide; }
};

using U8 = AsIs<u8>;
using U16 = AsIs<u16>;
using U32 = AsIs<u32>;
using U64 = AsIs<u64>;
using I8 = AsIs<u8, i8>;
using I16 = AsIs<u16, i16>;
using I32 = AsIs<u32, i32>;
using I64 = AsIs<u64, i64>;
using F32 = AsIs<u32, float>;
using F64 = AsIs<u64, double>;
using C64 = AsIs<Two<u32>, Complex<float>>;
using C128 = AsIs<Two<u64>, Complex<double>>;
using LocF32 = AsIs<Two<u32>, Located<float, u32>>;
using LocF64 = AsIs<Two<u64>, Located<double, u64>>;
using LocI32 = AsIs<Two<u32>, Located<i32, u32>>;
using LocI64 = AsIs<Two<u64>, Located<i64, u64>>;

constexpr u32 SIGN = 1u << 31;
constexpr u32 INFINITE = 0x7f800000;

RR_INLINE bool is_nan(float x) { return x != x; }
RR_INLINE bool is_nan(double x) { return x != x; }

struct BF16 {
    using Bits = u16;
    using Lane = u16;
    using Wide = float;
    static RR_INLINE float widen(u16 bits) { return bits_as<float>((u32)bits << 16); }
    static RR_INLINE u16 narrow(float x) {
        const u32 bits = bits_as<u32>(x);
        const u32 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        return (u16)(is_nan(x) ? 0x7fff : rounded);
    }
};

// A GPU converts by an instruction; the host converts by the definition.
struct F16 {
    using Bits = u16;
    using Lane = u16;
    using Wide = float;
#ifdef __CUDA__
    static RR_INLINE float widen(u16 bits) {
        float wide;
        asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
        return wide;
    }
    static RR_INLINE u16 narrow(float x) {
        u16 bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
        return bits;
    }
#else
    static RR_INLINE float widen(u16 bits) {
        // The exponent moves to its place in an f32, where it is too small by the difference of the
        // biases.
        const float magnitude = bits_as<float>((u32)(bits & 0x7fff) << 13) * 0x1p112f;
        const u32 special = INFINITE | (u32)(bits & 0x3ff) << 13;
        const bool finite = (bits & 0x7c00) != 0x7c00;
        const u32 wide = finite ? bits_as<u32>(magnitude) : special;
        return bits_as<float>(wide | (u32)(bits & 0x8000) << 16);
    }
    static RR_INLINE u16 narrow(float x) {
        const u32 sign = (bits_as<u32>(x) & SIGN) >> 16;
        const u32 magnitude = bits_as<u32>(x) & ~SIGN;
        if (is_nan(x)) {
            return 0x7fff;
        }
        // Near 0.5 an f32 has as many bits of mantissa as subnormals of an f16 have.
        const u32 small = bits_as<u32>(bits_as<float>(magnitude) + 0.5f) - bits_as<u32>(0.5f);
        const u32 rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
        const u32 normal = (rounded >> 13) - (112 << 10);
        const u32 finite = magnitude < 113u << 23 ? small : normal;
        return (u16)((magnitude >= 143u << 23 ? 0x7c00 : finite) | sign);
    }
#endif
};

// 8-bit floats of OFP8. `SHIFT` is how many bits of an f32's mantissa they lack, `BIAS` by how much
// an f32's exponent is larger, `LARGEST` the largest number as an f32's bits. Larger numbers and
// infinities become that one.
template <u32 SHIFT, u32 BIAS, u32 LARGEST> struct Float8 {
    using Bits = u8;
    using Lane = u8;
    using Wide = float;
    static RR_INLINE u8 narrow(float x) {
        const u32 sign = (bits_as<u32>(x) & SIGN) >> 24;
        const u32 magnitude = bits_as<u32>(x) & ~SIGN;
        const u32 number = magnitude < LARGEST ? magnitude : LARGEST;
        // Near 2^SHIFT times its power of two an f32 lacks the same bits, so that adding this
        // rounds. All subnormals have the power of the least normal number.
        const u32 least = (BIAS + 1) << 23;
        const u32 power = number & INFINITE, unit = power < least ? least : power;
        const u32 large = unit + (SHIFT << 23);
        const u32 mantissa = bits_as<u32>(bits_as<float>(number) + bits_as<float>(large)) - large;
        const u32 rounded = mantissa + ((unit - least) >> SHIFT);
        return (u8)((is_nan(x) ? 0x7f : rounded) | sign);
    }
};

struct E4M3 : Float8<20, 120, 0x43e00000> {
    static RR_INLINE float widen(u8 bits) {
        // The exponent moves to its place in an f32, where it is too small by the difference of the
        // biases.
        const u32 small = (u32)((i32)((u32)bits << 24) >> 4) & 0x87f00000;
        const float x = bits_as<float>(small) * 0x1p120f;
        return __builtin_fabsf(x) == 480.0f ? __builtin_nanf("") : x;
    }
};

// An E5M2 is the upper half of an f16.
struct E5M2 : Float8<21, 112, 0x47600000> {
    static RR_INLINE float widen(u8 bits) { return F16::widen((u16)(bits << 8)); }
};
