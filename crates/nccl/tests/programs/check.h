/* The shared part of the test programs. */
#ifndef CHECK_H
#define CHECK_H

#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Ends the program unless the call returns this code. */
#define EXPECT(code, call)                                                                      \
  do {                                                                                          \
    ncclResult_t result_ = (call);                                                              \
    if (result_ != (code)) {                                                                    \
      fprintf(stderr, "%s:%d: %s is %d (%s), not %d\n", __FILE__, __LINE__, #call, result_,     \
              ncclGetLastError(NULL), (code));                                                  \
      exit(1);                                                                                  \
    }                                                                                           \
  } while (0)

#define OK(call) EXPECT(ncclSuccess, call)

/* Ends the program unless the condition holds. */
#define HOLDS(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #condition);                       \
      exit(1);                                                                                  \
    }                                                                                           \
  } while (0)

/* Ends the program unless the call fails with this code and these words. */
#define REFUSED(code, words, call)                                                              \
  do {                                                                                          \
    EXPECT(code, call);                                                                         \
    if (strstr(ncclGetLastError(NULL), words) == NULL) {                                        \
      fprintf(stderr, "%s:%d: no \"%s\" in: %s\n", __FILE__, __LINE__, words,                   \
              ncclGetLastError(NULL));                                                          \
      exit(1);                                                                                  \
    }                                                                                           \
  } while (0)

#define MOST 8

struct rank {
  int rank, ranks;
  ncclUniqueId id;
  void (*body)(int rank, int ranks, ncclComm_t comm);
};

static inline void *run_rank(void *argument) {
  struct rank *it = argument;
  ncclComm_t comm;
  OK(ncclCommInitRank(&comm, it->ranks, it->id, it->rank));
  it->body(it->rank, it->ranks, comm);
  return NULL;
}

/* Runs the body at ranks that are threads; each owns its communicator. */
static inline void on_threads(int ranks, void (*body)(int, int, ncclComm_t)) {
  pthread_t threads[MOST];
  struct rank of[MOST];
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  for (int rank = 0; rank < ranks; rank++) {
    of[rank] = (struct rank){rank, ranks, id, body};
    HOLDS(pthread_create(&threads[rank], NULL, run_rank, &of[rank]) == 0);
  }
  for (int rank = 0; rank < ranks; rank++) HOLDS(pthread_join(threads[rank], NULL) == 0);
}

#endif
