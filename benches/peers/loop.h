// The measuring loop of the drivers in C and C++, which define what is declared here and call
// measure(argc, argv). Rank 0 prints lines `BYTES MICROSECONDS`: the mean of a batch of calls at the
// slowest rank. The loops of ours.rs and gloo.py are the same.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 3, WARM_UP_CALLS = 5 };
static const double MIN_BATCH_SECONDS = 0.004;
// timed_alone: a barrier comes before each call, and only the call is timed. A rank may leave a call
// with a root before others have entered it, so calls without barriers would overlap.
static int rank, ranks, refill, timed_alone;
static const char *collective;

// `count` is the number of elements that each rank passes; all_reduce, broadcast and reduce are
// made in place, on `out`.
static void call(float *in, float *out, size_t count);
// The largest value of all ranks, which is also the barrier of the loop.
static double largest(double mine);

static int is(const char *name) { return strcmp(collective, name) == 0; }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static float value(int of, size_t at) { return of + 1 + at % 7; }

static void fill(float *in, size_t count) {
    for (size_t i = 0; i < count; i++) in[i] = value(rank, i);
}

// The seconds that `calls` calls took the slowest rank.
static double batch(float *in, float *out, size_t count, long calls) {
    double seconds = 0, start = (largest(0), now());
    for (long i = 0; i < calls; i++) {
        if (refill) fill(in, count);
        if (timed_alone) largest(0), start = now();
        call(in, out, count);
        if (timed_alone) seconds += now() - start;
    }
    return largest(timed_alone ? seconds : now() - start);
}

// Makes one call, and ends the job if an element is wrong.
static void check(float *in, float *out, size_t count) {
    size_t part = count / ranks, results = count;
    fill(in, count);
    call(in, out, count);
    if (is("reduce") && rank != 0) return;
    if (is("reduce_scatter")) results = part;
    if (is("all_gather")) results = count * ranks;
    for (size_t i = 0; i < results; i++) {
        size_t summed = is("reduce_scatter") ? rank * part + i : i;
        float right = ranks * (ranks + 1) / 2 + ranks * (float)(summed % 7);
        if (is("broadcast")) right = value(0, i);
        if (is("all_gather")) right = value(i / count, i % count);
        if (is("all_to_all")) right = value(i / part, rank * part + i % part);
        if (out[i] == right) continue;
        fprintf(stderr, "rank %d: element %zu is %g instead of %g\n", rank, i, out[i], right);
        exit(3);
    }
}

static void measure_size(float *in, float *out, size_t bytes, double budget_seconds) {
    int in_place = is("all_reduce") || is("broadcast") || is("reduce");
    size_t part = in_place ? bytes / 4 : bytes / 4 / ranks;
    if (part == 0) part = 1;
    size_t count = in_place || is("all_gather") ? part : part * ranks;
    if (in_place) in = out;
    check(in, out, count);
    batch(in, out, count, WARM_UP_CALLS);
    double seconds;
    long calls = 1;
    while ((seconds = batch(in, out, count, calls)) < MIN_BATCH_SECONDS && calls < 1 << 20)
        calls *= 4;
    double fit = budget_seconds / BATCHES / (seconds / calls);
    calls = fit < 1 ? 1 : fit > 1e6 ? 1000000 : (long)fit;
    for (int i = 0; i < BATCHES; i++) {
        double us = batch(in, out, count, calls) / calls * 1e6;
        if (rank == 0) printf("%zu %.4f\n", bytes, us);
    }
    fflush(stdout);
}

// The arguments are COLLECTIVE BUDGET_SECONDS REFILL BYTES...
static void measure(int argc, char **argv) {
    size_t most = 4 * (size_t)ranks;
    for (int i = 4; i < argc; i++)
        if (strtoull(argv[i], 0, 10) > most) most = strtoull(argv[i], 0, 10);
    // Buffers begin at a cache line, as the tensors of PyTorch and the buffers of ours.rs do.
    void *in = 0, *out = 0;
    if (argc < 5 || posix_memalign(&in, 64, most) || posix_memalign(&out, 64, most)) {
        fprintf(stderr, "arguments are missing, or there is no memory\n");
        exit(2);
    }
    // The first touch of a page is not part of any measurement.
    memset(out, 0, most);
    memset(in, 0, most);
    collective = argv[1], refill = atoi(argv[3]);
    timed_alone = refill || is("broadcast") || is("reduce");
    for (int i = 4; i < argc; i++) measure_size((float *)in, (float *)out, strtoull(argv[i], 0, 10), atof(argv[2]));
}

// For libraries without a launcher: returns in each of argv[1] ranks, with zeroed memory that all
// share. The process that forks them ends them all if one fails, since the others would wait for it.
static inline void *fork_ranks(int argc, char **argv, size_t bytes) {
    ranks = argc > 1 ? atoi(argv[1]) : 0;
    void *shared = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ranks < 1 || shared == MAP_FAILED) {
        fprintf(stderr, "%s: RANKS is missing, or there is no shared memory\n", argv[0]);
        exit(2);
    }
    for (rank = 0; rank < ranks; rank++) {
        pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            return shared;
        }
        if (child < 0) {
            perror("fork");
            exit(1);
        }
    }
    for (int status; wait(&status) > 0;)
        if (status != 0) exit(1);
    exit(0);
}
