/* Ranks that are processes: one is killed, one never comes, one forks. */
#include "check.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { RANKS = 3 };

/* In memory that all processes share. */
struct meeting {
  ncclUniqueId id;
  int is_set, gave_up;
};

static ncclComm_t meet(struct meeting *meeting, int rank) {
  ncclComm_t comm;
  if (rank == 0) {
    OK(ncclGetUniqueId(&meeting->id));
    __atomic_store_n(&meeting->is_set, 1, __ATOMIC_RELEASE);
  }
  while (!__atomic_load_n(&meeting->is_set, __ATOMIC_ACQUIRE)) usleep(100);
  OK(ncclCommInitRank(&comm, RANKS, meeting->id, rank));
  return comm;
}

/* Rank 1 is killed; the others hear so at once. */
static void is_killed(struct meeting *meeting, int rank) {
  ncclComm_t comm = meet(meeting, rank);
  float values[1000] = {0};
  ncclResult_t result = ncclSuccess;
  for (int call = 0; result == ncclSuccess; call++) {
    if (rank == 1 && call == 100) kill(getpid(), SIGKILL);
    result = ncclAllReduce(values, values, 1000, ncclFloat, ncclSum, comm, NULL);
  }
  HOLDS(result == ncclRemoteError);
  HOLDS(strstr(ncclGetLastError(comm), "rank 1") != NULL);
  OK(ncclCommGetAsyncError(comm, &result));
  HOLDS(result == ncclRemoteError);
  OK(ncclCommAbort(comm));
}

/* Rank 1 comes after longer than RINGREDUCE_TIMEOUT. */
static void never_comes(struct meeting *meeting, int rank) {
  setenv("RINGREDUCE_TIMEOUT", "1", 1);
  ncclComm_t comm = meet(meeting, rank);
  float value = 1;
  while (rank == 1 && __atomic_load_n(&meeting->gave_up, __ATOMIC_ACQUIRE) < RANKS - 1) usleep(100);
  ncclResult_t result = ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, NULL);
  __atomic_fetch_add(&meeting->gave_up, 1, __ATOMIC_RELEASE);
  if (rank != 1) {
    /* The first rank to give up may stop the other one. */
    HOLDS(result == ncclTimeout || result == ncclRemoteError);
    HOLDS(strstr(ncclGetLastError(comm), "rank 1") != NULL);
    return;
  }
  /* The data that the others sent before suffices for one call. */
  if (result == ncclSuccess)
    result = ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, NULL);
  HOLDS(result == ncclRemoteError);
}

/* A forked process may end, but not communicate. */
static void forks(struct meeting *meeting, int rank) {
  ncclComm_t comm = meet(meeting, rank);
  int status, value = 1;
  pid_t child = fork();
  if (child == 0) {
    ncclResult_t result = ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, NULL);
    HOLDS(result != ncclSuccess && strstr(ncclGetLastError(comm), "fork") != NULL);
    exit(0);
  }
  HOLDS(waitpid(child, &status, 0) == child && status == 0);
  OK(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, NULL));
  HOLDS(value == RANKS);
  OK(ncclCommDestroy(comm));
}

static void *reduce(void *comm) {
  int value = 1;
  OK(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, NULL));
  return NULL;
}

/* A process forks again and again while another thread is in a call, which waits for rank 1: in the
 * child nobody gives back what that thread has locked. */
static void forks_in_a_call(struct meeting *meeting, int rank) {
  ncclComm_t comm = meet(meeting, rank);
  int status, value = 1, size;
  pthread_t thread;
  if (rank == 0) {
    HOLDS(pthread_create(&thread, NULL, reduce, comm) == 0);
    for (int times = 0; times < 50; times++) {
      pid_t child = fork();
      if (child == 0) {
        alarm(20);
        ncclResult_t result = ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, NULL);
        HOLDS(result != ncclSuccess && strstr(ncclGetLastError(comm), "fork") != NULL);
        HOLDS(ncclCommCount(comm, &size) != ncclSuccess);
        HOLDS(ncclCommGetAsyncError(comm, &result) != ncclSuccess);
        HOLDS(ncclCommAbort(comm) != ncclSuccess && ncclCommDestroy(comm) != ncclSuccess);
        exit(0);
      }
      HOLDS(waitpid(child, &status, 0) == child && status == 0);
    }
    __atomic_store_n(&meeting->gave_up, 1, __ATOMIC_RELEASE);
    HOLDS(pthread_join(thread, NULL) == 0);
  } else {
    while (!__atomic_load_n(&meeting->gave_up, __ATOMIC_ACQUIRE)) usleep(100);
    reduce(comm);
  }
  OK(ncclCommDestroy(comm));
}

/* Runs the body at ranks that are processes. All but rank 1 have to end well, and rank 1 too
 * unless it is to be killed. */
static void on_processes(void (*body)(struct meeting *, int), int end_of_rank_1) {
  struct meeting *meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  HOLDS(meeting != MAP_FAILED);
  pid_t ranks[RANKS];
  for (int rank = 0; rank < RANKS; rank++) {
    ranks[rank] = fork();
    if (ranks[rank] == 0) {
      body(meeting, rank);
      exit(0);
    }
  }
  for (int rank = 0; rank < RANKS; rank++) {
    int status;
    HOLDS(waitpid(ranks[rank], &status, 0) == ranks[rank]);
    HOLDS(status == (rank == 1 ? end_of_rank_1 : 0));
  }
  munmap(meeting, sizeof *meeting);
}

int main(void) {
  on_processes(is_killed, SIGKILL);
  on_processes(never_comes, 0);
  on_processes(forks, 0);
  on_processes(forks_in_a_call, 0);
  puts("failures are right");
  return 0;
}
