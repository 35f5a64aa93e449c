// Small kernels that have one instruction or another in them. sample.ptx is made of it by
//   clang-16 -x cuda --cuda-device-only -nocudainc -nocudalib --cuda-gpu-arch=sm_70
//     -Xclang -target-feature -Xclang +ptx70 -std=c++17 -O3 -fno-strict-aliasing -S sample.cu -o sample.ptx
#define KERNEL extern "C" __attribute__((global)) void
#define DEVICE static __attribute__((device)) inline
typedef unsigned short u16;
typedef unsigned long long u64;

DEVICE u64 mine() {
    return __nvvm_read_ptx_sreg_tid_x()
           + __nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x();
}
DEVICE u64 all() { return __nvvm_read_ptx_sreg_nctaid_x() * __nvvm_read_ptx_sreg_ntid_x(); }
#define EACH(i, n) for (u64 i = mine(); i < n; i += all())

KERNEL add_f32(float *o, const float *a, const float *b, u64 n) { EACH(i, n) o[i] = a[i] + b[i]; }
KERNEL add_i8(signed char *o, const signed char *a, const signed char *b, u64 n) {
    EACH(i, n) o[i] = a[i] + b[i];
}

DEVICE float single(u16 h) {
    float f;
    asm("cvt.f32.f16 %0,%1;" : "=f"(f) : "h"(h));
    return f;
}
DEVICE u16 half(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0,%1;" : "=h"(h) : "f"(f));
    return h;
}
KERNEL halves(u16 *o, const u16 *a, const u16 *b, u64 n) {
    EACH(i, n) o[i] = half(single(a[i]) * 3.0f / single(b[i]));
}

KERNEL integers(int *o, const int *a, int d, u64 n) {
    EACH(i, n) {
        switch (a[i] & 7) {
        case 0: o[i] = a[i] / d; break;
        case 1: o[i] = __builtin_popcount(a[i]); break;
        case 2: o[i] = __builtin_clz(a[i]); break;
        case 3: o[i] = a[i] > d ? a[i] : d; break;
        case 4: o[i] = (int)(((long long)a[i] * d) >> 32); break;
        case 5: o[i] = __builtin_bswap32(a[i]); break;
        case 6: o[i] = (unsigned)a[i] % (unsigned)d; break;
        default: o[i] = a[i] >> (d & 31);
        }
    }
}

KERNEL doubles(double *o, const double *a, double d, u64 n) {
    EACH(i, n) o[i] = __builtin_fma(a[i], d, __builtin_sqrt(d)) / d + (double)(long long)a[i];
}

// Each thread takes its neighbour's word, and all are counted.
KERNEL neighbours(unsigned *o, unsigned *count, unsigned n) {
    __attribute__((shared)) static unsigned s[256];
    unsigned t = __nvvm_read_ptx_sreg_tid_x();
    s[t] = t * n;
    __syncthreads();
    o[mine()] = s[(t + 1) & 255];
    __nvvm_atom_add_gen_i((int *)count, 1);
}

// All blocks wait for the last.
KERNEL barrier(unsigned *arrived, unsigned blocks) {
    __nvvm_atom_add_gen_i((int *)arrived, 1);
    unsigned x;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0,[%1];" : "=r"(x) : "l"(arrived) : "memory");
    } while (x < blocks);
}

struct Pointers {
    const float *p[8];
    unsigned n;
};
KERNEL pointers(Pointers p, float *o, u64 n) {
    EACH(i, n) {
        float s = 0;
        for (unsigned r = 0; r < p.n; r++) s += p.p[r][i];
        o[i] = s;
    }
}

KERNEL vectors(const unsigned *a, unsigned *o) {
    unsigned x, y, z, w;
    const char *from = (const char *)a + mine() * 16;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "l"(from));
    asm volatile("st.global.v4.u32 [%0],{%1,%2,%3,%4};"
                 :: "l"((char *)o + mine() * 16), "r"(x + 1), "r"(y ^ 3), "r"(z >> 1), "r"(w * 5));
}
