/* How communicators are made out of others, asked, aborted and ended. */
#include "check.h"

static void split(int rank, int ranks, ncclComm_t comm) {
  ncclComm_t half, none;
  OK(ncclCommSplit(comm, rank % 2, -rank, &half, NULL));
  int size, place, sum = rank, expected = 0;
  OK(ncclCommCount(half, &size));
  OK(ncclCommUserRank(half, &place));
  for (int other = rank % 2; other < ranks; other += 2) expected += other;
  HOLDS(size == (ranks + 1 - rank % 2) / 2);
  OK(ncclAllReduce(&sum, &sum, 1, ncclInt, ncclSum, half, NULL));
  HOLDS(sum == expected);
  OK(ncclCommDestroy(half));
  OK(ncclCommSplit(comm, rank == 0 ? NCCL_SPLIT_NOCOLOR : 3, 0, &none, NULL));
  HOLDS((none == NULL) == (rank == 0));
  OK(ncclCommDestroy(none));
}

/* The others go on without rank 1, which makes no call. */
static void shrink(int rank, int ranks, ncclComm_t comm) {
  int excluded[] = {1}, size, sum = 1;
  ncclComm_t left;
  if (rank == 1) return;
  OK(ncclCommShrink(comm, excluded, 1, &left, NULL, NCCL_SHRINK_DEFAULT));
  OK(ncclCommCount(left, &size));
  HOLDS(size == ranks - 1);
  OK(ncclAllReduce(&sum, &sum, 1, ncclInt, ncclSum, left, NULL));
  HOLDS(sum == ranks - 1);
  OK(ncclCommDestroy(left));
}

static ncclUniqueId growth;
static pthread_barrier_t all_are_here;

/* Ranks 0 to 2 have a communicator; rank 3 is new. */
static void grow(int rank, int ranks, ncclComm_t comm) {
  ncclComm_t old = NULL, grown;
  if (rank < ranks - 1) OK(ncclCommSplit(comm, 0, rank, &old, NULL));
  else OK(ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &old, NULL));
  if (rank == 0) OK(ncclCommGetUniqueId(old, &growth));
  pthread_barrier_wait(&all_are_here);
  if (rank == ranks - 1) OK(ncclCommGrow(NULL, ranks, &growth, rank, &grown, NULL));
  else OK(ncclCommGrow(old, ranks, rank == 0 ? &growth : NULL, -1, &grown, NULL));
  int sum = 1;
  OK(ncclAllReduce(&sum, &sum, 1, ncclInt, ncclSum, grown, NULL));
  HOLDS(sum == ranks);
  OK(ncclCommDestroy(grown));
  OK(ncclCommDestroy(old));
}

static void body(int rank, int ranks, ncclComm_t comm) {
  split(rank, ranks, comm);
  grow(rank, ranks, comm);
  int value = 1;
  uint64_t bytes = 1;
  OK(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  REFUSED(ncclInvalidUsage, "suspended",
          ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, NULL));
  OK(ncclCommResume(comm));
  REFUSED(ncclInvalidUsage, "not suspended", ncclCommResume(comm));
  OK(ncclCommMemStats(comm, ncclStatGpuMemTotal, &bytes));
  HOLDS(bytes == 0);
  OK(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, NULL));
  HOLDS(value == ranks);
  shrink(rank, ranks, comm);
  OK(ncclCommDestroy(comm));
}

static void poll_until(ncclComm_t comm, ncclResult_t wanted) {
  ncclResult_t state;
  do OK(ncclCommGetAsyncError(comm, &state));
  while (state == ncclInProgress);
  HOLDS(state == wanted);
}

/* Calls on a communicator that never blocks return at once. */
static void *without_blocking(void *argument) {
  struct rank *it = argument;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm;
  EXPECT(ncclInProgress,
         ncclCommInitRankConfig(&comm, it->ranks, it->id, it->rank, &config));
  poll_until(comm, ncclSuccess);
  static float values[MOST][1 << 18];
  float *mine = values[it->rank];
  for (int i = 0; i < 1 << 18; i++) mine[i] = 1;
  EXPECT(ncclInProgress, ncclAllReduce(mine, mine, 1 << 18, ncclFloat, ncclSum, comm, NULL));
  poll_until(comm, ncclSuccess);
  for (int i = 0; i < 1 << 18; i++) HOLDS(mine[i] == it->ranks);
  OK(ncclCommFinalize(comm));
  OK(ncclCommDestroy(comm));
  return NULL;
}

static ncclComm_t waiting;

