/* Sums a number over the ranks that a launcher starts: ringrun -n 4 ./all_reduce */
#include <ringreduce.h>
#include <stdio.h>
#include <stdlib.h>

static void check(rr_status status) {
  if (status == RR_OK) return;
  fprintf(stderr, "%s\n", rr_last_failure()->message);
  exit(1);
}

int main(void) {
  rr_comm *comm;
  check(rr_init(&comm, NULL, 0));
  float number = (float)rr_rank(comm);
  check(rr_all_reduce(comm, &number, &number, 1, RR_FLOAT, RR_SUM));
  printf("rank %d of %d: the sum is %g\n", rr_rank(comm), rr_size(comm), number);
  check(rr_close(comm));
}
