/* Sums an array over the ranks, each a process: all_reduce RANKS RANK FILE, where FILE brings the
 * unique id of rank 0 to the others. */
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECK(call)                                                                             \
  do {                                                                                          \
    ncclResult_t result_ = (call);                                                              \
    if (result_ != ncclSuccess) {                                                               \
      fprintf(stderr, "%s: %s\n", ncclGetErrorString(result_), ncclGetLastError(NULL));         \
      exit(1);                                                                                  \
    }                                                                                           \
  } while (0)

/* Rank 0 writes the id under another name first, so that no rank reads half of it. */
static ncclUniqueId exchange_id(int rank, const char *path) {
  ncclUniqueId id;
  if (rank == 0) {
    char written[4096];
    snprintf(written, sizeof written, "%s.part", path);
    CHECK(ncclGetUniqueId(&id));
    FILE *file = fopen(written, "wb");
    if (file == NULL || fwrite(&id, sizeof id, 1, file) != 1 || fclose(file) != 0 ||
        rename(written, path) != 0) {
      perror(path);
      exit(1);
    }
    return id;
  }
  FILE *file;
  while ((file = fopen(path, "rb")) == NULL) usleep(1000);
  if (fread(&id, sizeof id, 1, file) != 1) {
    perror(path);
    exit(1);
  }
  fclose(file);
  return id;
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: all_reduce RANKS RANK FILE\n");
    return 2;
  }
  int ranks = atoi(argv[1]), rank = atoi(argv[2]);
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, ranks, exchange_id(rank, argv[3]), rank));

  float values[1000];
  for (int i = 0; i < 1000; i++) values[i] = (float)(rank + 1);
  /* Host memory is reduced when the call returns; there is no stream to wait for. */
  CHECK(ncclAllReduce(values, values, 1000, ncclFloat, ncclSum, comm, NULL));
  printf("rank %d of %d: %g\n", rank, ranks, values[999]);

  CHECK(ncclCommDestroy(comm));
  return 0;
}
