/* Functions that few programs call, most of which our header leaves out: each is called once. */
#include "check.h"

typedef struct { int ranks, rank, stride; } team;
team ncclTeamWorld(ncclComm_t), ncclTeamRail(ncclComm_t), ncclTeamLsa(ncclComm_t);
team ncclTeamCft(ncclComm_t, int), ncclTeamCftMultimem(ncclComm_t);
int ncclTeamRankToWorld(ncclComm_t, team, int), ncclTeamRankToLsa(ncclComm_t, team, int);
void ncclParamDumpAll(void), ncclResetDebugInit(void);
ncclResult_t ncclParamGet(ncclParamHandle_t, void *, int, int *);
ncclResult_t ncclSetEncryption(const void *config);

#define WITH_CONFIG(name, ...) \
  ncclResult_t name(const void *, void *, size_t, int, __VA_ARGS__, ncclComm_t, void *, void *);
#define WITHOUT_ARGUMENTS(name) \
  ncclResult_t name(const void *, void *, size_t, int, ncclComm_t, void *, void *);
WITH_CONFIG(ncclAllReduceConfig, int)
WITH_CONFIG(ncclReduceScatterConfig, int)
WITH_CONFIG(ncclReduceConfig, int, int)
WITH_CONFIG(ncclBroadcastConfig, int)
WITH_CONFIG(ncclGatherConfig, int)
WITH_CONFIG(ncclScatterConfig, int)
WITHOUT_ARGUMENTS(ncclAllGatherConfig)
WITHOUT_ARGUMENTS(ncclAlltoAllConfig)

/* For each type of a number: its function. */
#define NUMBERS(each) \
  each(I8, int8_t) each(I16, int16_t) each(I32, int32_t) each(I64, int64_t) \
  each(U8, uint8_t) each(U16, uint16_t) each(U32, uint32_t) each(U64, uint64_t)
