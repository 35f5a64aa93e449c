// The list of all fold kernels: the names of type and operation, the format, the arithmetic, and
// how many vectors a thread loads at a time. Where operations do the same to the same bits, one
// kernel serves several types, as the table in kernels/README.md says. The number of vectors fills
// the memory's bus within the registers of a thread: four vectors, two where a vector becomes
// sixteen numbers, and fewer for operations whose speed matters less.
#define RR_UNSIGNED(X)                                                                             \
    X(u8, sum, Packed<u8>, Sum8, 4)                                                                \
    X(u16, sum, Packed<u16>, Sum16, 4)                                                             \
    X(u32, sum, U32, Sum, 4)                                                                       \
    X(u64, sum, U64, Sum, 4)                                                                       \
    RR_INTEGER(X, u8, U8)                                                                          \
    RR_INTEGER(X, u16, U16)                                                                        \
    RR_INTEGER(X, u32, U32)                                                                        \
    RR_INTEGER(X, u64, U64)                                                                        \
    X(u8, band, Packed<u8>, And, 4)                                                                \
    X(u8, bor, Packed<u8>, Or, 4)                                                                  \
    X(u8, bxor, Packed<u8>, Xor, 4)

#define RR_INTEGER(X, T, F)                                                                        \
    RR_SIGNED(X, T, F)                                                                             \
    X(T, prod, F, Prod, 1)                                                                         \
    X(T, premul_sum, F, PreMulSum, 1)                                                              \
    X(T, premul_step, F, PreMulStep, 1)                                                            \
    X(T, land, F, LogicalAnd, 1)                                                                   \
    X(T, lor, F, LogicalOr, 1)                                                                     \
    X(T, lxor, F, LogicalXor, 1)

#define RR_SIGNED(X, T, F)                                                                         \
    X(T, avg, F, Avg, 1)                                                                           \
    X(T, min, F, Min, 1)                                                                           \
    X(T, max, F, Max, 1)

#define RR_FLOAT(X, T, F, U)                                                                       \
    X(T, sum, F, Sum, U)                                                                           \
    X(T, avg, F, Avg, U)                                                                           \
    X(T, premul_sum, F, PreMulSum, U)                                                              \
    X(T, premul_step, F, PreMulStep, U / 2)                                                        \
    X(T, prod, F, Prod, U / 2)                                                                     \
    X(T, min, F, Min, U / 2)                                                                       \
    X(T, max, F, Max, U / 2)

#define RR_COMPLEX(X, T, F)                                                                        \
    X(T, prod, F, Prod, 1)                                                                         \
    X(T, premul_sum, F, PreMulSum, 1)                                                              \
    X(T, premul_step, F, PreMulStep, 1)

#define RR_LOCATED(X, T, F)                                                                        \
    X(T, minloc, F, MinLoc, 1)                                                                     \
    X(T, maxloc, F, MaxLoc, 1)

#define RR_FOLDS(X)                                                                                \
    RR_UNSIGNED(X)                                                                                 \
    RR_SIGNED(X, i8, I8)                                                                           \
    RR_SIGNED(X, i16, I16)                                                                         \
    RR_SIGNED(X, i32, I32)                                                                         \
    RR_SIGNED(X, i64, I64)                                                                         \
    RR_FLOAT(X, f32, F32, 4)                                                                       \
    RR_FLOAT(X, f64, F64, 4)                                                                       \
    RR_FLOAT(X, f16, F16, 4)                                                                       \
    RR_FLOAT(X, bf16, BF16, 4)                                                                     \
    RR_FLOAT(X, e4m3, E4M3, 2)                                                                     \
    RR_FLOAT(X, e5m2, E5M2, 2)                                                                     \
    RR_COMPLEX(X, c64, C64)                                                                        \
    RR_COMPLEX(X, c128, C128)                                                                      \
    RR_LOCATED(X, loc_f32, LocF32)                                                                 \
    RR_LOCATED(X, loc_f64, LocF64)                                                                 \
    RR_LOCATED(X, loc_i32, LocI32)                                                                 \
    RR_LOCATED(X, loc_i64, LocI64)
