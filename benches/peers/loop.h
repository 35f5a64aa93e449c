// The measuring loop of the drivers in C and C++. A driver includes this file after it has defined
//   static int rank, ranks;
//   static void call(const char *collective, float *in, float *out, size_t count);
//   static double largest(double);   the largest value of all ranks
//   static void barrier(void);
// and calls measure(argc, argv). `count` is the number of elements that each rank passes;
// all_reduce, broadcast and reduce are made in place, on `out`. Rank 0 prints lines `BYTES
// MICROSECONDS`: the mean of a batch of calls at the slowest rank. The loops of ours.rs and gloo.py
// are the same.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCHES = 3, WARM_UP_CALLS = 5 };
static const double MIN_BATCH_SECONDS = 0.004;
static double budget_seconds;
static int refill;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static float value(int of, size_t at) { return of + 1 + at % 7; }

static void fill(float *in, size_t count) {
    for (size_t i = 0; i < count; i++) in[i] = value(rank, i);
}

// The seconds that `calls` calls took this rank.
static double batch(const char *collective, float *in, float *out, size_t count, long calls) {
    double seconds = 0, start;
    barrier();
    if (!refill) {
        start = now();
        for (long i = 0; i < calls; i++) call(collective, in, out, count);
        return now() - start;
    }
    for (long i = 0; i < calls; i++) {
        fill(in, count);
        barrier();
        start = now();
        call(collective, in, out, count);
        seconds += now() - start;
    }
    return seconds;
}

static int is(const char *a, const char *b) { return strcmp(a, b) == 0; }

// Makes one call, and ends the job if an element is wrong.
static void check(const char *collective, float *in, float *out, size_t count) {
    size_t part = count / ranks, results = count;
    float sum = ranks * (ranks + 1) / 2;
    fill(in, count);
    call(collective, in, out, count);
    if (is(collective, "reduce") && rank != 0) return;
    if (is(collective, "reduce_scatter")) results = part;
    if (is(collective, "all_gather")) results = count * ranks;
    for (size_t i = 0; i < results; i++) {
        float right = sum + ranks * (float)(i % 7);
        if (is(collective, "reduce_scatter")) right = sum + ranks * (float)((rank * part + i) % 7);
        if (is(collective, "broadcast")) right = value(0, i);
        if (is(collective, "all_gather")) right = value(i / count, i % count);
        if (is(collective, "all_to_all")) right = value(i / part, rank * part + i % part);
        if (out[i] != right) {
            fprintf(stderr, "%s: rank %d element %zu of %zu is %g instead of %g\n", collective,
                    rank, i, results, out[i], right);
            exit(3);
        }
    }
}

static void measure_size(const char *collective, float *in, float *out, size_t bytes) {
    int in_place =
        is(collective, "all_reduce") || is(collective, "broadcast") || is(collective, "reduce");
    size_t part = in_place ? bytes / 4 : bytes / 4 / ranks;
    if (part == 0) part = 1;
    size_t count = in_place || is(collective, "all_gather") ? part : part * ranks;
    if (in_place) in = out;
    check(collective, in, out, count);
    batch(collective, in, out, count, WARM_UP_CALLS);
    double seconds;
    long calls = 1;
    while ((seconds = largest(batch(collective, in, out, count, calls))) < MIN_BATCH_SECONDS &&
           calls < 1 << 20)
        calls *= 4;
    double fit = budget_seconds / BATCHES / (seconds / calls);
    calls = fit < 1 ? 1 : fit > 1e6 ? 1000000 : (long)fit;
    for (int i = 0; i < BATCHES; i++) {
        double us = largest(batch(collective, in, out, count, calls)) / calls * 1e6;
        if (rank == 0) printf("%zu %.4f\n", bytes, us);
    }
    fflush(stdout);
}

// The arguments are COLLECTIVE BUDGET_SECONDS REFILL BYTES...
static void measure(int argc, char **argv) {
    size_t most = 4 * (size_t)ranks;
    for (int i = 4; i < argc; i++)
        if (strtoull(argv[i], 0, 10) > most) most = strtoull(argv[i], 0, 10);
    float *in = (float *)malloc(most), *out = (float *)malloc(most);
    if (argc < 5 || !in || !out) {
        fprintf(stderr,
                "COLLECTIVE BUDGET_SECONDS REFILL BYTES... are missing, or there is no memory\n");
        exit(2);
    }
    memset(out, 0, most);
    memset(in, 0, most);
    budget_seconds = atof(argv[2]);
    refill = atoi(argv[3]);
    for (int i = 4; i < argc; i++) measure_size(argv[1], in, out, strtoull(argv[i], 0, 10));
}
