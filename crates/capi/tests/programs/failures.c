/* Ranks that are processes: one is killed, one comes too late or late, and they fork. */
#include "check.h"

#include <math.h>
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
  REFUSED(RR_ARGUMENT, "seconds is NaN", rr_shrink(comm, NAN, &left));
  REFUSED(RR_ARGUMENT, "seconds is -1", rr_shrink(comm, -1, &left));
  OK(rr_shrink(comm, rank == 0 ? INFINITY : 1e300, &left));
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
  /* The data that the others sent before suffices for one call. */
  if (status == RR_OK) status = rr_all_reduce(comm, &value, &value, 1, RR_FLOAT, RR_SUM);
  HOLDS(status != RR_OK);
}

static void *reduce_late(void *comm) {
  int value = 1;
  OK(rr_all_reduce(comm, &value, &value, 1, RR_INT32, RR_SUM));
  HOLDS(value == RANKS);
  return NULL;
}

/* Without a deadline a call outlasts one with a deadline that began later. It ends once rank 1 has
 * come, and the next one when rank 1 has been killed. */
static void is_waited_for(struct meeting *meeting, int rank) {
  rr_comm *comm = meet(meeting, rank, rank == 0 ? "none" : "inf");
  int value = 1;
  pthread_t late;
  while (rank == 1 && !__atomic_load_n(&meeting->gave_up, __ATOMIC_ACQUIRE)) usleep(100);
  HOLDS(pthread_create(&late, NULL, reduce_late, comm) == 0);
  if (rank == 0) {
    rr_setting settings[] = {{"timeout", "0.3"}};
    rr_comm *others[2];
    OK(rr_init_local(others, 2, settings, 1));
    HOLDS(rr_all_reduce(others[0], &value, &value, 1, RR_INT32, RR_SUM) == RR_TIMEOUT);
    for (int other = 0; other < 2; other++) OK(rr_close(others[other]));
    __atomic_store_n(&meeting->gave_up, 1, __ATOMIC_RELEASE);
  }
  HOLDS(pthread_join(late, NULL) == 0);
  if (rank == 1) kill(getpid(), SIGKILL);
  HOLDS(rr_all_reduce(comm, &value, &value, 1, RR_INT32, RR_SUM) == RR_PEER_LOST);
  HOLDS(rr_last_failure()->peer == 1);
  OK(rr_close(comm));
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

/* The signs between rank 0's threads: its call is in the function, which may go on. */
struct in_call {
  rr_comm *comm;
  int is_in, goes_on;
};

static void combine(const void *left, void *inout, size_t count, void *context) {
  struct in_call *call = context;
  for (size_t i = 0; i < count; i++) ((int *)inout)[i] += ((const int *)left)[i];
  if (call == NULL) return;
  __atomic_store_n(&call->is_in, 1, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&call->goes_on, __ATOMIC_ACQUIRE)) usleep(100);
}

static void *reduce(void *argument) {
  struct in_call *call = argument;
  int value = 1;
  OK(rr_all_reduce_by(call->comm, &value, 1, sizeof value, RR_RANK_ORDER, "sum", combine, call));
  HOLDS(value == RANKS);
  return NULL;
}

/* A process forks while another thread is in a call, whose locks nobody gives back in the child. */
static void forks_in_a_call(struct meeting *meeting, int rank) {
  rr_comm *comm = meet(meeting, rank, "60");
  struct in_call call = {comm, 0, 0};
  int status, value = 1;
  if (rank != 0) {
    OK(rr_all_reduce_by(comm, &value, 1, sizeof value, RR_RANK_ORDER, "sum", combine, NULL));
    OK(rr_barrier(comm));
    OK(rr_close(comm));
    return;
  }
  pthread_t thread;
  HOLDS(pthread_create(&thread, NULL, reduce, &call) == 0);
  while (!__atomic_load_n(&call.is_in, __ATOMIC_ACQUIRE)) usleep(100);
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    REFUSED(RR_BROKEN, "fork", rr_barrier(comm));
    REFUSED(RR_BROKEN, "fork", rr_send(comm, &value, 1, RR_INT32, 1, 0));
    REFUSED(RR_BROKEN, "fork", rr_check(comm));
    REFUSED(RR_BROKEN, "fork", rr_abort(comm));
    HOLDS(rr_rank(comm) == 0);
    OK(rr_close(comm));
    exit(0);
  }
  HOLDS(waitpid(child, &status, 0) == child && status == 0);
  __atomic_store_n(&call.goes_on, 1, __ATOMIC_RELEASE);
  HOLDS(pthread_join(thread, NULL) == 0);
  OK(rr_barrier(comm));
  OK(rr_close(comm));
}

static void *close_comm(void *comm) {
  OK(rr_close(comm));
  return NULL;
}

/* A close that waits for a started call, which the other ranks do not make, can be aborted. */
static void close_is_aborted(struct meeting *meeting, int rank) {
  rr_comm *comm = meet(meeting, rank, "60");
  int value = 1;
  if (rank == 0) {
    rr_call call = {.size = sizeof call, .verb = RR_ALL_REDUCE, .sendbuff = &value,
                    .recvbuff = &value, .count = 1, .datatype = RR_INT32, .op = RR_SUM};
    rr_request *request;
    OK(rr_barrier(comm));
    OK(rr_start(comm, &call, &request));
    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, close_comm, comm) == 0);
    /* Until the close has begun, this says that there is no such memory. */
    while (rr_free(comm, &value) != RR_OK && strstr(last_message(), "closed") == NULL) usleep(100);
    OK(rr_abort(comm));
    HOLDS(pthread_join(thread, NULL) == 0);
    HOLDS(rr_wait(&request, NULL) != RR_OK);
    __atomic_store_n(&meeting->gave_up, 1, __ATOMIC_RELEASE);
    return;
  }
  OK(rr_barrier(comm));
  while (!__atomic_load_n(&meeting->gave_up, __ATOMIC_ACQUIRE)) usleep(100);
  HOLDS(rr_barrier(comm) != RR_OK);
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
  on_processes(is_waited_for, SIGKILL);
  on_processes(forks, 0);
  on_processes(forks_in_a_call, 0);
  on_processes(close_is_aborted, 0);
  on_processes(is_stopped, 0);
  puts("failures are right");
  return 0;
}
