// A yardstick for all_reduce: simple programs of one algorithm each, without checks of their peers,
// errors or types. RANKS, then shm or tcp, then the arguments of loop.h. shm: lines that everybody
// reads (64 bytes at most), else a staged two-shot in blocks: every rank copies its block into its
// stage, folds its own part of all stages, and copies the other parts of the result. tcp: a plain
// ring on non-blocking sockets.
#define _GNU_SOURCE
#include "loop.h"
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>

enum { MAX_RANKS = 64, SMALL = 16, BLOCK = 32768, DEPTH = 4, WRITE_BYTES = 262144 };

typedef struct {
    _Alignas(128) _Atomic unsigned long sequence;
    float floats[SMALL];
} Line;
// The numbers of blocks that a rank has staged, folded, and taken.
typedef struct {
    _Alignas(128) _Atomic unsigned long staged, folded;
    _Alignas(128) _Atomic unsigned long taken;
} Progress;
static struct {
    Line lines[2][MAX_RANKS];
    Progress progress[MAX_RANKS];
    _Atomic int ports[MAX_RANKS];
    _Alignas(4096) float stages[MAX_RANKS][DEPTH][BLOCK], results[MAX_RANKS][DEPTH][BLOCK];
} *shared;

static void wait_for(_Atomic unsigned long *word, unsigned long least) {
    for (int polls = 0; atomic_load_explicit(word, memory_order_acquire) < least; polls++)
        if (polls < 60)
            __builtin_ia32_pause();
        else
            sched_yield();
}

static void publish(_Atomic unsigned long *word, unsigned long value) {
    atomic_store_explicit(word, value, memory_order_release);
}

static unsigned long sequence; // Of exchanges of lines.

// Writes this rank's line, and gives those of all ranks, which may come later.
static Line *exchange(const void *mine, size_t bytes) {
    Line *lines = shared->lines[++sequence & 1];
    memcpy(lines[rank].floats, mine, bytes);
    publish(&lines[rank].sequence, sequence);
    return lines;
}

static double largest(double mine) {
    Line *lines = exchange(&mine, sizeof mine);
    for (int r = 0; r < ranks; r++) {
        double other;
        wait_for(&lines[r].sequence, sequence);
        memcpy(&other, lines[r].floats, sizeof other);
        if (other > mine) mine = other;
    }
    return mine;
}

static void add_small(float *buf, size_t count) {
    Line *lines = exchange(buf, count * sizeof *buf);
    memset(buf, 0, count * sizeof *buf);
    for (int r = 0; r < ranks; r++) {
        wait_for(&lines[r].sequence, sequence);
        for (size_t at = 0; at < count; at++) buf[at] += lines[r].floats[at];
    }
}

#define FOR_OTHERS(r)                                                                              \
    for (int k = 1, r = (rank + 1) % ranks; k < ranks; k++, r = (rank + k) % ranks)

// Adds the part of block `b` that is this rank's, in pieces that stay in the nearest cache.
static void fold(unsigned long b, float *buf, size_t size) {
    float *sum = shared->results[rank][b % DEPTH];
    size_t to = size * (rank + 1) / ranks;
    for (size_t at = size * rank / ranks, length; at < to; at += length) {
        length = to - at < 1024 ? to - at : 1024;
        memcpy(sum + at, shared->stages[0][b % DEPTH] + at, length * sizeof *sum);
        for (int r = 1; r < ranks; r++) {
            float *stage = shared->stages[r][b % DEPTH];
            for (size_t i = at; i < at + length; i++) sum[i] += stage[i];
        }
        memcpy(buf + at, sum + at, length * sizeof *sum);
    }
}

static void add_staged(float *buf, size_t count) {
    static unsigned long before; // Blocks of earlier calls.
    unsigned long staged = before, folded = before, taken = before, b;
    unsigned long end = before + (count + BLOCK - 1) / BLOCK;
    Progress *all = shared->progress;
#define FIRST ((b - before) * BLOCK)
#define SIZE (count - FIRST < BLOCK ? count - FIRST : BLOCK)
    for (; taken < end; publish(&all[rank].taken, ++taken)) {
        for (; staged < end && staged < taken + DEPTH; publish(&all[rank].staged, ++staged)) {
            b = staged;
            FOR_OTHERS(r) if (b >= DEPTH) wait_for(&all[r].folded, b - DEPTH + 1);
            memcpy(shared->stages[rank][b % DEPTH], buf + FIRST, SIZE * sizeof *buf);
        }
        for (; folded < staged; publish(&all[rank].folded, ++folded)) {
            b = folded;
            FOR_OTHERS(r) {
                wait_for(&all[r].staged, b + 1);
                if (b >= DEPTH) wait_for(&all[r].taken, b - DEPTH + 1);
            }
            fold(b, buf + FIRST, SIZE);
        }
        b = taken;
        FOR_OTHERS(r) {
            size_t from = SIZE * r / ranks, to = SIZE * (r + 1) / ranks;
            wait_for(&all[r].folded, b + 1);
            memcpy(buf + FIRST + from, shared->results[r][b % DEPTH] + from,
                   (to - from) * sizeof *buf);
        }
    }
    before = end;
}

