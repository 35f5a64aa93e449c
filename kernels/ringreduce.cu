// The entry points, whose parameters kernels/README.md describes.
#include "fold.cuh"
#include "list.cuh"
#include "move.cuh"

#define RR_FOLD(TYPE, OP, FORMAT, ARITHMETIC, VECTORS)                                             \
    RR_KERNEL rr_fold_##TYPE##_##OP(                                                               \
        const void *const *sources, u32 n_sources, void *const *outs, u32 n_outs, u64 at_sources,  \
        u64 at_outs, u64 count, u32 last, const void *scalar, const u32 *stop, u32 *works          \
    ) {                                                                                            \
        RR_SHARED Held held;                                                                       \
        fold<FORMAT, ARITHMETIC, VECTORS>(                                                         \
            held, {sources, n_sources, at_sources, held.addresses},                                \
            {outs, n_outs, at_outs, held.addresses + HELD}, count, last, scalar, {stop, works}     \
        );                                                                                         \
    }

RR_FOLDS(RR_FOLD)

RR_KERNEL rr_move(const Move *list, u32 n, const u32 *stop, u32 *works) {
    RR_SHARED Moves moves;
    move_all(moves, list, n, {stop, works});
}
