// ringreduce: collectives between the ranks of a job. This file is made of crates/capi/src.
//
// Every function but rr_last_failure, rr_version and those that return a number of a communicator
// returns RR_OK or why it failed; rr_last_failure then says more: the rank, the host, the step.
// A function waits for other ranks for at most the communicator's timeout.
//
// A communicator is used by one thread at a time: a call waits for one of another thread to end.
// Messages, rr_check, rr_abort and the numbers of a communicator are for any thread, at any time.

#ifndef RINGREDUCE_H
#define RINGREDUCE_H

#include <stddef.h>
#include <stdint.h>

// Any rank or tag of a message that is received.
#define RR_ANY -1

// Bytes of an rr_unique_id.
#define RR_UNIQUE_ID_BYTES 128

// How a function has ended.
typedef enum rr_status {
  // It did what it says.
  RR_OK = 0,
  // An argument is wrong. Nothing was sent.
  RR_ARGUMENT = 1,
  // A setting or an environment variable is wrong.
  RR_CONFIG = 2,
  // The ranks could not meet.
  RR_START = 3,
  // A rank did not come in time.
  RR_TIMEOUT = 4,
  // A rank has ended.
  RR_PEER_LOST = 5,
  // Ranks make different calls, or with different lengths.
  RR_MISMATCH = 6,
  // A rank has ended all calls.
  RR_ABORTED = 7,
  // An earlier call has failed, the communicator is closed, or this process is a fork.
  RR_BROKEN = 8,
  // The operating system refuses something.
  RR_SYSTEM = 9,
  // A device or its driver refuses something.
  RR_DEVICE = 10,
  // Another failure; the message says which.
  RR_OTHER = 11,
} rr_status;

// The type of an element.
typedef enum rr_datatype {
  // int8_t
  RR_INT8 = 0,
  // uint8_t
  RR_UINT8 = 1,
  // int16_t
  RR_INT16 = 2,
  // uint16_t
  RR_UINT16 = 3,
  // int32_t
  RR_INT32 = 4,
  // uint32_t
  RR_UINT32 = 5,
  // int64_t
  RR_INT64 = 6,
  // uint64_t
  RR_UINT64 = 7,
  // IEEE 754 binary16
  RR_FLOAT16 = 8,
  // bfloat16
  RR_BFLOAT16 = 9,
  // float
  RR_FLOAT = 10,
  // double
  RR_DOUBLE = 11,
  // OCP 8-bit float, 4 bits of exponent
  RR_FLOAT8_E4M3 = 12,
  // OCP 8-bit float, 5 bits of exponent
  RR_FLOAT8_E5M2 = 13,
  // float complex
  RR_COMPLEX64 = 14,
  // double complex
  RR_COMPLEX128 = 15,
  // struct { float value; uint32_t index; }
  RR_FLOAT_LOC = 16,
  // struct { double value; uint64_t index; }
  RR_DOUBLE_LOC = 17,
  // struct { int32_t value; uint32_t index; }
  RR_INT32_LOC = 18,
  // struct { int64_t value; uint64_t index; }
  RR_INT64_LOC = 19,
} rr_datatype;

// How elements are reduced.
typedef enum rr_op {
  // a + b; integers wrap.
  RR_SUM = 0,
  // a * b; integers wrap.
  RR_PROD = 1,
  // The smaller one; NaN if either is NaN.
  RR_MIN = 2,
  // The larger one; NaN if either is NaN.
  RR_MAX = 3,
  // The sum divided by the number of ranks.
  RR_AVG = 4,
  // Bitwise AND of integers.
  RR_BAND = 5,
  // Bitwise OR of integers.
  RR_BOR = 6,
  // Bitwise exclusive OR of integers.
  RR_BXOR = 7,
  // 1 if both are non-zero, else 0.
  RR_LAND = 8,
  // 1 if either is non-zero, else 0.
  RR_LOR = 9,
  // 1 if exactly one is non-zero, else 0.
  RR_LXOR = 10,
  // The smaller value with its index.
  RR_MINLOC = 11,
  // The larger value with its index.
  RR_MAXLOC = 12,
} rr_op;

// The order in which a user's function combines the ranks' elements.
typedef enum rr_order {
  // Any order, the same on every rank; for functions that are commutative.
  RR_ANY_ORDER = 0,
  // ((rank 0, rank 1), rank 2), ...; for functions that are associative only.
  RR_RANK_ORDER = 1,
} rr_order;

