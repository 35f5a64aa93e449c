/* Every collective, message and reduction, in place and out of place, alone and in groups. */
#include "check.h"

#define N 37

static void collectives(int rank, int ranks, ncclComm_t comm) {
  int64_t mine[N], all[N * MOST], got[N * MOST];
  int sum = ranks * (ranks + 1) / 2, root = ranks - 1;
  for (int i = 0; i < N; i++) mine[i] = (rank + 1) * (i + 1);

  OK(ncclAllReduce(mine, got, N, ncclInt64, ncclSum, comm, NULL));
  for (int i = 0; i < N; i++) HOLDS(got[i] == sum * (i + 1));
  memcpy(got, mine, sizeof mine);
  OK(ncclAllReduce(got, got, N, ncclInt64, ncclMax, comm, NULL));
  for (int i = 0; i < N; i++) HOLDS(got[i] == ranks * (i + 1));

  /* Only the root has a buffer for the result. */
  memset(got, 0, sizeof got);
  OK(ncclReduce(mine, rank == root ? got : NULL, N, ncclInt64, ncclMin, root, comm, NULL));
  for (int i = 0; i < N; i++) HOLDS(got[i] == (rank == root ? i + 1 : 0));
  memcpy(got, mine, sizeof mine);
  OK(ncclReduce(got, got, N, ncclInt64, ncclSum, 0, comm, NULL));
  for (int i = 0; i < N && rank == 0; i++) HOLDS(got[i] == sum * (i + 1));

  memset(got, 0, sizeof got);
  OK(ncclBroadcast(rank == 0 ? mine : NULL, got, N, ncclInt64, 0, comm, NULL));
  for (int i = 0; i < N; i++) HOLDS(got[i] == i + 1);
  memcpy(got, mine, sizeof mine);
  OK(ncclBcast(got, N, ncclInt64, root, comm, NULL));
  for (int i = 0; i < N; i++) HOLDS(got[i] == ranks * (i + 1));

  OK(ncclAllGather(mine, all, N, ncclInt64, comm, NULL));
  for (int i = 0; i < N * ranks; i++) HOLDS(all[i] == (i / N + 1) * (i % N + 1));
  memset(got, 0, sizeof got);
  memcpy(got + rank * N, mine, sizeof mine);
  OK(ncclAllGather(got + rank * N, got, N, ncclInt64, comm, NULL));
  HOLDS(memcmp(got, all, sizeof mine * ranks) == 0);

  OK(ncclReduceScatter(all, got, N, ncclInt64, ncclSum, comm, NULL));
  for (int i = 0; i < N; i++) HOLDS(got[i] == ranks * (rank + 1) * (i + 1));
  memcpy(got, all, sizeof mine * ranks);
  OK(ncclReduceScatter(got, got + rank * N, N, ncclInt64, ncclSum, comm, NULL));
  for (int i = 0; i < N; i++) HOLDS(got[rank * N + i] == ranks * (rank + 1) * (i + 1));

  int64_t to[MOST], from[MOST];
  for (int i = 0; i < ranks; i++) to[i] = 10 * rank + i;
  OK(ncclAlltoAll(to, from, 1, ncclInt64, comm, NULL));
  for (int i = 0; i < ranks; i++) HOLDS(from[i] == 10 * i + rank);
  OK(ncclAlltoAll(to, to, 1, ncclInt64, comm, NULL));
  HOLDS(memcmp(to, from, sizeof(int64_t) * ranks) == 0);

  OK(ncclGather(mine, rank == root ? got : NULL, N, ncclInt64, root, comm, NULL));
  HOLDS(rank != root || memcmp(got, all, sizeof mine * ranks) == 0);
  memset(got, 0, sizeof got);
  memcpy(got + rank * N, mine, sizeof mine);
  OK(ncclGather(got + rank * N, got, N, ncclInt64, root, comm, NULL));
  HOLDS(rank != root || memcmp(got, all, sizeof mine * ranks) == 0);
  OK(ncclScatter(rank == root ? all : NULL, got, N, ncclInt64, root, comm, NULL));
  HOLDS(memcmp(got, mine, sizeof mine) == 0);
  memcpy(got, all, sizeof mine * ranks);
  OK(ncclScatter(got, got + rank * N, N, ncclInt64, root, comm, NULL));
  HOLDS(memcmp(got + rank * N, mine, sizeof mine) == 0);

  /* No elements are no work, and need no buffers. */
  OK(ncclAllReduce(NULL, NULL, 0, ncclInt64, ncclSum, comm, NULL));
}

