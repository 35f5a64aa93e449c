/* Each collective, started ones, messages, functions of the caller's, registered memory and
 * communicators made of others, at three ranks that are threads. */
#include "check.h"

enum { N = 1000, RANKS = 3 };

static int expected_sum(int i) {
  int sum = 0;
  for (int rank = 0; rank < RANKS; rank++) sum += rank * 10 + i;
  return sum;
}

static void fill(int *values, int count, int rank) {
  for (int i = 0; i < count; i++) values[i] = rank * 10 + i;
}

static void reducing(rr_comm *comm) {
  int rank = rr_rank(comm), mine[RANKS * N], result[RANKS * N];
  fill(mine, N, rank);
  OK(rr_all_reduce(comm, mine, result, N, RR_INT32, RR_SUM));
  for (int i = 0; i < N; i++) HOLDS(result[i] == expected_sum(i));
  OK(rr_all_reduce(comm, mine, mine, N, RR_INT32, RR_MAX));
  for (int i = 0; i < N; i++) HOLDS(mine[i] == (RANKS - 1) * 10 + i);

  fill(mine, N, rank);
  memset(result, 0, sizeof result);
  OK(rr_reduce(comm, mine, result, N, RR_INT32, RR_SUM, 1));
  for (int i = 0; i < N; i++) HOLDS(result[i] == (rank == 1 ? expected_sum(i) : 0));

  fill(mine, RANKS * N, rank);
  OK(rr_reduce_scatter(comm, mine, result, N, RR_INT32, RR_SUM));
  for (int i = 0; i < N; i++) HOLDS(result[i] == expected_sum(rank * N + i));
  OK(rr_reduce_scatter(comm, mine, mine + rank * N, N, RR_INT32, RR_SUM));
  for (int i = 0; i < N; i++) HOLDS(mine[rank * N + i] == expected_sum(rank * N + i));

  int one = 1, prefix = 7;
  OK(rr_scan(comm, &one, &prefix, 1, RR_INT32, RR_SUM));
  HOLDS(prefix == rank + 1);
  prefix = 7;
  OK(rr_exscan(comm, &one, &prefix, 1, RR_INT32, RR_SUM));
  HOLDS(prefix == (rank == 0 ? 7 : rank));
  double half = 0.5;
  OK(rr_all_reduce(comm, &half, &half, 1, RR_DOUBLE, RR_AVG));
  HOLDS(half == 0.5);
}

static void moving(rr_comm *comm) {
  int rank = rr_rank(comm), part[N], all[RANKS * N], other[RANKS * N];
  fill(part, N, rank);
  OK(rr_all_gather(comm, part, all, N, RR_INT32));
  for (int i = 0; i < RANKS * N; i++) HOLDS(all[i] == i / N * 10 + i % N);
  memset(all, 0, sizeof all);
  OK(rr_gather(comm, part, all, N, RR_INT32, 2));
  for (int i = 0; i < RANKS * N; i++) HOLDS(all[i] == (rank == 2 ? i / N * 10 + i % N : 0));
  OK(rr_scatter(comm, all, part, N, RR_INT32, 2));
  for (int i = 0; i < N; i++) HOLDS(part[i] == rank * 10 + i);
  if (rank == 0) part[0] = 77;
  OK(rr_broadcast(comm, part, part, N, RR_INT32, 0));
  HOLDS(part[0] == 77);
  for (int i = 0; i < RANKS * N; i++) all[i] = rank * 1000000 + i;
  OK(rr_all_to_all(comm, all, other, N, RR_INT32));
  for (int i = 0; i < RANKS * N; i++) HOLDS(other[i] == i / N * 1000000 + rank * N + i % N);
  size_t counts[RANKS] = {1, 0, 5};
  OK(rr_all_gather_v(comm, part, all, counts, RR_INT32));
  HOLDS(all[0] == 77 && all[1] == 77);
  size_t to[RANKS] = {2, 2, 2};
  OK(rr_all_to_all_v(comm, other, to, all, to, RR_INT32));
  HOLDS(all[4] == 2 * N + 2 * rank);
  OK(rr_barrier(comm));
}

static void started(rr_comm *comm) {
  enum { CALLS = 5 };
  static double values[RANKS][CALLS][N];
  rr_request *requests[CALLS];
  int rank = rr_rank(comm), done = 0;
  for (int call = 0; call < CALLS; call++) {
    double *mine = values[rank][call];
    for (int i = 0; i < N; i++) mine[i] = call + rank;
    rr_call it = {.size = sizeof it, .verb = RR_ALL_REDUCE, .sendbuff = mine, .recvbuff = mine, .count = N,
                  .datatype = RR_DOUBLE, .op = RR_SUM};
    OK(rr_start(comm, &it, &requests[call]));
  }
  while (!done) OK(rr_test(requests[0], &done));
  for (int call = 0; call < CALLS; call++) {
    OK(rr_wait(&requests[call], NULL));
    HOLDS(requests[call] == NULL);
    for (int i = 0; i < N; i++) HOLDS(values[rank][call][i] == RANKS * call + 3);
  }
}

static void messages(rr_comm *comm) {
  int rank = rr_rank(comm), next = (rank + 1) % RANKS, got[N], mine[N];
  rr_request *receive, *send;
  rr_message message;
  fill(mine, N, rank);
  OK(rr_irecv(comm, got, N, RR_INT32, RR_ANY, RR_ANY, &receive));
  OK(rr_isend(comm, mine, N, RR_INT32, next, 9, &send));
  OK(rr_wait(&receive, &message));
  OK(rr_wait(&send, NULL));
  HOLDS(message.peer == (rank + RANKS - 1) % RANKS && message.tag == 9);
  HOLDS(message.count == N && message.datatype == RR_INT32);
  HOLDS(got[1] == message.peer * 10 + 1);
  if (rank == 0) OK(rr_send(comm, mine, 3, RR_INT32, 1, 4));
  if (rank == 1) {
    OK(rr_probe(comm, 0, 4, &message));
    HOLDS(message.count == 3);
    OK(rr_recv(comm, got, message.count, message.datatype, 0, 4, NULL));
  }
}

