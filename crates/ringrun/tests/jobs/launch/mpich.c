/* A program of MPICH: `sum` adds the ranks, `abort` ends the job, `spawn` asks for more ranks. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **words)
{
    int rank, size, here, sum, *program, is_set;
    MPI_Comm host, spawned;
    const char *what = count > 1 ? words[1] : "sum";
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (!strcmp(what, "abort") && rank == 1)
        MPI_Abort(MPI_COMM_WORLD, 7);
    if (!strcmp(what, "spawn")) {
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        if (MPI_Comm_spawn("true", MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &spawned,
                           MPI_ERRCODES_IGNORE))
            printf("refused\n");
    } else {
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
        MPI_Comm_size(host, &here);
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &program, &is_set);
        printf("rank %d of %d, %d here, program %d: %d\n", rank, size, here,
               is_set ? *program : -1, sum);
        MPI_Comm_free(&host);
    }
    MPI_Finalize();
    return 0;
}