// Which collective a call is: those of the functions with these names.
typedef enum rr_verb {
  // rr_all_reduce
  RR_ALL_REDUCE = 0,
  // rr_reduce
  RR_REDUCE = 1,
  // rr_reduce_scatter
  RR_REDUCE_SCATTER = 2,
  // rr_broadcast
  RR_BROADCAST = 3,
  // rr_all_gather
  RR_ALL_GATHER = 4,
  // rr_all_to_all
  RR_ALL_TO_ALL = 5,
  // rr_gather
  RR_GATHER = 6,
  // rr_scatter
  RR_SCATTER = 7,
  // rr_scan
  RR_SCAN = 8,
  // rr_exscan
  RR_EXSCAN = 9,
} rr_verb;

// A communicator: this rank, and its links to the others.
typedef struct rr_comm rr_comm;

// A call or a message that was started.
typedef struct rr_request rr_request;

// A collective as a value. Members that a collective has no use for are not looked at, but have to
// be zero: later versions may add members, and give them a use.
typedef struct rr_call {
  // sizeof(rr_call), by which the library knows the members that the program knows.
  size_t size;
  // The collective, of rr_verb.
  int verb;
  // The data that this rank sends.
  const void *sendbuff;
  // The buffer in which this rank receives.
  void *recvbuff;
  // Elements, as the collective's function counts them.
  size_t count;
  // Their type, of rr_datatype.
  int datatype;
  // The reduction, of rr_op.
  int op;
  // The root.
  int root;
} rr_call;

// A setting of a communicator, which goes before the environment's. The names are those of the
// options in docs/launching.md, such as `timeout` in seconds.
typedef struct rr_setting {
  // Its name.
  const char *name;
  // Its value.
  const char *value;
} rr_setting;

// Brings ranks together that no launcher starts: rank 0's, in a copy at every rank.
typedef struct rr_unique_id {
  // An address and a secret.
  uint8_t bytes[RR_UNIQUE_ID_BYTES];
} rr_unique_id;

// A message that was received or sent.
typedef struct rr_message {
  // The rank at the other end.
  int peer;
  // Its tag.
  uint32_t tag;
  // Its type, of rr_datatype.
  int datatype;
  // Its elements.
  size_t count;
} rr_message;

// Combines `count` elements: `inout[i] = left[i] (op) inout[i]`. The left one comes from the rank
// that is earlier in the fold. It must not throw or jump out.
typedef void (*rr_function)(const void *left, void *inout, size_t count, void *context);

// The facts of a failure. Numbers that a failure has not are -1, and texts NULL.
typedef struct rr_failure {
  // The status that the function has returned.
  enum rr_status status;
  // A sentence: the failure, the rank that it concerns, and the remedy.
  const char *message;
  // The rank that reports.
  int rank;
  // The name of its host.
  const char *host;
  // The step of the call, from 0.
  int64_t step;
  // The number of the call on its communicator, from 1.
  int64_t sequence;
  // The rank at fault.
  int peer;
  // The name of its host.
  const char *peer_host;
} rr_failure;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Makes a call, and waits for it.
enum rr_status rr_run(struct rr_comm *comm, const struct rr_call *call);

// Starts a call and returns at once; its buffers are left alone until rr_wait or rr_test says that
// it has ended. Calls that were started are made in their order, also if nobody waits.
enum rr_status rr_start(struct rr_comm *comm,
                        const struct rr_call *call,
                        struct rr_request **request);

// Puts a call on a CUDA stream (a CUstream or cudaStream_t), after what is there, and returns at
// once. Its buffers are memory of the device of rr_use_device. rr_check tells of a failure after
// the stream was synchronised.
enum rr_status rr_enqueue(struct rr_comm *comm, const struct rr_call *call, void *stream);

// Returns once every rank has called it.
enum rr_status rr_barrier(struct rr_comm *comm);

// Reduces `count` elements over all ranks; all get the result. In place if the buffers are one.
enum rr_status rr_all_reduce(struct rr_comm *comm,
                             const void *sendbuff,
                             void *recvbuff,
                             size_t count,
                             int datatype,
                             int op);

// Reduces `count` elements over all ranks; `root` gets the result. In place if the buffers are
// one.
enum rr_status rr_reduce(struct rr_comm *comm,
                         const void *sendbuff,
                         void *recvbuff,
                         size_t count,
                         int datatype,
                         int op,
                         int root);

// Reduces size x `count` elements over all ranks; rank r gets part r, of `count` elements. In
// place if `recvbuff` is part r of `sendbuff`.
enum rr_status rr_reduce_scatter(struct rr_comm *comm,
                                 const void *sendbuff,
                                 void *recvbuff,
                                 size_t count,
                                 int datatype,
                                 int op);

// Copies `count` elements of the root's `sendbuff` to every rank's `recvbuff`. In place if the
// buffers are one; other ranks' `sendbuff` is not looked at.
enum rr_status rr_broadcast(struct rr_comm *comm,
                            const void *sendbuff,
                            void *recvbuff,
                            size_t count,
                            int datatype,
                            int root);

