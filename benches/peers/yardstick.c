// A yardstick for all_reduce: simple programs of one algorithm each, without checks of their peers,
// errors or types. RANKS, then shm or tcp or tcp:CONGESTION_CONTROL, then the arguments of loop.h.
// shm: lines that everybody reads (64 bytes at most; in two levels for more than 8 ranks), else a
// staged two-shot in blocks: every rank copies its block into its stage, folds its own part of all
// stages, and copies the other parts of the result. tcp: a plain ring on non-blocking sockets.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/socket.h>

static int rank, ranks;
static void call(const char *collective, float *in, float *out, size_t count);
static double largest(double mine);
static void barrier(void);
#include "loop.h"
#include "fork.h"

enum { MAX_RANKS = 64, GROUP = 8, SMALL = 16, BLOCK = 32768, DEPTH = 4, WRITE_BYTES = 262144 };

typedef struct {
    _Alignas(128) _Atomic unsigned long sequence;
    union {
        float floats[SMALL];
        double time;
    } mine;
} Line;
// The numbers of blocks that a rank has staged, folded, and taken.
typedef struct {
    _Alignas(128) _Atomic unsigned long staged, folded;
    _Alignas(128) _Atomic unsigned long taken;
} Progress;
typedef struct {
    Line timing[2][MAX_RANKS], flat[2][MAX_RANKS], leaders[2][MAX_RANKS / GROUP], root[2];
    Progress progress[MAX_RANKS];
    _Atomic int ports[MAX_RANKS];
    _Alignas(4096) float stages[MAX_RANKS][DEPTH][BLOCK], results[MAX_RANKS][DEPTH][BLOCK];
} Shared;
static Shared *shared;

static void wait_for(_Atomic unsigned long *word, unsigned long least) {
    for (int polls = 0; atomic_load_explicit(word, memory_order_acquire) < least; polls++)
        if (polls < 60)
            __builtin_ia32_pause();
        else
            sched_yield();
}

static void publish(Line *line, unsigned long sequence) {
    atomic_store_explicit(&line->sequence, sequence, memory_order_release);
}

static double largest(double mine) {
    static unsigned long sequence;
    Line *lines = shared->timing[++sequence & 1];
    lines[rank].mine.time = mine;
    publish(&lines[rank], sequence);
    for (int r = 0; r < ranks; r++) {
        wait_for(&lines[r].sequence, sequence);
        if (lines[r].mine.time > mine) mine = lines[r].mine.time;
    }
    return mine;
}

static void barrier(void) { largest(0); }

// Adds `lines` into `sum`.
static void add_lines(Line *lines, int count, unsigned long sequence, float *sum, size_t floats) {
    memset(sum, 0, floats * sizeof *sum);
    for (int i = 0; i < count; i++) {
        wait_for(&lines[i].sequence, sequence);
        for (size_t at = 0; at < floats; at++) sum[at] += lines[i].mine.floats[at];
    }
}

static void add_small(float *buf, size_t count) {
    static unsigned long sequence;
    int bank = ++sequence & 1, groups = (ranks + GROUP - 1) / GROUP;
    Line *lines = shared->flat[bank], *leaders = shared->leaders[bank], *root = &shared->root[bank];
    memcpy(lines[rank].mine.floats, buf, count * sizeof *buf);
    publish(&lines[rank], sequence);
    if (groups == 1) return add_lines(lines, ranks, sequence, buf, count);
    if (rank % GROUP == 0) {
        int members = ranks - rank < GROUP ? ranks - rank : GROUP;
        add_lines(lines + rank, members, sequence, leaders[rank / GROUP].mine.floats, count);
        publish(&leaders[rank / GROUP], sequence);
    }
    if (rank == 0) {
        add_lines(leaders, groups, sequence, root->mine.floats, count);
        publish(root, sequence);
    }
    wait_for(&root->sequence, sequence);
    memcpy(buf, root->mine.floats, count * sizeof *buf);
}

#define FOR_OTHERS(r)                                                                              \
    for (int k = 1, r = (rank + 1) % ranks; k < ranks; k++, r = (rank + k) % ranks)

