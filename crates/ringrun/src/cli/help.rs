//! The text of the help page around clap's list of options.

pub(crate) const USAGE: &str = "\
ringrun -n N [OPTIONS] PROGRAM [ARGUMENTS]... [: -n N PROGRAM [ARGUMENTS]...]
       ringrun plan|status|secret|doctor|topo|completions|man [OPTIONS]";

pub(crate) const ABOUT: &str = "\
Start the ranks of a parallel job, on this host or on several, and end them together.

Each rank is one process of PROGRAM. It finds its rank in RINGREDUCE_RANK and RINGREDUCE_SIZE \
(from 0), and Communicator::from_env() joins the job. Options stand before PROGRAM; everything \
after it belongs to it. The usual spellings of mpirun, mpiexec.hydra and torchrun work too.";

pub(crate) const SHORT_END: &str = "\
Example: ringrun -n 4 ringbench all_reduce
More of a subcommand: ringrun plan --help
More, with examples and exit codes: ringrun --help";

pub(crate) const END: &str = "\
Examples:
  ringrun -n 4 ./train --epochs 3
      four ranks on this host
  ringrun -n 8 --bind-to core --report-bindings ringbench all_reduce
      each on a CPU of its own, for steady measurements
  ringrun -n 4 --tag-output --output-filename logs ./train
      the rank of each line, on the terminal and in logs/rank.0/stdout and so on
  ringrun -n 4 --timeout 60 -x RINGREDUCE_TRANSPORT=tcp ./test
      over TCP, and ended after a minute if it hangs
  ringrun --elastic 2:4 ./train
      four ranks; a lost rank is started again, and the others go on while two are left
  ringrun -n 2 sh -c 'echo rank $RINGREDUCE_RANK of $RINGREDUCE_SIZE'
      any program will do, and one of MPICH is one world, as under its mpiexec

  ringrun -n 1 ./server : -n 3 -x ROLE=worker ./worker --fast
      two programs in one job: rank 0 is a server, ranks 1 to 3 are workers

  ringrun -H node1:4,node2:4 ./train
      four ranks on each of two hosts, which ssh reaches without a password

  ringrun -H node1 -n 1 ./server : -H node2:4 ./worker
      each program on hosts of its own

Several programs:
  Behind ':' stands another program with its -n N, and -x, --genv, --wdir or --python of its own.
  A word ':' alone always ends a program: one that needs it as an argument is started by a shell.
  What stands before the first program holds for all. The ranks are numbered program by program,
  so -H node1:1,node2:3 places the server above on node1 and the workers on node2.
  A program behind ':' may have -H or --hostfile of its own, with -N, and runs on these hosts alone.
  Programs without a list share that of the first one; if it has none, and no batch system names
  hosts, they have the slots that other programs leave. A host in several lists is one host.

Hosts:
  Without --host and --hostfile the hosts are those of the first of these that is there, and this
  host alone if none is or it names no other: SLURM_JOB_NODELIST, with SLURM_TASKS_PER_NODE or
  SLURM_JOB_CPUS_PER_NODE for the slots; the file of PBS, LSF or Grid Engine that PBS_NODEFILE,
  LSB_DJOB_HOSTFILE or PE_HOSTFILE names; a host file that OMPI_MCA_orte_default_hostfile,
  HYDRA_HOST_FILE or I_MPI_HYDRA_HOST_FILE names; /etc/mpi/hostfile, which the MPI operator of
  Kubernetes mounts. -H localhost takes this host all the same.
  A host has the slots that its mentions say, and one for a mention without a count. On several
  hosts more ranks than slots need --oversubscribe; on one host -n says it all.

How a job ends:
  All is well when every rank exits with 0. The first rank that does not ends the job: the others
  get SIGTERM, and SIGKILL 30 s later or as --kill-after says. One message names that rank, its
  process and what happened.
  With --elastic MIN:MAX such a rank is started again instead, at once if the others had let it in
  and after 1, 2, 4, .. 32 s if not, --max-restarts times (3) at most; its output is appended. One
  that exits with 130 or 143 was told to end by SIGINT or SIGTERM, and is not started again. The
  job goes on while MIN ranks are left, and ends well if all those do. With fewer it ends as above,
  and so it does if one is lost while they meet for the first time. The ranks of a host that
  is lost wait until ringrun, which tries again and again, has an agent there.
  Ctrl-C (or SIGTERM, SIGHUP, SIGQUIT) ends the job the same way; a second one kills at once.
  Ranks start with default signal dispositions and nothing blocked, and ringrun heeds these signals
  even where its starter ignores or blocks them. Under nohup it ignores SIGHUP, and so do the ranks.
  SIGUSR1 makes ringrun say which call each rank is in, as `ringrun status JOB` does, and goes on
  to ranks that have a handler for it.
  SIGUSR2, SIGALRM, SIGABRT, SIGTSTP and SIGCONT are passed on to the ranks: where processes of a
  rank have a handler (the program behind a shell), to those alone.
  Processes that a rank leaves behind get 1 s to finish after the last rank has ended.
  Nothing survives ringrun, even if it is killed by SIGKILL: a second process, ring-watch, sees to
  that. Only if both are killed at once can processes that the ranks started stay behind.

Exit code:
  0    every rank exited with 0
  N    the exit status of the rank that failed first, or 128 + N if signal N killed it, or the
       code that a rank gave to MPI_Abort (1 instead of 0)
  124  the time limit was reached
  126  PROGRAM can't be run        127  there is no such PROGRAM
  2    the command line is wrong   1    the system refused something, or output was lost

Variables of ranks:
  RINGREDUCE_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; for programs of torchrun RANK, WORLD_SIZE,
  LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK and, unless set, MASTER_ADDR, MASTER_PORT (a free one)
  and OMP_NUM_THREADS (the CPUs divided by the ranks of the host); for TensorFlow, unless set and
  without --nnodes, TF_CONFIG of up to 32 KiB; for programs of MPICH PMI_FD, PMI_RANK, PMI_SIZE,
  MPI_LOCALRANKID and MPI_LOCALNRANKS.

Input and output:
  Rank 0 has ringrun's standard input, the others get /dev/null. Lines of ranks never mix; one
  that is longer than 64 KiB comes in pieces, and one without an end (a prompt, a progress bar)
  within 100 ms. If the reader of ringrun's output has left, the ranks are told so as the system
  would tell them (SIGPIPE). If it reads nothing for 8 s while 60 MiB wait, lines are dropped and
  counted, and the ranks go on.";