// Gathers `count` elements of each rank, in the order of ranks, at all ranks. In place if
// `sendbuff` is part r of `recvbuff`.
enum rr_status rr_all_gather(struct rr_comm *comm,
                             const void *sendbuff,
                             void *recvbuff,
                             size_t count,
                             int datatype);

// Sends `count` elements to each rank, and receives as many from each. In place if the buffers are
// one.
enum rr_status rr_all_to_all(struct rr_comm *comm,
                             const void *sendbuff,
                             void *recvbuff,
                             size_t count,
                             int datatype);

// Gathers `count` elements of each rank at the root. In place if the root's `sendbuff` is its part
// of `recvbuff`.
enum rr_status rr_gather(struct rr_comm *comm,
                         const void *sendbuff,
                         void *recvbuff,
                         size_t count,
                         int datatype,
                         int root);

// Sends `count` elements of the root's `sendbuff` to each rank. In place if the root's `recvbuff`
// is its part of `sendbuff`.
enum rr_status rr_scatter(struct rr_comm *comm,
                          const void *sendbuff,
                          void *recvbuff,
                          size_t count,
                          int datatype,
                          int root);

// Reduces `count` elements; rank r gets the result over ranks 0 to r. In place if the buffers are
// one.
enum rr_status rr_scan(struct rr_comm *comm,
                       const void *sendbuff,
                       void *recvbuff,
                       size_t count,
                       int datatype,
                       int op);

// Reduces `count` elements; rank r gets the result over the ranks below r, and rank 0 keeps its
// `recvbuff`. In place if the buffers are one.
enum rr_status rr_exscan(struct rr_comm *comm,
                         const void *sendbuff,
                         void *recvbuff,
                         size_t count,
                         int datatype,
                         int op);

// Gives the communicator the CUDA device with this number, or none if it is negative. All ranks
// call this together, with and without devices. Then collectives take buffers of the device, which
// rr_enqueue puts on a stream.
enum rr_status rr_use_device(struct rr_comm *comm, int device);

// The version of the library, such as "0.1.0".
const char *rr_version(void);

// Makes the rank that the environment describes: of ringrun, torchrun, Open MPI, MPICH, Intel MPI
// or Slurm; without any of them, of a world of one rank. `settings` may be NULL if `count` is 0.
enum rr_status rr_init(struct rr_comm **comm, const struct rr_setting *settings, size_t count);

// Makes an id by which ranks meet that no launcher starts. One rank calls this, and its program
// brings the id to the others. `host_interface` is the network interface to listen on, or NULL.
enum rr_status rr_make_unique_id(struct rr_unique_id *id, const char *host_interface);

// Makes rank `rank` of `size` ranks that have the same id. Rank 0 is where the id was made.
enum rr_status rr_init_by_id(struct rr_comm **comm,
                             const struct rr_unique_id *id,
                             int rank,
                             int size,
                             const struct rr_setting *settings,
                             size_t count);

// Makes `size` ranks that are threads of this process, in the array `comms`.
enum rr_status rr_init_local(struct rr_comm **comms,
                             size_t size,
                             const struct rr_setting *settings,
                             size_t count);

// Makes a communicator of the ranks that pass the same `color`, in the order of `key` and then of
// their ranks. All ranks call this. With a negative color a rank has no part: `*made` is NULL.
enum rr_status rr_split(struct rr_comm *comm, int color, int64_t key, struct rr_comm **made);

// Makes a communicator of the same ranks. All ranks call this.
enum rr_status rr_duplicate(struct rr_comm *comm, struct rr_comm **made);

// Makes a communicator of `count` ranks of one host, in this order. They alone call this, with the
// same ranks and `tag`. Threads that make groups of the same ranks at the same time use different
// tags.
enum rr_status rr_create_group(struct rr_comm *comm,
                               const int *ranks,
                               size_t count,
                               uint64_t tag,
                               struct rr_comm **made);

// Makes a communicator of the ranks that are left after a failure. They all call this, within
// `seconds`, of which INFINITY are no limit.
enum rr_status rr_shrink(struct rr_comm *comm, double seconds, struct rr_comm **made);

// Names the communicator, at this rank alone, so that messages, `ringrun status` and metrics tell
// it from others: 1 to 64 bytes of printable UTF-8. Those of `rr_split` are named "name/color"
// after it, those of `rr_duplicate` "name/duplicate", and what `rr_shrink` makes goes on under the
// name.
enum rr_status rr_set_name(struct rr_comm *comm, const char *name);

// Ends this rank's part, after its started calls; frees its registered memory. NULL is nothing to
// do, and a second time is an error.
enum rr_status rr_close(struct rr_comm *comm);

// This rank, from 0; -1 if `comm` is no communicator.
int rr_rank(const struct rr_comm *comm);

// The number of ranks; -1 if `comm` is no communicator.
int rr_size(const struct rr_comm *comm);