static void add_staged(float *buf, size_t count) {
    static unsigned long before; // Blocks of earlier calls.
    size_t blocks = (count + BLOCK - 1) / BLOCK, staged = 0, folded = 0;
    Progress *mine = &shared->progress[rank];
    for (size_t taken = 0; taken < blocks; taken++) {
        for (; staged < blocks && staged < taken + DEPTH; staged++) {
            unsigned long b = before + staged;
            size_t first = staged * BLOCK, size = count - first < BLOCK ? count - first : BLOCK;
            FOR_OTHERS(r) if (b >= DEPTH) wait_for(&shared->progress[r].folded, b - DEPTH + 1);
            memcpy(shared->stages[rank][b % DEPTH], buf + first, size * sizeof *buf);
            atomic_store_explicit(&mine->staged, b + 1, memory_order_release);
        }
        for (; folded < staged; folded++) {
            unsigned long b = before + folded;
            size_t first = folded * BLOCK, size = count - first < BLOCK ? count - first : BLOCK;
            size_t from = size * rank / ranks, to = size * (rank + 1) / ranks;
            float *sum = shared->results[rank][b % DEPTH];
            FOR_OTHERS(r) {
                wait_for(&shared->progress[r].staged, b + 1);
                if (b >= DEPTH) wait_for(&shared->progress[r].taken, b - DEPTH + 1);
            }
            // In pieces that stay in the nearest cache while all ranks are added.
            for (size_t at = from; at < to; at += 1024) {
                size_t length = to - at < 1024 ? to - at : 1024;
                memcpy(sum + at, shared->stages[0][b % DEPTH] + at, length * sizeof *sum);
                for (int r = 1; r < ranks; r++) {
                    float *stage = shared->stages[r][b % DEPTH];
                    for (size_t i = at; i < at + length; i++) sum[i] += stage[i];
                }
                memcpy(buf + first + at, sum + at, length * sizeof *sum);
            }
            atomic_store_explicit(&mine->folded, b + 1, memory_order_release);
        }
        unsigned long b = before + taken;
        size_t first = taken * BLOCK, size = count - first < BLOCK ? count - first : BLOCK;
        FOR_OTHERS(r) {
            size_t from = size * r / ranks, to = size * (r + 1) / ranks;
            wait_for(&shared->progress[r].folded, b + 1);
            memcpy(buf + first + from, shared->results[r][b % DEPTH] + from,
                   (to - from) * sizeof *buf);
        }
        atomic_store_explicit(&mine->taken, b + 1, memory_order_release);
    }
    before += blocks;
}

static int next_rank = -1, last_rank; // The sockets to the next and from the previous rank.

static void connect_ring(const char *congestion) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&address, length) || listen(listener, 1) ||
        getsockname(listener, (void *)&address, &length))
        exit(4);
    shared->ports[rank] = address.sin_port;
    while ((address.sin_port = shared->ports[(rank + 1) % ranks]) == 0) sched_yield();
    next_rank = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(next_rank, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (*congestion &&
        setsockopt(next_rank, IPPROTO_TCP, TCP_CONGESTION, congestion, strlen(congestion)))
        perror(congestion), exit(4);
    if (connect(next_rank, (void *)&address, length) || (last_rank = accept(listener, 0, 0)) < 0)
        exit(4);
    setsockopt(last_rank, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

// Sends `sent` floats and receives `received`, which are added to `to` or replace it.
static void transfer(float *from, size_t sent, float *to, size_t received, int add) {
    static float arrived[WRITE_BYTES / sizeof(float)];
    size_t out = sent * sizeof *from, in = received * sizeof *to, partial = 0;
    for (int idle = 0; out || in;) {
        ssize_t wrote = 0, got = 0;
        if (out) {
            wrote = send(next_rank, from, out < WRITE_BYTES ? out : WRITE_BYTES,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
            if (wrote > 0) from = (void *)((char *)from + wrote), out -= wrote;
        }
        if (in) {
            size_t room = add ? sizeof arrived - partial : in;
            got = recv(last_rank, (char *)(add ? arrived : to) + partial, in < room ? in : room,
                       MSG_DONTWAIT);
            if (got == 0) exit(5);
        }
        if (got > 0 && add) {
            size_t whole = (partial + got) / sizeof *to;
            for (size_t i = 0; i < whole; i++) to[i] += arrived[i];
            partial = (partial + got) % sizeof *to;
            memcpy(arrived, arrived + whole, partial);
            to += whole, in -= got;
        } else if (got > 0) {
            to = (void *)((char *)to + got), in -= got;
        }
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

static void call(const char *collective, float *in, float *out, size_t count) {
    (void)collective, (void)in;
    if (ranks == 1) return;
    if (next_rank >= 0) return add_over_ring(out, count);
    if (count <= SMALL) return add_small(out, count);
    add_staged(out, count);
}

int main(int argc, char **argv) {
    shared = fork_ranks(argc, argv, sizeof *shared);
    if (argc < 4 || ranks > MAX_RANKS || !is(argv[3], "all_reduce")) {
        fprintf(stderr, "RANKS (64 at most), shm or tcp, and all_reduce are needed\n");
        return 2;
    }
    if (strncmp(argv[2], "tcp", 3) == 0) connect_ring(argv[2][3] == ':' ? argv[2] + 4 : "");
    measure(argc - 2, argv + 2);
    return 0;
}
