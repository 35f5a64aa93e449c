//! The text of the help pages around clap's list of options.

pub(crate) const SHORT_END: &str = "\
Example: ringbench all_reduce -e 1M
More, with what the columns and the JSON file mean: ringbench --help";

pub(crate) const END: &str = "\
On a terminal a row has the times of the calls in place, or of the only ones there are, in
microseconds; then, beside them, those of the calls out of place. Elsewhere, or with --format nccl,
columns are those of nccl-tests, then min, p50, mean and p99 of the calls in place, the time that
the library predicted, and the share of the machine's limit in percent.

time is the mean per call of the slowest rank, and the least, the median and the 99th percentile are
of the very same calls of that rank; calls shorter than 2 us are timed a few at once. algbw is
size/time; busbw is algbw times 2(n-1)/n for all_reduce, (n-1)/n where the buffer has a part for
each rank (reduce_scatter, all_gather, gather, scatter, all_to_all), 1 otherwise. Sizes count the
whole buffer and are rounded down to whole elements (per rank where each has a part). In send_recv
each rank sends to the next and receives from the one before. Out of place, broadcast's root copies
its input first, as NCCL does. A barrier has no out-of-place half; gather, scatter and send_recv
have no other.

predicted is what the library's planner says of calls on plain memory. With --limits, rank 0 first
measures what one host allows, and limit is the least time of a call by that, divided by time: the
longest of one hand-over of a cache line between CPUs; the bytes that have to go between CPUs, at
the rate of lines that others wrote; and each buffer read and written once, at the rate of copies
of such buffers. Registered memory that is not refilled may stay in the caches of the CPUs that
work on it, so that nothing has to go between them. Over TCP the bytes that go between ranks count,
at the rate of loopback TCP. Caches that keep more than the copies do lead to more than 100 %.

Between hosts a row has two more columns, for the host that sends the most: network is the bytes
that it sends to other hosts in a call by the schedule of the call, and sent those that its network
interface counted, with all headers and acknowledgements. Below the table stand all hosts and links.

Examples:
Under ringrun, or any launcher that ringreduce knows, ringbench is one rank and rank 0 prints:
  ringrun -n 4 ringbench all_reduce -b 8 -e 64M -f 2
Alone, it launches --ranks N of them, or as many as there are CPUs, but 4 at most:
  ringbench all_reduce --ranks 4 --json result.json --html result.html
  ringbench all_reduce --ranks 4 --compare result.json
On other hosts it launches itself as ringrun does, whose other options need ringrun itself:
  ringbench all_reduce -H node1:4,node2:4

With --device buffers are on CUDA devices: time is of calls made one after the other, of which only
the last is waited for (all are, with -z 1); min, p50, mean and p99 are of calls waited for one by
one. Ranks share a device with --ranks-per-gpu, or if there are more ranks than devices:
  ringbench all_reduce --ranks 4 --device cuda -e 512M
  ringbench all_reduce --ranks 4 --threads --device cuda:0 --ranks-per-gpu 4

JSON: {format: 2, version, command, unix_time, collective, ranks, launched, transport, algorithm,
memory, settings: {the RINGREDUCE_* variables that change how calls are made, if not set to their
defaults}, unalign, refill, check, warmup, blocking, machine: {host, cpu, cpus, kernel},
device: null or {cuda, driver: versions, path: the path of calls},
limits: null, or as ringbench limits --json writes them,
seats: [{rank, pid, cpu, host, device: null or {index, name}}],
rows: [{size, count, type, redop, root, iterations, predicted_us: null if unknown, limit_us: null
without --limits, network: {hosts: [{host, ranks, expected, sent, interface}], links: [{from, to,
bytes}]} if there are several hosts, out_of_place, in_place}], each half null or
{time_us, algbw, busbw, wrong: null if unchecked, min_us, p50_us, mean_us, p99_us},
complete: false of a run that was ended,
probe: {before, after}: null or {cpus, hand_over_ns, distance: near, far or disturbed,
add_gb_per_s},
out_of_bounds, avg_busbw}. Sizes in bytes, bandwidths in GB/s (1e9). The file is a whole document
after each row, so that a run that is ended leaves the rows that it has measured.

With --regret, rows: [{size, count, type, redop, root, iterations, best: {algorithm, time_us},
chosen: {algorithm, time_us}, auto_us, regret_percent, wrong, algorithms: [{algorithm, time_us}]}]
and regret: {median_percent, worst_percent, worst_size}; times are medians of five turns.

Exit status: 0 all results right, 1 a wrong element or a failure, 2 a wrong command line.";
