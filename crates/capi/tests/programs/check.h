/* The shared part of the test programs. */
#ifndef CHECK_H
#define CHECK_H

#include <pthread.h>
#include <ringreduce.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline const char *last_message(void) {
  return rr_last_failure() ? rr_last_failure()->message : "";
}

/* Ends the program unless the condition holds. */
#define HOLDS(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      fprintf(stderr, "%s:%d: not %s; %s\n", __FILE__, __LINE__, #condition, last_message());   \
      exit(1);                                                                                  \
    }                                                                                           \
  } while (0)

#define OK(call) HOLDS((call) == RR_OK)

/* Ends the program unless the call fails with this status and these words. */
#define REFUSED(code, words, call)                                                              \
  do {                                                                                          \
    HOLDS((call) == (code));                                                                    \
    HOLDS(rr_last_failure()->status == (code));                                                 \
    HOLDS(strstr(last_message(), words) != NULL);                                               \
  } while (0)

#define MOST 4

struct rank {
  rr_comm *comm;
  void (*body)(rr_comm *comm);
};

static inline void *run_rank(void *argument) {
  struct rank *it = argument;
  it->body(it->comm);
  return NULL;
}

/* Runs the body at ranks that are threads. */
static inline void on_threads(int ranks, void (*body)(rr_comm *)) {
  rr_setting settings[] = {{"timeout", "30"}};
  rr_comm *comms[MOST];
  pthread_t threads[MOST];
  struct rank of[MOST];
  OK(rr_init_local(comms, ranks, settings, 1));
  for (int rank = 0; rank < ranks; rank++) {
    of[rank] = (struct rank){comms[rank], body};
    HOLDS(pthread_create(&threads[rank], NULL, run_rank, &of[rank]) == 0);
  }
  for (int rank = 0; rank < ranks; rank++) HOLDS(pthread_join(threads[rank], NULL) == 0);
}

#endif
