// The driver of oneCCL. Its arguments are RANKS, then those of loop.h. The address of rank 0's
// store goes to the other ranks through shared memory.
#include <atomic>
#include <oneapi/ccl.hpp>
#include <optional>

#include "loop.h"

// The static library names the hooks of Intel's tracer and brings none; a null hook is not called.
extern "C" {
void *__itt_domain_create_ptr__3_0, *__itt_event_create_ptr__3_0, *__itt_event_end_ptr__3_0,
    *__itt_event_start_ptr__3_0, *__itt_metadata_add_ptr__3_0, *__itt_string_handle_create_ptr__3_0,
    *__itt_task_begin_ptr__3_0, *__itt_task_end_ptr__3_0, *__itt_thread_set_name_ptr__3_0;
}

static std::optional<ccl::communicator> comm;

static void call(float *in, float *out, size_t count) {
    const auto sum = ccl::reduction::sum;
    if (is("all_reduce"))
        ccl::allreduce(out, out, count, sum, *comm).wait();
    else if (is("all_gather"))
        ccl::allgather(in, out, count, *comm).wait();
    else if (is("reduce_scatter"))
        ccl::reduce_scatter(in, out, count / ranks, sum, *comm).wait();
    else if (is("broadcast"))
        ccl::broadcast(out, count, 0, *comm).wait();
    else if (is("reduce"))
        ccl::reduce(out, out, count, sum, 0, *comm).wait();
    else
        ccl::alltoall(in, out, count / ranks, *comm).wait();
}

static double largest(double mine) {
    ccl::allreduce(&mine, &mine, 1, ccl::reduction::max, *comm).wait();
    return mine;
}

struct Meeting {
    std::atomic<int> is_open;
    ccl::kvs::address_type address;
};

int main(int argc, char **argv) {
    auto meeting = static_cast<Meeting *>(fork_ranks(argc, argv, sizeof(Meeting)));
    ccl::init();
    ccl::shared_ptr_class<ccl::kvs> store;
    if (rank == 0) {
        store = ccl::create_main_kvs();
        meeting->address = store->get_address();
        meeting->is_open = 1;
    } else {
        while (!meeting->is_open) usleep(1000);
        store = ccl::create_kvs(meeting->address);
    }
    comm = ccl::create_communicator(ranks, rank, store);
    measure(argc - 1, argv + 1);
    largest(0);
    fflush(stdout);
    _exit(0); // The library's own end crashes now and then.
}
