/* Device memory on streams of the driver's interface. */
#include "check.h"

/* The part of cuda.h that this program needs. */
typedef struct CUctx_st *CUcontext;
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(CUcontext *context, int device);
int cuCtxSetCurrent(CUcontext context);
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes);
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes);
int cuStreamCreate(cudaStream_t *stream, unsigned flags);
int cuStreamSynchronize(cudaStream_t stream);

#define N 5000
#define CUDA(call) HOLDS((call) == 0)

struct place {
  pthread_barrier_t ready;
  ncclUniqueId id;
};
static struct place place;
static int ranks;

/* Allocating may wait for the streams of all ranks, so all allocate before the first call. */
static void *on_device(void *argument) {
  int rank = *(int *)argument, device;
  CUcontext context;
  CUDA(cuDevicePrimaryCtxRetain(&context, 0));
  CUDA(cuCtxSetCurrent(context));
  ncclComm_t comm;
  cudaStream_t stream;
  void *send, *recv, *sum;
  OK(ncclCommInitRank(&comm, ranks, place.id, rank));
  OK(ncclCommCuDevice(comm, &device));
  HOLDS(device == 0);
  CUDA(cuStreamCreate(&stream, 1));
  OK(ncclMemAlloc(&send, N * 4));
  OK(ncclMemAlloc(&recv, N * 4 * ranks));
  OK(ncclMemAlloc(&sum, N * 4));
  static float host[MOST][N * MOST];
  float *mine = host[rank];
  for (int i = 0; i < N; i++) mine[i] = rank + i % 10;
  CUDA(cuMemcpyHtoD_v2((uint64_t)send, mine, N * 4));
  pthread_barrier_wait(&place.ready);

  OK(ncclAllReduce(send, sum, N, ncclFloat, ncclSum, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  CUDA(cuMemcpyDtoH_v2(mine, (uint64_t)sum, N * 4));
  for (int i = 0; i < N; i++) HOLDS(mine[i] == ranks * (ranks - 1) / 2 + ranks * (i % 10));
  pthread_barrier_wait(&place.ready);

  OK(ncclAllGather(send, recv, N, ncclFloat, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  CUDA(cuMemcpyDtoH_v2(mine, (uint64_t)recv, N * 4 * ranks));
  for (int i = 0; i < N * ranks; i++) HOLDS(mine[i] == i / N + i % N % 10);
  pthread_barrier_wait(&place.ready);

  OK(ncclBroadcast(send, sum, N, ncclFloat, ranks - 1, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  CUDA(cuMemcpyDtoH_v2(mine, (uint64_t)sum, N * 4));
  for (int i = 0; i < N; i++) HOLDS(mine[i] == ranks - 1 + i % 10);
  pthread_barrier_wait(&place.ready);

  int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  OK(ncclGroupStart());
  OK(ncclSend(send, N, ncclFloat, next, comm, stream));
  OK(ncclRecv(sum, N, ncclFloat, before, comm, stream));
  OK(ncclGroupEnd());
  CUDA(cuStreamSynchronize(stream));
  CUDA(cuMemcpyDtoH_v2(mine, (uint64_t)sum, N * 4));
  for (int i = 0; i < N; i++) HOLDS(mine[i] == before + i % 10);

  ncclRedOp_t scaled;
  REFUSED(ncclInvalidUsage, "device memory",
          ncclRedOpCreatePreMulSum(&scaled, send, ncclFloat, ncclScalarDevice, comm));
  /* Host memory still goes by way of the host, at once. */
  int value = 1;
  OK(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, stream));
  HOLDS(value == ranks);
  pthread_barrier_wait(&place.ready);
  ncclResult_t state;
  OK(ncclCommGetAsyncError(comm, &state));
  HOLDS(state == ncclSuccess);
  OK(ncclCommDestroy(comm));
  pthread_barrier_wait(&place.ready);
  OK(ncclMemFree(send));
  OK(ncclMemFree(recv));
  OK(ncclMemFree(sum));
  return NULL;
}

int main(void) {
  CUDA(cuInit(0));
  for (ranks = 2; ranks <= 3; ranks++) {
    pthread_t threads[MOST];
    int numbers[MOST];
    HOLDS(pthread_barrier_init(&place.ready, NULL, ranks) == 0);
    OK(ncclGetUniqueId(&place.id));
    for (int rank = 0; rank < ranks; rank++) {
      numbers[rank] = rank;
      HOLDS(pthread_create(&threads[rank], NULL, on_device, &numbers[rank]) == 0);
    }
    for (int rank = 0; rank < ranks; rank++) HOLDS(pthread_join(threads[rank], NULL) == 0);
  }
  puts("device memory is right");
  return 0;
}
