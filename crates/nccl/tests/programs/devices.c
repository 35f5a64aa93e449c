/* Several devices in one process: each communicator takes the one that is current at its call. */
#include "check.h"

/* The part of cuda.h that this program needs. */
typedef struct CUctx_st *CUcontext;
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(CUcontext *context, int device);
int cuCtxSetCurrent(CUcontext context);
int cuCtxGetCurrent(CUcontext *context);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, cudaStream_t stream);
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, cudaStream_t stream);
int cuStreamCreate(cudaStream_t *stream, unsigned flags);
int cuStreamSynchronize(cudaStream_t stream);

#define N 3000
#define DEVICES 4
#define CUDA(call) HOLDS((call) == 0)

struct member {
  CUcontext context;
  ncclComm_t comm;
  cudaStream_t streams[2];
  void *send, *recv;
};
static struct member all[DEVICES];
static float host[DEVICES][N];

static void use(int rank) { CUDA(cuCtxSetCurrent(all[rank].context)); }

/* The mistake would be the device of another thread, or the first one. */
static void has_own_device(int rank) {
  int device, size;
  OK(ncclCommCuDevice(all[rank].comm, &device));
  OK(ncclCommCount(all[rank].comm, &size));
  HOLDS(device == rank && size == DEVICES);
}

static void in_a_group(void) {
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  OK(ncclGroupStart());
  for (int rank = 0; rank < DEVICES; rank++) {
    use(rank);
    OK(ncclCommInitRank(&all[rank].comm, DEVICES, id, rank));
  }
  OK(ncclGroupEnd());
  for (int rank = 0; rank < DEVICES; rank++) has_own_device(rank);
}

/* One thread begins all of them, and asks until they are made. */
static void without_blocking(void) {
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  OK(ncclGetUniqueId(&id));
  for (int rank = 0; rank < DEVICES; rank++) {
    use(rank);
    EXPECT(ncclInProgress,
           ncclCommInitRankConfig(&all[rank].comm, DEVICES, id, rank, &config));
  }
  use(0);
  for (int rank = 0; rank < DEVICES; rank++) {
    ncclResult_t state;
    do OK(ncclCommGetAsyncError(all[rank].comm, &state));
    while (state == ncclInProgress);
    HOLDS(state == ncclSuccess);
    has_own_device(rank);
  }
}

static void write_all(void) {
  for (int rank = 0; rank < DEVICES; rank++) {
    use(rank);
    for (int i = 0; i < N; i++) host[rank][i] = rank + i % 10;
    CUDA(cuMemcpyHtoDAsync_v2((uint64_t)all[rank].send, host[rank], N * 4, all[rank].streams[0]));
  }
}

static void read_all(void) {
  for (int rank = 0; rank < DEVICES; rank++) {
    use(rank);
    CUDA(cuMemcpyDtoHAsync_v2(host[rank], (uint64_t)all[rank].recv, N * 4, all[rank].streams[0]));
    CUDA(cuStreamSynchronize(all[rank].streams[0]));
  }
}

/* One thread makes the calls of all communicators as a group. */
static void reduce(void) {
  write_all();
  use(1);
  OK(ncclGroupStart());
  for (int rank = 0; rank < DEVICES; rank++) {
    struct member *it = &all[rank];
    OK(ncclAllReduce(it->send, it->recv, N, ncclFloat, ncclSum, it->comm, it->streams[0]));
  }
  OK(ncclGroupEnd());
  CUcontext current;
  CUDA(cuCtxGetCurrent(&current));
  HOLDS(current == all[1].context);
  read_all();
  for (int rank = 0; rank < DEVICES; rank++) {
    for (int i = 0; i < N; i++) HOLDS(host[rank][i] == 6 + DEVICES * (i % 10));
  }
}

/* The data is sent behind the work of one stream, and received before what another one does. A
 * message without elements has no memory. */
static void exchange(void) {
  static const float wrong[N];
  write_all();
  for (int rank = 0; rank < DEVICES; rank++) {
    struct member *it = &all[rank];
    use(rank);
    CUDA(cuMemcpyHtoDAsync_v2((uint64_t)it->recv, wrong, N * 4, it->streams[1]));
  }
  OK(ncclGroupStart());
  for (int rank = 0; rank < DEVICES; rank++) {
    struct member *it = &all[rank];
    int next = (rank + 1) % DEVICES, before = (rank + DEVICES - 1) % DEVICES;
    OK(ncclSend(it->send, N, ncclFloat, next, it->comm, it->streams[0]));
    OK(ncclRecv(it->recv, N, ncclFloat, before, it->comm, it->streams[1]));
    OK(ncclSend(NULL, 0, ncclFloat, before, it->comm, it->streams[1]));
    OK(ncclRecv(NULL, 0, ncclFloat, next, it->comm, it->streams[0]));
  }
  OK(ncclGroupEnd());
  for (int rank = 0; rank < DEVICES; rank++) {
    struct member *it = &all[rank];
    use(rank);
    CUDA(cuMemcpyDtoHAsync_v2(host[rank], (uint64_t)it->recv, N * 4, it->streams[1]));
    CUDA(cuStreamSynchronize(it->streams[1]));
  }
  for (int rank = 0; rank < DEVICES; rank++) {
    int before = (rank + DEVICES - 1) % DEVICES;
    for (int i = 0; i < N; i++) HOLDS(host[rank][i] == before + i % 10);
  }
}

int main(void) {
  CUDA(cuInit(0));
  for (int rank = 0; rank < DEVICES; rank++) {
    struct member *it = &all[rank];
    CUDA(cuDevicePrimaryCtxRetain(&it->context, rank));
    use(rank);
    for (int at = 0; at < 2; at++) CUDA(cuStreamCreate(&it->streams[at], 1));
    OK(ncclMemAlloc(&it->send, N * 4));
    OK(ncclMemAlloc(&it->recv, N * 4));
  }
  void (*made[])(void) = {in_a_group, without_blocking};
  for (int way = 0; way < 2; way++) {
    made[way]();
    reduce();
    exchange();
    for (int rank = 0; rank < DEVICES; rank++) OK(ncclCommDestroy(all[rank].comm));
  }
  puts("devices are right");
  return 0;
}
