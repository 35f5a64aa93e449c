/* Wrong arguments, wrong usage and what is not offered: each a code and a message. */
#include "check.h"

ncclResult_t ncclPutSignal(void);
ncclResult_t ncclDevCommCreate(void);
ncclResult_t pncclCommCount(const ncclComm_t comm, int *count);

static void arguments(int rank, int ranks, ncclComm_t comm) {
  int a[8] = {0}, b[8] = {0}, count;
  (void)rank, (void)ranks;
  REFUSED(ncclInvalidArgument, "comm is NULL",
          ncclAllReduce(a, b, 8, ncclInt, ncclSum, NULL, NULL));
  REFUSED(ncclInvalidArgument, "sendbuff is NULL",
          ncclAllReduce(NULL, b, 8, ncclInt, ncclSum, comm, NULL));
  REFUSED(ncclInvalidArgument, "recvbuff is NULL",
          ncclAllReduce(a, NULL, 8, ncclInt, ncclSum, comm, NULL));
  REFUSED(ncclInvalidArgument, "datatype is 12",
          ncclAllReduce(a, b, 8, ncclNumTypes, ncclSum, comm, NULL));
  REFUSED(ncclInvalidArgument, "op is 99",
          ncclAllReduce(a, b, 8, ncclInt, (ncclRedOp_t)99, comm, NULL));
  REFUSED(ncclInvalidArgument, "count is",
          ncclAllReduce(a, b, SIZE_MAX / 2, ncclInt, ncclSum, comm, NULL));
  REFUSED(ncclInvalidArgument, "overlaps",
          ncclAllReduce(a, a + 1, 4, ncclInt, ncclSum, comm, NULL));
  REFUSED(ncclInvalidArgument, "root is 2",
          ncclBroadcast(a, b, 8, ncclInt, 2, comm, NULL));
  REFUSED(ncclInvalidArgument, "peer is -1", ncclSend(a, 8, ncclInt, -1, comm, NULL));
  REFUSED(ncclInvalidArgument, "count is NULL", ncclCommCount(comm, NULL));
  REFUSED(ncclInvalidUsage, "no group is open", ncclGroupEnd());
  REFUSED(ncclInvalidUsage, "one-sided", ncclPutSignal());
  REFUSED(ncclInvalidUsage, "device-side", ncclDevCommCreate());
  OK(pncclCommCount(comm, &count));

  /* A group of which a call failed carries nothing out. */
  OK(ncclGroupStart());
  a[0] = 1;
  OK(ncclAllReduce(a, a, 1, ncclInt, ncclSum, comm, NULL));
  EXPECT(ncclInvalidArgument, ncclSend(a, 1, ncclInt, 77, comm, NULL));
  REFUSED(ncclInvalidArgument, "nothing was carried out", ncclGroupEnd());
  HOLDS(a[0] == 1);
  /* Nor does one that is refused as a whole: nobody receives the message. */
  OK(ncclGroupStart());
  OK(ncclBroadcast(a, b, 1, ncclInt, rank, comm, NULL));
  OK(ncclSend(a, 1, ncclInt, rank, comm, NULL));
  REFUSED(ncclInvalidArgument, "both ends", ncclGroupEnd());
  HOLDS(b[0] == 0);
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  OK(ncclGroupStart());
  OK(ncclAllReduce(a, a, 1, ncclInt, ncclSum, comm, NULL));
  OK(ncclGroupSimulateEnd(&info));
  HOLDS(a[0] == 1);

  void *memory, *handle, *asked;
  ncclWindow_t window;
  OK(ncclMemAlloc(&memory, 1000));
  OK(ncclCommRegister(comm, memory, 1000, &handle));
  OK(ncclCommDeregister(comm, handle));
  REFUSED(ncclInvalidArgument, "given back before", ncclCommDeregister(comm, handle));
  OK(ncclCommWindowRegister(comm, memory, 1000, &window, 0));
  OK(ncclWinGetUserPtr(comm, window, &asked));
  HOLDS(asked == memory);
  OK(ncclCommWindowDeregister(comm, window));
  OK(ncclMemFree(memory));
  OK(ncclMemFree(NULL));
  REFUSED(ncclInvalidArgument, "no memory of ncclMemAlloc", ncclMemFree(memory));

  OK(ncclCommDestroy(comm));
  REFUSED(ncclInvalidArgument, "comm was destroyed", ncclCommDestroy(comm));
}