/* Waits for a rank that never comes. */
static void *wait_for_ever(void *argument) {
  int value = 1;
  (void)argument;
  ncclResult_t result = ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, waiting, NULL);
  /* The abort may come before the call. */
  HOLDS(result == ncclRemoteError || result == ncclInvalidArgument);
  return NULL;
}

static void *look_and_abort(void *argument) {
  (void)argument;
  ncclResult_t state;
  OK(ncclCommGetAsyncError(waiting, &state));
  HOLDS(state == ncclSuccess);
  OK(ncclCommAbort(waiting));
  return NULL;
}

/* Any thread may ask for errors and abort while another one waits in a call. */
static void abort_from_another_thread(void) {
  ncclComm_t comms[2];
  pthread_t waits, aborts;
  OK(ncclCommInitAll(comms, 2, NULL));
  waiting = comms[0];
  HOLDS(pthread_create(&waits, NULL, wait_for_ever, NULL) == 0);
  HOLDS(pthread_create(&aborts, NULL, look_and_abort, NULL) == 0);
  HOLDS(pthread_join(waits, NULL) == 0 && pthread_join(aborts, NULL) == 0);
  int value = 1;
  REFUSED(ncclInvalidArgument, "destroyed",
          ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comms[0], NULL));
  /* The data that rank 0 sent before its end may suffice for one call. */
  ncclResult_t state = ncclSuccess;
  for (int call = 0; call < 2 && state == ncclSuccess; call++)
    state = ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comms[1], NULL);
  HOLDS(state == ncclRemoteError && strstr(ncclGetLastError(NULL), "rank 0") != NULL);
  OK(ncclCommGetAsyncError(comms[1], &state));
  HOLDS(state == ncclRemoteError);
  OK(ncclCommDestroy(comms[1]));
}

/* A communicator whose rank 1 never comes. */
static void abort_while_it_starts(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm;
  ncclUniqueId id;
  ncclResult_t state;
  OK(ncclGetUniqueId(&id));
  EXPECT(ncclInProgress, ncclCommInitRankConfig(&comm, 2, id, 0, &config));
  OK(ncclCommGetAsyncError(comm, &state));
  HOLDS(state == ncclInProgress);
  REFUSED(ncclInvalidArgument, "is being made", ncclCommDestroy(comm));
  OK(ncclCommAbort(comm));
  OK(ncclCommGetAsyncError(comm, &state));
  HOLDS(state == ncclInvalidArgument);
}

static void *finalize(void *comm) {
  OK(ncclCommFinalize(comm));
  return NULL;
}

/* Any thread may ask while another one waits for the calls that were started. */
static void *ask_while_another_thread_waits(void *argument) {
  struct rank *it = argument;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm;
  EXPECT(ncclInProgress, ncclCommInitRankConfig(&comm, it->ranks, it->id, it->rank, &config));
  poll_until(comm, ncclSuccess);
  static int value[2] = {1, 1};
  pthread_t thread;
  ncclResult_t state;
  if (it->rank == 0) {
    EXPECT(ncclInProgress, ncclAllReduce(value, value, 1, ncclInt, ncclSum, comm, NULL));
    HOLDS(pthread_create(&thread, NULL, finalize, comm) == 0);
    for (int look = 0; look < 1000; look++) {
      OK(ncclCommGetAsyncError(comm, &state));
      HOLDS(state == ncclInProgress);
    }
  }
  pthread_barrier_wait(&all_are_here);
  if (it->rank == 1) {
    EXPECT(ncclInProgress, ncclAllReduce(value + 1, value + 1, 1, ncclInt, ncclSum, comm, NULL));
  } else {
    HOLDS(pthread_join(thread, NULL) == 0);
  }
  poll_until(comm, ncclSuccess);
  HOLDS(value[it->rank] == 2);
  OK(ncclCommDestroy(comm));
  return NULL;
}

/* Two ranks that are threads, with communicators of their own. */
static void two_threads(void *(*body)(void *)) {
  pthread_t threads[2];
  struct rank of[2];
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  for (int rank = 0; rank < 2; rank++) {
    of[rank] = (struct rank){rank, 2, id, NULL};
    HOLDS(pthread_create(&threads[rank], NULL, body, &of[rank]) == 0);
  }
  for (int rank = 0; rank < 2; rank++) HOLDS(pthread_join(threads[rank], NULL) == 0);
}

int main(void) {
  HOLDS(pthread_barrier_init(&all_are_here, NULL, 4) == 0);
  on_threads(4, body);
  two_threads(without_blocking);
  HOLDS(pthread_barrier_init(&all_are_here, NULL, 2) == 0);
  two_threads(ask_while_another_thread_waits);
  abort_from_another_thread();
  abort_while_it_starts();
  puts("communicators are right");
  return 0;
}