// This rank's number among the ranks of its host; -1 if `comm` is no communicator.
int rr_local_rank(const struct rr_comm *comm);

// The number of ranks of this host; -1 if `comm` is no communicator.
int rr_local_size(const struct rr_comm *comm);

// Allocates memory that the other ranks of this host can map too, all zero. Collectives whose
// buffers all ranks have in such memory copy nothing. Each rank allocates what it likes.
enum rr_status rr_alloc(struct rr_comm *comm, size_t bytes, void **memory);

// Frees memory of rr_alloc, which no call uses any more. NULL is nothing to do.
enum rr_status rr_free(struct rr_comm *comm, void *memory);

// Sends `count` elements to rank `to`, and returns once the buffer may be used again.
enum rr_status rr_send(const struct rr_comm *comm,
                       const void *buffer,
                       size_t count,
                       int datatype,
                       int to,
                       uint32_t tag);

// Receives a message of `count` elements from rank `from`, or RR_ANY, with `tag`, or RR_ANY.
// `message` is NULL, or gets the message. A message of another type or length is RR_MISMATCH.
enum rr_status rr_recv(const struct rr_comm *comm,
                       void *buffer,
                       size_t count,
                       int datatype,
                       int from,
                       int64_t tag,
                       struct rr_message *message);

// Receives a message of any length, as rr_recv does one of a known length. `*buffer` becomes
// memory for it, which you free with free(), or NULL after a failure; `message` has its length. No
// other thread takes the message in between, as it may between rr_probe and rr_recv.
enum rr_status rr_recv_any(const struct rr_comm *comm,
                           void **buffer,
                           int datatype,
                           int from,
                           int64_t tag,
                           struct rr_message *message);

// Starts rr_send and returns at once; the buffer is left alone until the request has ended.
enum rr_status rr_isend(const struct rr_comm *comm,
                        const void *buffer,
                        size_t count,
                        int datatype,
                        int to,
                        uint32_t tag,
                        struct rr_request **request);

// Starts rr_recv and returns at once; the buffer is left alone until the request has ended.
enum rr_status rr_irecv(const struct rr_comm *comm,
                        void *buffer,
                        size_t count,
                        int datatype,
                        int from,
                        int64_t tag,
                        struct rr_request **request);

// Waits for a message that no receive has met, and says what it is: how long, above all. Another
// thread may receive that message first: rr_recv_any looks and receives at once.
enum rr_status rr_probe(const struct rr_comm *comm,
                        int from,
                        int64_t tag,
                        struct rr_message *message);

// The first failure of a communicator, of any call: also of a started one, or of one on a stream.
// Never waits, and is for any thread.
enum rr_status rr_check(const struct rr_comm *comm);

// Ends the call of this rank, or else its next one, with RR_ABORTED, and tells the other ranks.
// Never waits, and is for any thread.
enum rr_status rr_abort(const struct rr_comm *comm);

// Reduces `count` elements of `size` bytes over all ranks, in place, by a function of the
// caller's. `name` is the same at all ranks and tells functions apart; `order` is of rr_order;
// `context` is passed to the function.
enum rr_status rr_all_reduce_by(struct rr_comm *comm,
                                void *buffer,
                                size_t count,
                                size_t size,
                                int order,
                                const char *name,
                                rr_function function,
                                void *context);

// Reduces size x `count` elements by a function, as rr_all_reduce_by; rank r gets part r.
enum rr_status rr_reduce_scatter_by(struct rr_comm *comm,
                                    const void *sendbuff,
                                    void *recvbuff,
                                    size_t count,
                                    size_t size,
                                    int order,
                                    const char *name,
                                    rr_function function,
                                    void *context);

// Gathers `counts[r]` elements of each rank r, in the order of ranks, at all ranks; `sendbuff` has
// this rank's.
enum rr_status rr_all_gather_v(struct rr_comm *comm,
                               const void *sendbuff,
                               void *recvbuff,
                               const size_t *counts,
                               int datatype);

// Sends `sendcounts[r]` elements to each rank r, in the order of ranks, and receives
// `recvcounts[r]` from each.
enum rr_status rr_all_to_all_v(struct rr_comm *comm,
                               const void *sendbuff,
                               const size_t *sendcounts,
                               void *recvbuff,
                               const size_t *recvcounts,
                               int datatype);

// Waits until a call or a message has ended, and returns how. The request is freed and `*request`
// becomes NULL, whatever the status. `message` is NULL, or gets the message.
enum rr_status rr_wait(struct rr_request **request, struct rr_message *message);

// Says whether rr_wait would return at once; `*done` becomes 1 or 0.
enum rr_status rr_test(const struct rr_request *request, int *done);

// The thread's last failure; NULL before the first. It stays until the thread's next failure.
const struct rr_failure *rr_last_failure(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RINGREDUCE_H */