/* The ranks pass different counts: an error at both, at once. */
static void differing(int rank, int ranks, ncclComm_t comm) {
  int values[8] = {0};
  (void)ranks;
  REFUSED(ncclInvalidUsage, "does not make the same call",
          ncclAllReduce(values, values, 4 + rank, ncclInt, ncclSum, comm, NULL));
  OK(ncclCommAbort(comm));
}

/* The name of a configuration is in failures, as far as a terminal shows it. */
static void named(int rank, int ranks, ncclComm_t comm) {
  int values[8] = {0};
  (void)ranks;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t experts, unnamed;
  config.commName = "experts\n";
  OK(ncclCommSplit(comm, 0, rank, &experts, &config));
  REFUSED(ncclInvalidUsage, "of communicator \"experts?\"",
          ncclAllReduce(values, values, 4 + rank, ncclInt, ncclSum, experts, NULL));
  /* A program that was built by an older header has no name there. */
  config.size = offsetof(ncclConfig_t, commName);
  OK(ncclCommSplit(comm, 0, rank, &unnamed, &config));
  EXPECT(ncclInvalidUsage,
         ncclAllReduce(values, values, 4 + rank, ncclInt, ncclSum, unnamed, NULL));
  HOLDS(strstr(ncclGetLastError(NULL), "of communicator") == NULL);
  OK(ncclCommAbort(experts));
  OK(ncclCommAbort(unnamed));
  OK(ncclCommDestroy(comm));
}

static void parameters(void) {
  ncclParamHandle_t algorithm;
  const char *text, **keys;
  int length;
  OK(ncclParamBind(&algorithm, "NCCL_ALGO"));
  OK(ncclParamGetStr(algorithm, &text));
  HOLDS(strcmp(text, "Ring") == 0);
  OK(ncclParamGetParameter("NCCL_ALGO", &text, &length));
  HOLDS(length == 4);
  OK(ncclParamGetAllParameterKeys(&keys, &length));
  HOLDS(length > 0 && strcmp(keys[0], "NCCL_ALGO") == 0);
  REFUSED(ncclInvalidArgument, "the keys are", ncclParamBind(&algorithm, "NCCL_NONE"));
}

int main(void) {
  int version;
  ncclUniqueId id = {{0}};
  ncclComm_t comm;
  OK(ncclGetVersion(&version));
  HOLDS(version == NCCL_VERSION_CODE);
  HOLDS(strcmp(ncclGetErrorString(ncclInvalidUsage), "invalid usage") == 0);
  REFUSED(ncclInvalidArgument, "no unique id", ncclCommInitRank(&comm, 2, id, 0));
  OK(ncclGetUniqueId(&id));
  REFUSED(ncclInvalidArgument, "rank is 2", ncclCommInitRank(&comm, 2, id, 2));
  REFUSED(ncclInvalidArgument, "nranks is 0", ncclCommInitRank(&comm, 0, id, 0));
  REFUSED(ncclInvalidArgument, "comm is NULL", ncclCommInitRank(NULL, 1, id, 0));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.magic = 0;
  REFUSED(ncclInvalidArgument, "config", ncclCommInitRankConfig(&comm, 1, id, 0, &config));
  on_threads(2, named);
  setenv("NCCL_ALGO", "Ring", 1);
  on_threads(2, arguments);
  on_threads(2, differing);
  parameters();
  setenv("NCCL_ALGO", "Star", 1);
  OK(ncclCommInitRank(&comm, 1, id, 0));
  OK(ncclCommDestroy(comm));
  setenv("NCCL_COMM_ID", "127.0.0.1:5000", 1);
  REFUSED(ncclInvalidUsage, "NCCL_COMM_ID=127.0.0.1:5000", ncclGetUniqueId(&id));
  puts("refusals are right");
  return 0;
}