static void reductions(int rank, int ranks, ncclComm_t comm) {
  static const size_t sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  char buffer[16 * 8];
  for (int type = 0; type < ncclNumTypes; type++) {
    for (int op = 0; op < ncclNumOps; op++) {
      memset(buffer, 0, sizeof buffer);
      OK(ncclAllReduce(buffer, buffer, 16, (ncclDataType_t)type, (ncclRedOp_t)op, comm, NULL));
      for (size_t i = 0; i < 16 * sizes[type]; i++) HOLDS(buffer[i] == 0);
    }
  }
  double half = 0.5, value = rank + 1;
  ncclRedOp_t scaled, other;
  OK(ncclRedOpCreatePreMulSum(&scaled, &half, ncclDouble, ncclScalarHostImmediate, comm));
  OK(ncclRedOpCreatePreMulSum(&other, &half, ncclDouble, ncclScalarDevice, comm));
  HOLDS(scaled >= ncclNumOps && other != scaled);
  OK(ncclAllReduce(&value, &value, 1, ncclDouble, scaled, comm, NULL));
  HOLDS(value == 0.25 * ranks * (ranks + 1));
  float single = 1;
  REFUSED(ncclInvalidArgument, "datatype is",
          ncclAllReduce(&single, &single, 1, ncclFloat, scaled, comm, NULL));
  OK(ncclRedOpDestroy(scaled, comm));
  REFUSED(ncclInvalidArgument, "never gave", ncclRedOpDestroy(scaled, comm));
  REFUSED(ncclInvalidArgument, "op is",
          ncclAllReduce(&value, &value, 1, ncclDouble, scaled, comm, NULL));
}

static void groups(int rank, int ranks, ncclComm_t comm) {
  int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  static const size_t lengths[] = {1, 1000, 1 << 20};
  for (int at = 0; at < 3; at++) {
    size_t length = lengths[at];
    float *sent = malloc(length * 4), *got = malloc(length * 4), *sum = malloc(length * 4);
    for (size_t i = 0; i < length; i++) sent[i] = rank + i % 7, sum[i] = 1;
    OK(ncclGroupStart());
    OK(ncclSend(sent, length, ncclFloat, next, comm, NULL));
    OK(ncclGroupStart());
    OK(ncclAllReduce(sum, sum, length, ncclFloat, ncclSum, comm, NULL));
    OK(ncclGroupEnd());
    OK(ncclRecv(got, length, ncclFloat, before, comm, NULL));
    OK(ncclGroupEnd());
    for (size_t i = 0; i < length; i++) HOLDS(got[i] == before + i % 7 && sum[i] == ranks);
    free(sent), free(got), free(sum);
  }
  /* Messages without a group, first one way and then the other. */
  int value = rank;
  if (rank == 0 && ranks > 1) {
    OK(ncclSend(&value, 1, ncclInt, 1, comm, NULL));
    OK(ncclRecv(&value, 1, ncclInt, 1, comm, NULL));
    HOLDS(value == 7);
  } else if (rank == 1) {
    OK(ncclRecv(&value, 1, ncclInt, 0, comm, NULL));
    HOLDS(value == 0);
    value = 7;
    OK(ncclSend(&value, 1, ncclInt, 0, comm, NULL));
  }
}

static void body(int rank, int ranks, ncclComm_t comm) {
  int asked;
  OK(ncclCommCount(comm, &asked));
  HOLDS(asked == ranks);
  OK(ncclCommUserRank(comm, &asked));
  HOLDS(asked == rank);
  collectives(rank, ranks, comm);
  reductions(rank, ranks, comm);
  groups(rank, ranks, comm);
  OK(ncclCommFinalize(comm));
  OK(ncclCommDestroy(comm));
}

/* One thread has all ranks, and groups make their calls as one. */
static void in_one_thread(int ranks) {
  ncclComm_t comms[MOST];
  int values[MOST];
  OK(ncclCommInitAll(comms, ranks, NULL));
  for (int turn = 0; turn < 50; turn++) {
    OK(ncclGroupStart());
    for (int rank = 0; rank < ranks; rank++) {
      values[rank] = rank + turn;
      OK(ncclAllReduce(&values[rank], &values[rank], 1, ncclInt, ncclSum, comms[rank], NULL));
    }
    OK(ncclGroupEnd());
    for (int rank = 0; rank < ranks; rank++)
      HOLDS(values[rank] == ranks * turn + ranks * (ranks - 1) / 2);
  }
  for (int rank = 0; rank < ranks; rank++) OK(ncclCommDestroy(comms[rank]));

  /* Communicators that one thread makes in a group. */
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  OK(ncclGroupStart());
  for (int rank = 0; rank < ranks; rank++) OK(ncclCommInitRank(&comms[rank], ranks, id, rank));
  OK(ncclGroupEnd());
  for (int rank = 0; rank < ranks; rank++) OK(ncclCommDestroy(comms[rank]));
}

int main(void) {
  for (int ranks = 1; ranks <= 4; ranks++) {
    on_threads(ranks, body);
    in_one_thread(ranks);
  }
  puts("collectives are right");
  return 0;
}
