# The three stages, and their parts.

machine() {
    say "$(uname -srm), $(nproc) CPUs, uid $(id -u), $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-)"
    say "set when the run began: ${environment:-nothing}"
    head -n 1 /proc/driver/nvidia/version 2>/dev/null | relay
    if command -v nvidia-smi >/dev/null; then
        timeout -s KILL 20 nvidia-smi --format=csv,noheader \
            --query-gpu=index,name,driver_version,memory.total,memory.used,compute_mode 2>&1 | relay
    else
        say 'nvidia-smi: none'
    fi
}

# tool NAME: the path of a program of the CUDA toolkit, if there is one.
tool() { command -v "$1" || ls /usr/local/cuda*/bin/"$1" 2>/dev/null | tail -n 1 | grep .; }

# One call of one rank. Without a device all other parts are skipped; a failed call skips none.
device() {
    current=device
    limited 60 "$dir/ringbench" all_reduce --ranks 1 --device cuda -b 8 -e 8 -n 1 -w 0
    grep -aE '^# device|^#  Rank' "$log" | relay
    if [ "$status" != 0 ] && grep -q 'no CUDA driver\|no device that it may use' "$log"; then
        no_device='no device'
        record device "SKIP: $(grep -om1 'there is .*' "$log")" "$took"
    else
        judge
    fi
    keep
}

# body NAME LIMIT: a function of a test, in a process of its own.
body() {
    # Thread ranks that share a device need a hardware queue each.
    part "$1" "$2" env TEST_OWN_DRIVER=1 CUDA_DEVICE_MAX_CONNECTIONS=32 "$dir/test-process" "$1"
}

# facts_of PART LIMIT: facts of the driver without the library, above all the calls that block while a
# stream waits.
facts_of() {
    live=yes part "driver $1" "$2" "$dir/cuda_facts" "$1" ${quick:+--quick} --json "$work/driver-$1.json"
}

stage_facts() {
    local name
    facts_of attrs 30
    body cuda_kernels::body::on_this_machine 200
    until=$((budget * 3 / 4))
    for name in flags hops queue blocked kill; do facts_of "$name" 90; done
    until=$budget
    for name in threads alloc processes staged; do bandwidth "$name" 2 float short; done
    kernels
    for name in graph pinned register; do facts_of "$name" 60; done
}

stage_tests() {
    local name all
    all=$("$dir/test-process" | grep -E '^device::([a-z_]+::)*body::[a-z_0-9]+$')
    until=$((budget * 3 / 4))
    # First the tests that the others build on.
    for name in $(grep -E '^device::(body|direct|verbs|element_types|graphs)::' <<<"$all") \
        $(grep -vE '^device::(body|direct|verbs|element_types|graphs)::' <<<"$all"); do
        body "$name" 60
    done
    until=$budget
    two_hosts
    sanitizer memcheck
    sanitizer racecheck
}

stage_bandwidth() {
    local type how n
    until=$((budget * 3 / 4))
    for type in float bfloat16; do
        for how in threads alloc processes staged; do
            for n in 1 2 4 8; do
                # One rank has no other one's memory to open, and nothing to stage.
                ((n > 1)) || [ "$how" = threads ] || continue
                [ "$how$type$n" = "staged${type}2" ] || [ "$how" != staged ] || continue
                bandwidth "$how" "$n" "$type" short
                [ -n "$quick" ] || bandwidth "$how" "$n" "$type" long
            done
        done
    done
    devices
    until=$budget
    counters
    peers
    nccl_tests
}

# bandwidth HOW N TYPE LENGTH: ringbench with N ranks that share the device, and its rows. HOW is threads
# or processes with plain memory, processes with memory that the other ranks open (alloc), or
# processes by way of the host (staged).
bandwidth() {
    local how=$1 n=$2 type=$3 flags=()
    case $how in
    threads) flags=(--threads) ;;
    alloc) flags=(--memory alloc) ;;
    staged) flags=(--staged) ;;
    esac
    case $4${quick:+quick} in
    short) flags+=(-b 4K -e 16M -f 16) ;;
    long) flags+=(-b 64M -e 512M -f 8 -w 2) ;;
    *) flags+=(-b 4K -e 64K -f 16 -n 5 -w 1) ;;
    esac
    part "bandwidth $how n=$n $type $4" 60 env RINGREDUCE_TIMEOUT=30 "$dir/ringbench" all_reduce \
        "${flags[@]}" --ranks "$n" --device cuda:0 --ranks-per-gpu "$n" -d "$type" \
        --json "$work/bandwidth-$how-$n-$type-$4.json" && rows "$how n=$n"
}

# rows NAME: the rows of the last run of ringbench: bytes, and three figures of calls in place.
rows() {
    tar -xOf "$archive" "./${log##*/}" 2>/dev/null | awk -v name="$1" '!/^#/ && NF == 19 {
        printf "    %-14s %-9s %11s B: time %10s us, p50 one by one %10s us, busbw %9s GB/s, algbw %9s GB/s\n",
            name, $3, $1, $10, $15, $12, $11 }' | relay
}