#define DECLARED(name, type) ncclResult_t ncclParamGet##name(ncclParamHandle_t, type *);
#define SECOND(name, type) \
  do { type number = 0; OK(ncclParamGet##name(handle, &number)); HOLDS(number == 1); } while (0);
NUMBERS(DECLARED)

/* The functions that refuse, whatever they are given. */
#define REFUSING(each) \
  each(ncclDevCommCreate) each(ncclDevCommDestroy) each(ncclCommQueryProperties) \
  each(ncclGinBarrierCreateRequirement) each(ncclGinInboxA2ACreateRequirement) \
  each(ncclGinOutboxCreateRequirement) each(ncclLLA2ACalcSlots) each(ncclLLA2ACreateRequirement) \
  each(ncclLsaBarrierCreateRequirement) each(ncclGetLsaDevicePointer) \
  each(ncclGetLsaMultimemDevicePointer) each(ncclGetMultimemDevicePointer) \
  each(ncclGetPeerDevicePointer) each(ncclGetCftDeviceLeInfo) each(ncclGetMultimemDeviceLeInfo) \
  each(ncclGetPeerDeviceLeInfo) each(ncclPutSignal) each(ncclSignal) each(ncclWaitSignal)
#define WITHOUT(name) ncclResult_t name(void);
#define IS_REFUSED(name) REFUSED(ncclInvalidUsage, ":", name());
REFUSING(WITHOUT)

#define N 3
#define CALL(name, ...) OK(name(__VA_ARGS__, comm, NULL, NULL))

static void with_configurations(int rank, int ranks, ncclComm_t comm) {
  float mine[N], sum[N], all[N * MOST], turned[N * MOST];
  for (int i = 0; i < N; i++) mine[i] = rank + i;
  CALL(ncclAllReduceConfig, mine, sum, N, ncclFloat, ncclSum);
  for (int i = 0; i < N; i++) HOLDS(sum[i] == ranks * (ranks - 1) / 2 + ranks * i);
  CALL(ncclAllGatherConfig, mine, all, N, ncclFloat);
  for (int i = 0; i < N * ranks; i++) HOLDS(all[i] == i / N + i % N);
  CALL(ncclReduceScatterConfig, all, sum, N, ncclFloat, ncclMax);
  for (int i = 0; i < N; i++) HOLDS(sum[i] == rank + i);
  CALL(ncclAlltoAllConfig, all, turned, N, ncclFloat);
  for (int i = 0; i < N * ranks; i++) HOLDS(turned[i] == rank + i % N);
  CALL(ncclReduceConfig, mine, sum, N, ncclFloat, ncclMax, 1);
  for (int i = 0; i < N && rank == 1; i++) HOLDS(sum[i] == ranks - 1 + i);
  CALL(ncclBroadcastConfig, mine, sum, N, ncclFloat, 1);
  for (int i = 0; i < N; i++) HOLDS(sum[i] == 1 + i);
  CALL(ncclGatherConfig, mine, turned, N, ncclFloat, 0);
  for (int i = 0; i < N * ranks && rank == 0; i++) HOLDS(turned[i] == all[i]);
  CALL(ncclScatterConfig, all, sum, N, ncclFloat, 0);
  for (int i = 0; i < N; i++) HOLDS(sum[i] == rank + i);
}

static void teams(int rank, int ranks, ncclComm_t comm) {
  team world = ncclTeamWorld(comm), rail = ncclTeamRail(comm);
  HOLDS(world.ranks == ranks && world.rank == rank && world.stride == 1);
  HOLDS(memcmp(&world, &rail, sizeof world) == 0);
  team alone[] = {ncclTeamLsa(comm), ncclTeamCft(comm, 0), ncclTeamCftMultimem(comm)};
  for (int i = 0; i < 3; i++) HOLDS(alone[i].ranks == 1 && alone[i].rank == 0);
  HOLDS(ncclTeamRankToWorld(comm, alone[0], 0) == rank && ncclTeamRankToWorld(comm, world, 1) == 1);
  HOLDS(ncclTeamRankToLsa(comm, alone[0], 0) == 0);
  HOLDS(ncclTeamWorld(NULL).ranks == 0);
}

static void body(int rank, int ranks, ncclComm_t comm) {
  with_configurations(rank, ranks, comm);
  teams(rank, ranks, comm);
  OK(ncclCommRevoke(comm, 0));
  int value = 1;
  HOLDS(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, NULL) != ncclSuccess);
  REFUSED(ncclInvalidArgument, "revokeFlags is 2", ncclCommRevoke(comm, 2));
  OK(ncclCommAbort(comm));
}

static void parameters(void) {
  ncclParamHandle_t handle;
  char text[4];
  int length;
  setenv("NCCL_SHM_DISABLE", "1", 1);
  OK(ncclParamBind(&handle, "NCCL_SHM_DISABLE"));
  NUMBERS(SECOND)
  OK(ncclParamGet(handle, text, sizeof text, &length));
  HOLDS(length == 1 && text[0] == '1');
  REFUSED(ncclInvalidArgument, "out takes 0 of 1 bytes", ncclParamGet(handle, text, 0, &length));
  REFUSED(ncclInvalidArgument, "out takes -1 of 1", ncclParamGet(handle, text, -1, &length));
  ncclParamDumpAll();
  ncclResetDebugInit();
  unsetenv("NCCL_SHM_DISABLE");
}

int main(void) {
  ncclUniqueId ids[2];
  ncclComm_t comm;
  for (int i = 0; i < 2; i++) OK(ncclGetUniqueId(&ids[i]));
  EXPECT(ncclInvalidArgument, ncclCommInitRankScalable(&comm, 2, 0, 0, ids, NULL));
  OK(ncclCommInitRankScalable(&comm, 1, 0, 1, ids, NULL));
  OK(ncclCommDestroy(comm));
  on_threads(3, body);
  parameters();
  REFUSING(IS_REFUSED)
  REFUSED(ncclInvalidArgument, "config is NULL", ncclSetEncryption(NULL));
  puts("other functions are right");
  return 0;
}
