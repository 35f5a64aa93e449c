// The entry points: what each is given is said in kernels/README.md.
#include "fold.cuh"
#include "list.cuh"
#include "move.cuh"

#define RR_FOLD(TYPE, OP, FORMAT, ARITHMETIC, VECTORS)                                             \
    RR_KERNEL rr_fold_##TYPE##_##OP(                                                               \
        const void *const *sources, u32 n_sources, void *const *outs, u32 n_outs, u64 at,          \
        u64 count, u32 last, const void *scalar                                                    \
    ) {                                                                                            \
        fold<FORMAT, ARITHMETIC, VECTORS>(                                                         \
            {sources, n_sources, at}, {outs, n_outs, at}, count, last, scalar                      \
        );                                                                                         \
    }

RR_FOLDS(RR_FOLD)

RR_KERNEL rr_move(const Move *list, u32 n) { move_all(list, n); }