# The machine's devices, a rank on each.
devices() {
    local n
    n=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
    if ((n < 2)); then
        skip 'bandwidth of several devices' 'there are no two devices'
        return
    fi
    part 'bandwidth of several devices' 60 "$dir/ringbench" all_reduce --ranks "$n" --device cuda \
        -b 4K -e 512M -f 8 && rows "devices n=$n"
}

kernels() {
    part kernels 90 "$dir/bench_cuda" ${quick:+--quick} || return
    # The best number of blocks of each kernel; the log has all.
    tar -xOf "$archive" ./kernels.log 2>/dev/null | awk '/ us$/ { print "    " $0 } NF == 7 && $2 + 0 > 0 {
            row = sprintf("%-18s %s -> %s", $1, $2, $3)
            if (!(row in rate)) { rows[++n] = row; rate[row] = -1 }
            if ($6 + 0 > rate[row] + 0) { rate[row] = $6; best[row] = $6 " GB/s, " $7 " of a copy, " $4 " blocks" }
        }
        END { for (i = 1; i <= n; i++) print "    " rows[i] ": " best[rows[i]] }' | relay
}

# two_hosts: ranks of different users are on different hosts for the library, so that their calls go by
# way of the host and TCP, though they share the device.
two_hosts() {
    local most=64M
    wanted 'two hosts' || return
    [ -z "$quick" ] || most=64K
    if [ "$(id -u)" != 0 ] || ! setpriv --reuid=65534 --regid=65534 --clear-groups \
        test -x "$dir/ringbench" 2>/dev/null; then
        skip 'two hosts' "needs root, setpriv, and a folder that another user can read"
        return
    fi
    # The ranks, by this shell's arguments: ringbench and a port.
    # shellcheck disable=SC2016
    limited 60 env RINGREDUCE_SIZE=2 RINGREDUCE_STORE="127.0.0.1:$((20000 + RANDOM % 10000))" \
        RINGREDUCE_INSECURE=1 RINGREDUCE_TIMEOUT=30 bash -c '
        RINGREDUCE_RANK=1 setpriv --reuid=65534 --regid=65534 --clear-groups "$@" & other=$!
        RINGREDUCE_RANK=0 "$@" && wait "$other"' ranks "$dir/ringbench" all_reduce --device cuda:0 \
        --ranks-per-gpu 2 ${quick:+-n 5 -w 1} -b 4K -e "$most" -f 16
    judge
    keep
    rows 'two hosts'
}

# sanitizer TOOL: short launches of all kernels, in which the tool checks every access. No stream waits
# for another one, as the tool runs one kernel at a time.
sanitizer() {
    local sanitizer
    wanted "compute-sanitizer $1" || return
    if ! sanitizer=$(tool compute-sanitizer); then
        skip "compute-sanitizer $1" 'there is none'
        return
    fi
    part "compute-sanitizer $1" 60 "$sanitizer" --tool "$1" --error-exitcode 9 "$dir/bench_cuda" --quick
}

# counters: bytes of device memory that launches of one kernel read and write, of 64 MiB each source.
counters() {
    wanted ncu || return
    local ncu
    if ! ncu=$(tool ncu); then
        skip ncu 'there is none'
        return
    fi
    limited 90 "$ncu" --clock-control none --metrics dram__bytes_read.sum,dram__bytes_write.sum \
        --kernel-name regex:rr_fold_bf16_sum --launch-count 14 \
        "$dir/bench_cuda" --quick --bytes 67108864
    grep -aE '^ *rr_|dram__bytes' "$log" | relay
    if grep -q dram__bytes "$log"; then
        say '    (two launches each of 1->1, 2->1, 2->2, 4->1, 4->4, 8->1, 8->8; 67.1 MB each is the least)'
        record ncu ok "$took"
    else
        # Many machines do not give the right to read counters, which is no failure.
        record ncu "SKIP: $(grep -aom1 -E 'ERR_[A-Z]+|No kernels were profiled' "$log" ||
            echo "status $status after $took s")" "$took"
    fi
    keep
}

# peers: all_reduce by PyTorch's backends, with ranks that share this device.
peers() {
    wanted peers || return
    if ! timeout -s KILL 60 python3 -c 'import torch' 2>/dev/null; then
        skip peers 'no PyTorch'
        return
    fi
    live=yes part peers 120 python3 "$scripts/peers.py" --json "$work/peers.json"
}

# NCCL's own benchmark, with a rank on each device.
nccl_tests() {
    wanted nccl-tests || return
    local perf
    if ! perf=$(tool all_reduce_perf); then
        skip nccl-tests 'there is no all_reduce_perf'
        return
    fi
    live=yes part nccl-tests 60 "$perf" -b 4K -e 512M -f 8 -g "$(nvidia-smi -L | grep -c '^GPU')"
}
