/* Wrong arguments and wrong use: each a status and a message. */
#include "check.h"

#define SECRET "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eFF"

/* No communicator. */
static long other[64];

static void arguments(rr_comm *comm) {
  int a[8] = {0}, b[8] = {0}, done;
  rr_request *request = NULL;
  rr_message message;
  void *memory;
  int none = 0;
  rr_call call = {.size = sizeof call, .verb = 99, .datatype = RR_INT32};
  struct {
    rr_call call;
    long more;
  } newer = {{.size = sizeof newer, .datatype = RR_INT32}, 0};
  HOLDS(rr_rank(NULL) == -1 && rr_size((rr_comm *)other) == -1);
  REFUSED(RR_ARGUMENT, "comm is NULL", rr_all_reduce(NULL, a, b, 8, RR_INT32, RR_SUM));
  REFUSED(RR_ARGUMENT, "no communicator",
          rr_all_reduce((rr_comm *)other, a, b, 8, RR_INT32, RR_SUM));
  REFUSED(RR_ARGUMENT, "sendbuff is NULL", rr_all_reduce(comm, NULL, b, 8, RR_INT32, RR_SUM));
  REFUSED(RR_ARGUMENT, "recvbuff is NULL", rr_all_reduce(comm, a, NULL, 8, RR_INT32, RR_SUM));
  REFUSED(RR_ARGUMENT, "datatype is 20", rr_all_reduce(comm, a, b, 8, 20, RR_SUM));
  REFUSED(RR_ARGUMENT, "op is -1", rr_all_reduce(comm, a, b, 8, RR_INT32, -1));
  REFUSED(RR_ARGUMENT, "float", rr_all_reduce(comm, a, b, 8, RR_FLOAT, RR_BAND));
  REFUSED(RR_ARGUMENT, "count is",
          rr_all_reduce(comm, a, b, SIZE_MAX / 2, RR_INT32, RR_SUM));
  REFUSED(RR_ARGUMENT, "overlaps", rr_all_reduce(comm, a, a + 1, 4, RR_INT32, RR_SUM));
  REFUSED(RR_ARGUMENT, "root is 2", rr_broadcast(comm, a, b, 8, RR_INT32, 2));
  REFUSED(RR_ARGUMENT, "verb is 99", rr_run(comm, &call));
  REFUSED(RR_ARGUMENT, "call is NULL", rr_run(comm, NULL));
  call.verb = RR_ALL_REDUCE;
  call.size = 0;
  REFUSED(RR_ARGUMENT, "size is 0, expected sizeof(rr_call)", rr_run(comm, &call));
  REFUSED(RR_ARGUMENT, "size is 0", rr_start(comm, &call, &request));
  REFUSED(RR_ARGUMENT, "size is 0", rr_enqueue(comm, &call, NULL));
  call.size = sizeof call;
  /* A program of a newer header: what this library does not know has to be zero. */
  OK(rr_run(comm, &newer.call));
  newer.more = 1;
  REFUSED(RR_ARGUMENT, "newer", rr_run(comm, &newer.call));
  REFUSED(RR_ARGUMENT, "request is NULL", rr_start(comm, &call, NULL));
  REFUSED(RR_ARGUMENT, "no device", rr_enqueue(comm, &call, NULL));
  REFUSED(RR_ARGUMENT, "request is NULL", rr_wait(NULL, NULL));
  REFUSED(RR_ARGUMENT, "never started", rr_wait(&request, NULL));
  REFUSED(RR_ARGUMENT, "request is NULL", rr_test(NULL, &done));
  REFUSED(RR_ARGUMENT, "to is 7", rr_send(comm, a, 8, RR_INT32, 7, 0));
  REFUSED(RR_ARGUMENT, "from is -2", rr_recv(comm, a, 8, RR_INT32, -2, 0, NULL));
  REFUSED(RR_ARGUMENT, "tag is -3", rr_recv(comm, a, 8, RR_INT32, RR_ANY, -3, NULL));
  REFUSED(RR_ARGUMENT, "buffer is NULL", rr_send(comm, NULL, 8, RR_INT32, 0, 0));
  REFUSED(RR_ARGUMENT, "request is NULL", rr_isend(comm, a, 8, RR_INT32, 0, 0, NULL));
  REFUSED(RR_ARGUMENT, "tag is", rr_probe(comm, RR_ANY, 1L << 40, &message));
  memory = a;
  REFUSED(RR_ARGUMENT, "message is NULL", rr_recv_any(comm, &memory, RR_INT32, 0, 0, NULL));
  HOLDS(memory == NULL);
  REFUSED(RR_ARGUMENT, "buffer is NULL", rr_recv_any(comm, NULL, RR_INT32, 0, 0, &message));
  REFUSED(RR_ARGUMENT, "function is NULL",
          rr_all_reduce_by(comm, a, 8, 4, RR_ANY_ORDER, "none", NULL, NULL));
  REFUSED(RR_ARGUMENT, "counts is NULL", rr_all_gather_v(comm, a, b, NULL, RR_INT32));
  REFUSED(RR_ARGUMENT, "memory is NULL", rr_alloc(comm, 100, NULL));
  REFUSED(RR_ARGUMENT, "was freed", rr_free(comm, a));
  OK(rr_alloc(comm, 0, &memory));
  OK(rr_free(comm, memory));
  REFUSED(RR_ARGUMENT, "was freed", rr_free(comm, memory));
  REFUSED(RR_ARGUMENT, "made is NULL", rr_duplicate(comm, NULL));
  int absent[] = {0, -1};
  rr_comm *group;
  REFUSED(RR_ARGUMENT, "ranks is NULL", rr_create_group(comm, NULL, 2, 0, &group));
  REFUSED(RR_ARGUMENT, "different ranks below", rr_create_group(comm, absent, 2, 0, &group));
  REFUSED(RR_ARGUMENT, "name is NULL", rr_set_name(comm, NULL));
  REFUSED(RR_ARGUMENT, "name is not UTF-8", rr_set_name(comm, "\xff"));
  REFUSED(RR_ARGUMENT, "name is empty", rr_set_name(comm, ""));
  OK(rr_set_name(comm, "data"));
  /* Nothing is sent and nothing reduced. */
  OK(rr_all_reduce(comm, NULL, NULL, 0, RR_INT32, RR_SUM));
  OK(rr_all_reduce(comm, &none, &none, 1, RR_INT32, RR_SUM));
  OK(rr_close(comm));
  REFUSED(RR_ARGUMENT, "comm was closed", rr_close(comm));
  REFUSED(RR_ARGUMENT, "comm was closed", rr_barrier(comm));
  REFUSED(RR_ARGUMENT, "comm was closed", rr_set_name(comm, "data"));
  REFUSED(RR_ARGUMENT, "comm was closed", rr_send(comm, a, 8, RR_INT32, 0, 0));
  REFUSED(RR_ARGUMENT, "comm was closed", rr_check(comm));
  HOLDS(rr_size(comm) == 2);
}

