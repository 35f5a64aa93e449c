// The driver of Open MPI, MPICH and Intel MPI.
#include "loop.h"
#include <mpi.h>
#define COMM MPI_COMM_WORLD

static void call(float *in, float *out, size_t count) {
    if (is("all_reduce"))
        MPI_Allreduce(MPI_IN_PLACE, out, count, MPI_FLOAT, MPI_SUM, COMM);
    else if (is("all_gather"))
        MPI_Allgather(in, count, MPI_FLOAT, out, count, MPI_FLOAT, COMM);
    else if (is("reduce_scatter"))
        MPI_Reduce_scatter_block(in, out, count / ranks, MPI_FLOAT, MPI_SUM, COMM);
    else if (is("broadcast"))
        MPI_Bcast(out, count, MPI_FLOAT, 0, COMM);
    else if (is("reduce"))
        MPI_Reduce(rank == 0 ? MPI_IN_PLACE : out, out, count, MPI_FLOAT, MPI_SUM, 0, COMM);
    else
        MPI_Alltoall(in, count / ranks, MPI_FLOAT, out, count / ranks, MPI_FLOAT, COMM);
}

static double largest(double mine) {
    MPI_Allreduce(MPI_IN_PLACE, &mine, 1, MPI_DOUBLE, MPI_MAX, COMM);
    return mine;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(COMM, &rank);
    MPI_Comm_size(COMM, &ranks);
    measure(argc, argv);
    MPI_Finalize();
}