static int next_rank = -1, last_rank; // The sockets to the next and from the previous rank.

static void connect_ring(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    next_rank = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&address, length) || listen(listener, 1) ||
        getsockname(listener, (void *)&address, &length))
        exit(4);
    shared->ports[rank] = address.sin_port;
    while ((address.sin_port = shared->ports[(rank + 1) % ranks]) == 0) sched_yield();
    setsockopt(next_rank, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(next_rank, (void *)&address, length) || (last_rank = accept(listener, 0, 0)) < 0)
        exit(4);
    setsockopt(last_rank, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

// Sends `sent` floats and receives `received`, which are added to `to` or replace it.
static void transfer(float *from, size_t sent, float *to, size_t received, int add) {
    static float arrived[WRITE_BYTES / sizeof(float)];
    size_t out = sent * sizeof *from, in = received * sizeof *to, partial = 0;
    for (int idle = 0; out || in;) {
        size_t room = add ? sizeof arrived - partial : in;
        ssize_t wrote = 0, got = 0;
        if (out)
            wrote = send(next_rank, from, out < WRITE_BYTES ? out : WRITE_BYTES,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (wrote > 0) from = (void *)((char *)from + wrote), out -= wrote;
        if (in && (got = recv(last_rank, (char *)(add ? arrived : to) + partial,
                              in < room ? in : room, MSG_DONTWAIT)) == 0)
            exit(5);
        if (got > 0 && add) {
            size_t whole = (partial + got) / sizeof *to;
            for (size_t i = 0; i < whole; i++) *to++ += arrived[i];
            partial = (partial + got) % sizeof *to;
            memcpy(arrived, arrived + whole, partial);
        } else if (got > 0) {
            to = (void *)((char *)to + got);
        }
        if (got > 0) in -= got;
        idle = wrote > 0 || got > 0 ? 0 : idle + 1;
        if (idle > (ranks == 2 ? 20000 : 4)) {
            struct pollfd ready[2] = {{last_rank, in ? POLLIN : 0, 0},
                                      {next_rank, out ? POLLOUT : 0, 0}};
            poll(ready, 2, 100), idle = 0;
        } else if (idle && ranks > 2) {
            sched_yield();
        }
    }
}

static void add_over_ring(float *buf, size_t count) {
    static float messages[2][256];
    if (count <= 256) { // Every rank's whole buffer goes around.
        memcpy(messages[0], buf, count * sizeof *buf);
        for (int step = 0; step < ranks - 1; step++) {
            float *arrived = messages[(step + 1) % 2];
            transfer(messages[step % 2], count, arrived, count, 0);
            for (size_t i = 0; i < count; i++) buf[i] += arrived[i];
        }
        return;
    }
    for (int step = 0; step < 2 * (ranks - 1); step++) {
        int give = (rank - step + 2 * ranks) % ranks, take = (give + ranks - 1) % ranks;
        size_t from = count * give / ranks, to = count * take / ranks;
        transfer(buf + from, count * (give + 1) / ranks - from, buf + to,
                 count * (take + 1) / ranks - to, step < ranks - 1);
    }
}

static void call(float *in, float *out, size_t count) {
    (void)in;
    if (ranks == 1) return;
    if (next_rank >= 0) return add_over_ring(out, count);
    if (count <= SMALL) return add_small(out, count);
    add_staged(out, count);
}

int main(int argc, char **argv) {
    shared = fork_ranks(argc, argv, sizeof *shared);
    if (argc < 4 || ranks > MAX_RANKS || strcmp(argv[3], "all_reduce") != 0) {
        fprintf(stderr, "RANKS (64 at most), shm or tcp, and all_reduce are needed\n");
        return 2;
    }
    if (strcmp(argv[2], "tcp") == 0) connect_ring();
    measure(argc - 2, argv + 2);
}