enum { LETTERS = 150 };

static int letter_length(int letter) { return letter % 50 == 1 ? 20000 : letter % 50; }

/* How many messages threads have claimed, and which of them have come. */
struct letters {
  rr_comm *comm;
  int claimed, came[LETTERS];
};

static void *receive_letters(void *argument) {
  struct letters *it = argument;
  while (__atomic_fetch_add(&it->claimed, 1, __ATOMIC_RELAXED) < LETTERS) {
    rr_message message;
    void *memory;
    OK(rr_recv_any(it->comm, &memory, RR_INT32, 0, 5, &message));
    int *got = memory, letter = message.count > 0 ? got[0] : 0;
    HOLDS(message.tag == 5 && message.count == (size_t)letter_length(letter));
    for (size_t i = 0; i < message.count; i++) HOLDS(got[i] == letter);
    __atomic_fetch_add(&it->came[letter], 1, __ATOMIC_RELAXED);
    free(memory);
  }
  return NULL;
}

/* Two threads receive messages of any length from one rank, with one tag. */
static void letters(rr_comm *comm) {
  static int mine[20000];
  if (rr_rank(comm) == 0)
    for (int letter = 0; letter < LETTERS; letter++) {
      int length = letter_length(letter);
      for (int i = 0; i < length; i++) mine[i] = letter;
      OK(rr_send(comm, mine, length, RR_INT32, 1, 5));
    }
  if (rr_rank(comm) != 1) return;
  struct letters all = {.comm = comm};
  pthread_t threads[2];
  for (int i = 0; i < 2; i++)
    HOLDS(pthread_create(&threads[i], NULL, receive_letters, &all) == 0);
  for (int i = 0; i < 2; i++) HOLDS(pthread_join(threads[i], NULL) == 0);
  /* Those without elements are counted as the first. */
  for (int letter = 0; letter < LETTERS; letter++)
    HOLDS(all.came[letter] == (letter == 0 ? LETTERS / 50 : letter % 50 != 0));
}

/* Keeps the larger sum of two members, and how often it was called. */
struct pair {
  int a, b;
};

static void larger(const void *left, void *inout, size_t count, void *context) {
  const struct pair *from = left;
  struct pair *to = inout;
  for (size_t i = 0; i < count; i++)
    if (from[i].a + from[i].b > to[i].a + to[i].b) to[i] = from[i];
  __atomic_fetch_add((int *)context, 1, __ATOMIC_RELAXED);
}

static void functions(rr_comm *comm) {
  /* Of all ranks: a rank may have nothing to combine. */
  static int calls;
  int rank = rr_rank(comm);
  struct pair pairs[RANKS * 10], part[10];
  for (int i = 0; i < RANKS * 10; i++) pairs[i] = (struct pair){rank, i};
  OK(rr_all_reduce_by(comm, pairs, 10, sizeof *pairs, RR_ANY_ORDER, "larger", larger, &calls));
  HOLDS(pairs[3].a == RANKS - 1 && pairs[3].b == 3);
  OK(rr_reduce_scatter_by(comm, pairs, part, 10, sizeof *pairs, RR_RANK_ORDER, "larger", larger,
                          &calls));
  HOLDS(part[0].b == rank * 10);
  OK(rr_barrier(comm));
  HOLDS(__atomic_load_n(&calls, __ATOMIC_RELAXED) > 0);
}

static void others(rr_comm *comm) {
  rr_comm *half, *twin;
  int rank = rr_rank(comm), sum = 1;
  OK(rr_split(comm, rank == 1 ? -1 : 5, -rank, &half));
  HOLDS((half == NULL) == (rank == 1));
  if (half != NULL) {
    HOLDS(rr_size(half) == 2 && rr_rank(half) == (rank == 0));
    OK(rr_all_reduce(half, &sum, &sum, 1, RR_INT32, RR_SUM));
    HOLDS(sum == 2);
  }
  OK(rr_close(half));
  int ends[] = {rr_size(comm) - 1, 0};
  if (rank == ends[0] || rank == ends[1]) {
    OK(rr_create_group(comm, ends, 2, 7, &half));
    HOLDS(rr_size(half) == 2 && rr_rank(half) == (rank == 0));
    sum = 1;
    OK(rr_all_reduce(half, &sum, &sum, 1, RR_INT32, RR_SUM));
    HOLDS(sum == 2);
    OK(rr_close(half));
  }
  OK(rr_duplicate(comm, &twin));
  OK(rr_barrier(twin));
  OK(rr_close(twin));
  void *memory;
  OK(rr_alloc(comm, N * sizeof(int), &memory));
  fill(memory, N, rank);
  OK(rr_all_reduce(comm, memory, memory, N, RR_INT32, RR_SUM));
  for (int i = 0; i < N; i++) HOLDS(((int *)memory)[i] == expected_sum(i));
  OK(rr_free(comm, memory));
  OK(rr_check(comm));
}

static void body(rr_comm *comm) {
  HOLDS(rr_size(comm) == RANKS && rr_local_size(comm) == RANKS);
  HOLDS(rr_local_rank(comm) == rr_rank(comm));
  reducing(comm);
  moving(comm);
  started(comm);
  messages(comm);
  letters(comm);
  functions(comm);
  others(comm);
  OK(rr_close(comm));
}

int main(void) {
  on_threads(RANKS, body);
  puts("collectives are right");
  return 0;
}
