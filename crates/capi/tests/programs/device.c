/* Device memory on streams of the driver's interface, at two ranks that are threads. */
#include "check.h"

/* The part of cuda.h that this program needs. */
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(CUcontext *context, int device);
int cuCtxSetCurrent(CUcontext context);
int cuMemAlloc_v2(uint64_t *start, size_t bytes);
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes);
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes);
int cuStreamCreate(CUstream *stream, unsigned flags);
int cuStreamSynchronize(CUstream stream);

enum { N = 5000, RANKS = 2 };
#define CUDA(call) HOLDS((call) == 0)

static pthread_barrier_t all_are_here;

/* Allocating may wait for the streams of all ranks, so all allocate before the first call. */
static void body(rr_comm *comm) {
  static float host[RANKS][N];
  int rank = rr_rank(comm);
  CUcontext context;
  CUstream stream;
  uint64_t send, recv;
  float *mine = host[rank];
  CUDA(cuDevicePrimaryCtxRetain(&context, 0));
  CUDA(cuCtxSetCurrent(context));
  OK(rr_use_device(comm, 0));
  CUDA(cuStreamCreate(&stream, 1));
  CUDA(cuMemAlloc_v2(&send, N * 4));
  CUDA(cuMemAlloc_v2(&recv, N * 4));
  for (int i = 0; i < N; i++) mine[i] = rank + i % 10;
  CUDA(cuMemcpyHtoD_v2(send, mine, N * 4));
  pthread_barrier_wait(&all_are_here);

  rr_call call = {.size = sizeof call, .verb = RR_ALL_REDUCE, .sendbuff = (void *)send, .recvbuff = (void *)recv,
                  .count = N, .datatype = RR_FLOAT, .op = RR_SUM};
  OK(rr_enqueue(comm, &call, stream));
  call = (rr_call){.size = sizeof call, .verb = RR_BROADCAST, .sendbuff = (void *)send, .recvbuff = (void *)send,
                   .count = N, .datatype = RR_FLOAT, .root = 1};
  OK(rr_enqueue(comm, &call, stream));
  CUDA(cuStreamSynchronize(stream));
  OK(rr_check(comm));
  CUDA(cuMemcpyDtoH_v2(mine, recv, N * 4));
  for (int i = 0; i < N; i++) HOLDS(mine[i] == 1 + 2 * (i % 10));
  CUDA(cuMemcpyDtoH_v2(mine, send, N * 4));
  for (int i = 0; i < N; i++) HOLDS(mine[i] == 1 + i % 10);

  call.sendbuff = call.recvbuff = mine;
  REFUSED(RR_ARGUMENT, "not memory of a device", rr_enqueue(comm, &call, stream));
  REFUSED(RR_ARGUMENT, "use_device", rr_use_device(comm, 0));
  pthread_barrier_wait(&all_are_here);
  OK(rr_close(comm));
}

int main(void) {
  CUDA(cuInit(0));
  HOLDS(pthread_barrier_init(&all_are_here, NULL, RANKS) == 0);
  on_threads(RANKS, body);
  puts("device memory is right");
  return 0;
}
