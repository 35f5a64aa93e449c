// The kernels on the host, for the tests: reads calls from its input, makes every thread of the
// grid in turn, and writes the memory back. A call is twelve 64-bit numbers (see `Call`), the
// kernel's name in 32 bytes, the scalar in 16, where sources and outputs begin, and the memory.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../../../kernels/ringreduce.cu"

Place host_place;

struct Call {
    u64 sources, outs, at_sources, at_outs, count, last, has_scalar, stop;
    u64 threads, blocks, rows, bytes;
    char name[32];
    unsigned char scalar[16];
};

using Fold = void (*)(
    const void *const *, u32, void *const *, u32, u64, u64, u64, u32, const void *, const u32 *,
    u32 *
);

// Conversions, which no kernel exports: a number to the type of its arithmetic, and back.
template <class F>
static void widen(
    const void *const *from, u32, void *const *to, u32, u64, u64, u64 count, u32, const void *,
    const u32 *, u32 *
) {
    for (u64 i = 0; i < count; i++) {
        ((float *)to[0])[i] = F::widen(((const typename F::Bits *)from[0])[i]);
    }
}

template <class F>
static void narrow(
    const void *const *from, u32, void *const *to, u32, u64, u64, u64 count, u32, const void *,
    const u32 *, u32 *
) {
    for (u64 i = 0; i < count; i++) {
        ((typename F::Bits *)to[0])[i] = F::narrow(((const float *)from[0])[i]);
    }
}

#define RR_ENTRY(TYPE, OP, FORMAT, ARITHMETIC, VECTORS)                                            \
    {"rr_fold_" #TYPE "_" #OP, rr_fold_##TYPE##_##OP},
#define RR_BOTH_WAYS(TYPE, FORMAT)                                                                 \
    {"widen_" #TYPE, widen<FORMAT>}, {"narrow_" #TYPE, narrow<FORMAT>},

static const struct {
    const char *name;
    Fold fold;
} KERNELS[] = {
    RR_FOLDS(RR_ENTRY)        //
    RR_BOTH_WAYS(f16, F16)    //
    RR_BOTH_WAYS(bf16, BF16)  //
    RR_BOTH_WAYS(e4m3, E4M3)  //
    RR_BOTH_WAYS(e5m2, E5M2)  //
};

// Runs all threads, one after the other.
template <class Body> static void grid(const Call &call, Body body) {
    const u32 threads = (u32)call.threads, blocks = (u32)call.blocks, rows = (u32)call.rows;
    for (u32 row = 0; row < rows; row++) {
        for (u32 block = 0; block < blocks; block++) {
            for (u32 thread = 0; thread < threads; thread++) {
                host_place = {thread, threads, block, blocks, row, rows};
                body();
            }
        }
    }
}

static bool make(const Call &call, void **sources, void **outs) {
    const u32 word = (u32)call.stop - 1;
    const u32 *const stop = call.stop ? &word : nullptr;
    u32 said = 0, *const works = call.stop ? &said : nullptr;
    if (strcmp(call.name, "rr_move") == 0) {
        // The only output is the list, which has the lengths; sources and targets of the moves
        // alternate in the list of sources.
        Move *list = (Move *)outs[0];
        for (u64 i = 0; i < call.sources / 2; i++) {
            list[i].from = sources[2 * i];
            list[i].to = sources[2 * i + 1];
        }
        grid(call, [&] { rr_move(list, (u32)(call.sources / 2), stop, works); });
        return true;
    }
    for (const auto &kernel : KERNELS) {
        if (strcmp(call.name, kernel.name) == 0) {
            grid(call, [&] {
                kernel.fold(
                    sources, (u32)call.sources, outs, (u32)call.outs, call.at_sources,
                    call.at_outs, call.count, (u32)call.last,
                    call.has_scalar ? call.scalar : nullptr, stop, works
                );
            });
            return true;
        }
    }
    return false;
}

template <class T> static T *array(u64 n) {
    // A cache line more than asked for, aligned to one.
    return (T *)aligned_alloc(64, (n * sizeof(T) / 64 + 1) * 64);
}

int main() {
    Call call;
    while (fread(&call, sizeof call, 1, stdin) == 1) {
        const u64 pointers = call.sources + call.outs;
        u64 *const starts = array<u64>(pointers);
        void **const table = array<void *>(pointers);
        unsigned char *const memory = array<unsigned char>(call.bytes);
        if (fread(starts, 8, pointers, stdin) != pointers ||
            fread(memory, 1, call.bytes, stdin) != call.bytes) {
            return 2;
        }
        for (u64 i = 0; i < pointers; i++) {
            table[i] = memory + starts[i];
        }
        if (!make(call, table, table + call.sources)) {
            fprintf(stderr, "no kernel %s\n", call.name);
            return 3;
        }
        fwrite(memory, 1, call.bytes, stdout);
        fflush(stdout);
        free(starts);
        free(table);
        free(memory);
    }
    return 0;
}
