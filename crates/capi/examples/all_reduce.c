/* Sums an array over the ranks that a launcher starts: ringrun -n 4 ./all_reduce */
#include <ringreduce.h>
#include <stdio.h>

int main(void) {
  rr_comm *comm;
  if (rr_init(&comm, NULL, 0) != RR_OK) {
    fprintf(stderr, "%s\n", rr_last_failure()->message);
    return 1;
  }
  float numbers[] = {(float)rr_rank(comm), 1, 10};
  if (rr_all_reduce(comm, numbers, numbers, 3, RR_FLOAT, RR_SUM) != RR_OK) {
    const rr_failure *why = rr_last_failure();
    fprintf(stderr, "rank %d at fault: %s\n", why->peer, why->message);
    return 1;
  }
  printf("rank %d of %d: %g %g %g\n", rr_rank(comm), rr_size(comm), numbers[0], numbers[1],
         numbers[2]);
  return rr_close(comm) == RR_OK ? 0 : 1;
}
