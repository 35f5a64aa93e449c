// Ranks that are forked by the driver itself, for libraries that have no launcher of their own.
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

// Returns in every rank, with zeroed memory that all ranks share; argv[1] is the number of ranks.
// The process that forks them waits, and ends them all if one fails, since the others would wait
// for it.
static void *fork_ranks(int argc, char **argv, size_t bytes) {
    ranks = argc > 1 ? atoi(argv[1]) : 0;
    void *shared = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ranks < 1 || shared == MAP_FAILED) {
        fprintf(stderr, "%s: RANKS is missing, or there is no shared memory\n", argv[0]);
        exit(2);
    }
    for (rank = 0; rank < ranks; rank++) {
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            return shared;
        }
    }
    for (int status; wait(&status) > 0;)
        if (status != 0) exit(1);
    exit(0);
}
