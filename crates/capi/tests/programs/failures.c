/* Ranks that are processes: one is killed, one comes too late, and they fork. */
#include "check.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { RANKS = 3 };

/* In memory that all processes share. */
struct meeting {
  rr_unique_id id;
  int is_set, gave_up;
};

static rr_comm *meet(struct meeting *meeting, int rank, const char *timeout) {
  rr_setting settings[] = {{"timeout", timeout}};
  rr_comm *comm;
  if (rank == 0) {
    OK(rr_make_unique_id(&meeting->id, NULL));
    __atomic_store_n(&meeting->is_set, 1, __ATOMIC_RELEASE);
  }
  while (!__atomic_load_n(&meeting->is_set, __ATOMIC_ACQUIRE)) usleep(100);
  OK(rr_init_by_id(&comm, &meeting->id, rank, RANKS, settings, 1));
  return comm;
}

static void is_killed(struct meeting *meeting, int rank) {
  rr_comm *comm = meet(meeting, rank, "60");
  float values[1000] = {0};
  rr_status status = RR_OK;
  for (int call = 0; status == RR_OK; call++) {
    if (rank == 1 && call == 100) kill(getpid(), SIGKILL);
    status = rr_all_reduce(comm, values, values, 1000, RR_FLOAT, RR_SUM);
  }
  HOLDS(status == RR_PEER_LOST && rr_last_failure()->peer == 1);
  HOLDS(rr_check(comm) == RR_PEER_LOST);
  rr_comm *left;
  int sum = 1;
  OK(rr_shrink(comm, 30, &left));
  OK(rr_all_reduce(left, &sum, &sum, 1, RR_INT32, RR_SUM));
  HOLDS(sum == RANKS - 1);
  OK(rr_close(left));
  OK(rr_close(comm));
}

/* Rank 1 comes after more than the others' timeout. */
static void comes_late(struct meeting *meeting, int rank) {
  rr_comm *comm = meet(meeting, rank, "1");
  float value = 1;
  while (rank == 1 && __atomic_load_n(&meeting->gave_up, __ATOMIC_ACQUIRE) < RANKS - 1) usleep(100);
  rr_status status = rr_all_reduce(comm, &value, &value, 1, RR_FLOAT, RR_SUM);
  __atomic_fetch_add(&meeting->gave_up, 1, __ATOMIC_RELEASE);
  if (rank != 1) {
    /* The first rank to give up may stop the other one. */
    HOLDS(status == RR_TIMEOUT || status == RR_PEER_LOST);
    HOLDS(rr_last_failure()->peer == 1);
    return;
  }
  /* What the others sent before suffices for one call. */
  if (status == RR_OK) status = rr_all_reduce(comm, &value, &value, 1, RR_FLOAT, RR_SUM);
  HOLDS(status != RR_OK);
}

static void forks(struct meeting *meeting, int rank) {
  rr_comm *comm = meet(meeting, rank, "60");
  int status, value = 1;
  pid_t child = fork();
  if (child == 0) {
    REFUSED(RR_BROKEN, "fork", rr_all_reduce(comm, &value, &value, 1, RR_INT32, RR_SUM));
    REFUSED(RR_BROKEN, "fork", rr_send(comm, &value, 1, RR_INT32, 0, 0));
    OK(rr_close(comm));
    exit(0);
  }
  HOLDS(waitpid(child, &status, 0) == child && status == 0);
  OK(rr_all_reduce(comm, &value, &value, 1, RR_INT32, RR_SUM));
  HOLDS(value == RANKS);
  OK(rr_close(comm));
}

/* Another thread stops a call that waits for rank 1. */
static void *stop(void *comm) {
  OK(rr_abort(comm));
  return NULL;
}

static void is_stopped(struct meeting *meeting, int rank) {
  rr_comm *comm = meet(meeting, rank, "60");
  pthread_t thread;
  int value = 1;
  if (rank == 0) HOLDS(pthread_create(&thread, NULL, stop, comm) == 0);
  rr_status status = RR_OK;
  while (status == RR_OK) status = rr_all_reduce(comm, &value, &value, 1, RR_INT32, RR_SUM);
  HOLDS(status == RR_ABORTED && rr_last_failure()->peer == 0);
  if (rank == 0) HOLDS(pthread_join(thread, NULL) == 0);
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
  on_processes(comes_late, 0);
  on_processes(forks, 0);
  on_processes(is_stopped, 0);
  puts("failures are right");
  return 0;
}
