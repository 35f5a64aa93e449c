#!/bin/sh
# Two hosts that are network namespaces, with a cable of 1 Gbit/s (or $RATE) between them, and a rank on each:
# crates/strategy/examples/overlap.sh target/release/examples/overlap_trace [ARGUMENTS]
# Needs root, iproute2 and util-linux.
set -eu
program=$1
shift
for name in overlap-0 overlap-1; do
    ip netns add "$name"
done
trap 'ip netns del overlap-0; ip netns del overlap-1' EXIT
ip -n overlap-0 link add eth0 type veth peer name eth0 netns overlap-1
for rank in 0 1; do
    ip -n "overlap-$rank" link set lo up
    ip -n "overlap-$rank" address add "10.77.1.$((rank + 1))/24" dev eth0
    ip -n "overlap-$rank" link set eth0 up
    tc -n "overlap-$rank" qdisc add dev eth0 root tbf rate "${RATE:-1gbit}" burst 128kb latency 20ms
done
export RINGREDUCE_SIZE=2 RINGREDUCE_STORE=10.77.1.1:7000 RINGREDUCE_INSECURE=1
run() {
    rank=$1
    shift
    RINGREDUCE_RANK=$rank ip netns exec "overlap-$rank" unshare --uts sh -c \
        'echo "$0" >/proc/sys/kernel/hostname && exec "$@"' "overlap-$rank" "$program" "$@"
}
run 1 "$@" &
run 0 "$@"
wait