/* The ranks pass different counts: an error at both, at once, that names the other rank. */
static void differing(rr_comm *comm) {
  int values[8] = {0}, rank = rr_rank(comm);
  OK(rr_set_name(comm, "data"));
  REFUSED(RR_MISMATCH, "does not make the same call",
          rr_all_reduce(comm, values, values, 4 + rank, RR_INT32, RR_SUM));
  HOLDS(strstr(last_message(), "of communicator \"data\"") != NULL);
  const rr_failure *why = rr_last_failure();
  HOLDS(why->rank == rank && why->host != NULL && why->sequence == 1);
  HOLDS(why->peer == 1 - rank && why->peer_host != NULL && why->step >= 0);
  HOLDS(rr_check(comm) == RR_MISMATCH);
  REFUSED(RR_BROKEN, "all_reduce", rr_barrier(comm));
  OK(rr_close(comm));
}

int main(void) {
  rr_comm *comm;
  rr_setting wrong[] = {{"colour", "red"}}, late[] = {{"timeout", "soon"}}, none[] = {{NULL, "1"}};
  rr_setting short_secret[] = {{"secret", "ab"}}, secret[] = {{"secret", SECRET}};
  rr_unique_id id = {{0}};
  HOLDS(rr_last_failure() == NULL);
  HOLDS(strchr(rr_version(), '.') != NULL);
  REFUSED(RR_ARGUMENT, "comm is NULL", rr_init(NULL, NULL, 0));
  REFUSED(RR_ARGUMENT, "\"colour\", expected rank", rr_init(&comm, wrong, 1));
  REFUSED(RR_ARGUMENT, "expected seconds", rr_init(&comm, late, 1));
  REFUSED(RR_ARGUMENT, "name is NULL", rr_init(&comm, none, 1));
  REFUSED(RR_ARGUMENT, "setting secret", rr_init(&comm, short_secret, 1));
  HOLDS(strstr(last_message(), "64 hexadecimal digits") && !strstr(last_message(), "\"ab\""));
  OK(rr_init(&comm, secret, 1));
  OK(rr_close(comm));
  REFUSED(RR_ARGUMENT, "settings is NULL", rr_init(&comm, NULL, 1));
  REFUSED(RR_ARGUMENT, "id", rr_init_by_id(&comm, &id, 0, 1, NULL, 0));
  OK(rr_make_unique_id(&id, NULL));
  REFUSED(RR_ARGUMENT, "rank is -1", rr_init_by_id(&comm, &id, -1, 1, NULL, 0));
  HOLDS(rr_init_by_id(&comm, &id, 3, 2, NULL, 0) != RR_OK);
  REFUSED(RR_ARGUMENT, "comms is NULL", rr_init_local(NULL, 2, NULL, 0));
  REFUSED(RR_ARGUMENT, "n is 0", rr_init_local(&comm, 0, NULL, 0));
  OK(rr_close(NULL));
  on_threads(2, arguments);
  on_threads(2, differing);
  puts("refusals are right");
  return 0;
}
