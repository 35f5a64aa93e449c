// The arithmetic of a reduction: two elements combined, a contribution before that, and the result
// at the end. The bits are those of the library's kernels for the host (src/kernel/scalar.rs). A
// product and a sum must not be contracted into one rounding: see the flags in kernels/build.
#pragma once

#include "number.cuh"

template <class I> RR_INLINE I sum(I a, I b) { return (I)((u64)a + (u64)b); }
RR_INLINE float sum(float a, float b) { return a + b; }
RR_INLINE double sum(double a, double b) { return a + b; }
template <class T> RR_INLINE Complex<T> sum(Complex<T> a, Complex<T> b) {
    return {a.re + b.re, a.im + b.im};
}

template <class I> RR_INLINE I prod(I a, I b) { return (I)((u64)a * (u64)b); }
RR_INLINE float prod(float a, float b) { return a * b; }
RR_INLINE double prod(double a, double b) { return a * b; }
template <class T> RR_INLINE Complex<T> prod(Complex<T> a, Complex<T> b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

template <class T> struct BitsOf {};
template <> struct BitsOf<float> { using Type = u32; };
template <> struct BitsOf<double> { using Type = u64; };

// Comparisons in both directions differ for zeros and NaN only. The union of their bits is -0 if
// either number is, and a NaN if either is. The GPU's own minimum would drop the NaN.
template <class T> RR_INLINE T least_float(T a, T b) {
    using B = typename BitsOf<T>::Type;
    return bits_as<T>((B)(bits_as<B>(a < b ? a : b) | bits_as<B>(b < a ? b : a)));
}
// The intersection of their bits is +0 if either number is.
template <class T> RR_INLINE T most_float(T a, T b) {
    using B = typename BitsOf<T>::Type;
    const B both = bits_as<B>(a > b ? a : b) & bits_as<B>(b > a ? b : a);
    const B nan = ~(B)0 >> 1;
    return bits_as<T>(is_nan(a) || is_nan(b) ? nan : both);
}

template <class I> RR_INLINE I least(I a, I b) { return a < b ? a : b; }
RR_INLINE float least(float a, float b) { return least_float(a, b); }
RR_INLINE double least(double a, double b) { return least_float(a, b); }

template <class I> RR_INLINE I most(I a, I b) { return a > b ? a : b; }
RR_INLINE float most(float a, float b) { return most_float(a, b); }
RR_INLINE double most(double a, double b) { return most_float(a, b); }

// Rounds towards zero, by magnitudes: 32 bits divide much faster than 64.
template <class I> RR_INLINE I over(I a, u32 world) {
    if constexpr (sizeof(I) == 8) {
        const u64 magnitude = a < 0 ? 0 - (u64)a : (u64)a;
        const u64 quotient = magnitude / world;
        return (I)(a < 0 ? 0 - quotient : quotient);
    } else {
        const u32 magnitude = a < 0 ? 0 - (u32)a : (u32)a;
        const u32 quotient = magnitude / world;
        return (I)(a < 0 ? 0 - quotient : quotient);
    }
}
RR_INLINE float over(float a, u32 world) { return a / (float)world; }
RR_INLINE double over(double a, u32 world) { return a / (double)world; }

template <class I> RR_INLINE bool not_a_number(I) { return false; }
RR_INLINE bool not_a_number(float a) { return is_nan(a); }
RR_INLINE bool not_a_number(double a) { return is_nan(a); }

// The order of located values: a NaN is first, then the value decides, then the lower index, then
// the lesser bits of the value.
template <class V, class I>
RR_INLINE bool first_of(Located<V, I> a, Located<V, I> b, bool less, bool more) {
    const bool a_nan = not_a_number(a.value), b_nan = not_a_number(b.value);
    const bool lower = a.index < b.index ||
                       (a.index == b.index && bits_as<I>(a.value) <= bits_as<I>(b.value));
    // Of two NaN neither is less.
    const bool by_value = less != more ? less : lower;
    return a_nan == b_nan ? by_value : a_nan;
}

// The parameters of an operation.
template <class F> struct Given {
    typename F::Wide scalar;
    // The world size if these are the last contributions, else 0.
    u32 last;
};

// An operation. `first` and `other` convert contributions before they are combined; `finish`
// converts the result where `finishes` is true.
struct Plain {
    static constexpr bool SCALED = false;
    template <class F>
    static RR_INLINE typename F::Wide first(typename F::Wide a, const Given<F> &) {
        return a;
    }
    template <class F>
    static RR_INLINE typename F::Wide other(typename F::Wide a, const Given<F> &) {
        return a;
    }
    template <class F> static RR_INLINE bool finishes(const Given<F> &) { return false; }
    template <class F>
    static RR_INLINE typename F::Wide finish(typename F::Wide a, const Given<F> &) {
        return a;
    }
};

#define RR_OP(NAME, BASE, RESULT)                                                                  \
    struct NAME : BASE {                                                                           \
        template <class W> static RR_INLINE W combine(W a, W b) { return RESULT; }                 \
    };

RR_OP(Sum, Plain, sum(a, b))
RR_OP(Prod, Plain, prod(a, b))
RR_OP(Min, Plain, least(a, b))
RR_OP(Max, Plain, most(a, b))
RR_OP(And, Plain, a & b)
RR_OP(Or, Plain, a | b)
RR_OP(Xor, Plain, a ^ b)
RR_OP(MinLoc, Plain, first_of(a, b, a.value < b.value, a.value > b.value) ? a : b)
RR_OP(MaxLoc, Plain, first_of(a, b, a.value > b.value, a.value < b.value) ? a : b)

// Sums of elements side by side, in which no carry leaves an element.
template <u32 TOP> RR_INLINE u32 sum_packed(u32 a, u32 b) {
    return ((a & ~TOP) + (b & ~TOP)) ^ ((a ^ b) & TOP);
}
RR_OP(Sum8, Plain, sum_packed<0x80808080>(a, b))
RR_OP(Sum16, Plain, sum_packed<0x80008000>(a, b))

struct Avg : Sum {
    template <class F> static RR_INLINE bool finishes(const Given<F> &given) {
        return given.last != 0;
    }
    template <class F>
    static RR_INLINE typename F::Wide finish(typename F::Wide a, const Given<F> &given) {
        return over(a, given.last);
    }
};

// The sum of contributions that are each multiplied by the scalar.
struct PreMulSum : Sum {
    static constexpr bool SCALED = true;
    template <class F>
    static RR_INLINE typename F::Wide first(typename F::Wide a, const Given<F> &given) {
        return prod(a, given.scalar);
    }
    template <class F>
    static RR_INLINE typename F::Wide other(typename F::Wide a, const Given<F> &given) {
        return prod(a, given.scalar);
    }
};

// A step of a ring: the first source is the sum so far; the other is multiplied and rounded, as the
// contribution of the first rank was.
struct PreMulStep : Sum {
    static constexpr bool SCALED = true;
    template <class F>
    static RR_INLINE typename F::Wide other(typename F::Wide a, const Given<F> &given) {
        return F::widen(F::narrow(prod(a, given.scalar)));
    }
};

// Truth values of any type of this size. The scalar is 1 in that type, and its bits tell integers
// from floats, whose sign does not count.
struct Logical : Plain {
    static constexpr bool SCALED = true;
    template <class F>
    static RR_INLINE typename F::Wide first(typename F::Wide a, const Given<F> &given) {
        using W = typename F::Wide;
        const W all = (W)~(W)0;
        return (a & (given.scalar == 1 ? all : (W)(all >> 1))) != 0;
    }
    template <class F>
    static RR_INLINE typename F::Wide other(typename F::Wide a, const Given<F> &given) {
        return first<F>(a, given);
    }
    template <class F> static RR_INLINE bool finishes(const Given<F> &) { return true; }
    template <class F>
    static RR_INLINE typename F::Wide finish(typename F::Wide a, const Given<F> &given) {
        return a != 0 ? given.scalar : 0;
    }
};

RR_OP(LogicalAnd, Logical, a & b)
RR_OP(LogicalOr, Logical, a | b)
RR_OP(LogicalXor, Logical, a ^ b)
