#!/usr/bin/env python3
"""all_reduce of torch.distributed, in place, with ranks that share one GPU.

peers.py [--seconds N] [--json FILE] [--cpu] [WORLD...], where a WORLD is gloo:2 or nccl:2 (those
two and gloo:4 by default). gloo takes CUDA tensors over the host; NCCL refuses ranks that
share a device, or from 2.30 on tries with NCCL_MULTI_RANK_GPU_ENABLE=1, which is set here. Each
world has a deadline, each result is checked, and a failed world stops no other. Needs torch: without
it, or without a GPU, the script prints SKIP. --cpu tries the script, and is no measurement.

Not yet run on a GPU.
"""

import argparse
import contextlib
import datetime
import json
import os
import selectors
import signal
import statistics
import sys
import tempfile
import time

KIB, MIB = 1 << 10, 1 << 20
# Bytes of a call, and numbers of calls.
SIZES = [(4 * KIB, 20), (MIB, 20), (64 * MIB, 5), (512 * MIB, 3)]
WORLDS = ["gloo:2", "nccl:2", "gloo:4"]


def name(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


class Rank:
    """One process of a world."""

    def __init__(self, torch, backend, rank, size, path, options):
        self.torch, self.rank, self.size = torch, rank, size
        self.device = "cpu" if options.cpu else "cuda:0"
        if not options.cpu:
            torch.cuda.set_device(0)
        torch.distributed.init_process_group(
            backend,
            init_method=f"file://{path}",
            rank=rank,
            world_size=size,
            timeout=datetime.timedelta(seconds=options.seconds),
        )

    def sync(self):
        if self.device != "cpu":
            self.torch.cuda.synchronize()

    def call(self, buffer):
        """One call, and the seconds until its result is there."""
        self.sync()
        began = time.perf_counter()
        self.torch.distributed.all_reduce(buffer)
        self.sync()
        return time.perf_counter() - began

    def right(self, buffer):
        """True if all elements of a result are right."""
        buffer.fill_(self.rank + 1)
        self.call(buffer)
        return bool((buffer == self.size * (self.size + 1) / 2).all())

    def measure(self, size, times):
        buffer = self.torch.empty(size // 4, dtype=self.torch.float32, device=self.device)
        right = self.right(buffer)
        buffer.zero_()
        self.call(buffer)
        return right, statistics.median(self.call(buffer) for _ in range(times))


def rank_main(backend, rank, size, path, report, options):
    import torch

    sizes = SIZES[:2] if options.cpu else SIZES
    one = Rank(torch, backend, rank, size, path, options)
    for length, times in sizes:
        right, seconds = one.measure(length, times)
        if not right:
            report({"size": length, "wrong": rank})
        if rank == 0:
            report({"size": length, "seconds": seconds, "calls": times})
    torch.distributed.destroy_process_group()


def start(backend, rank, size, path, options):
    """The number of a process, and the end of the pipe to which it reports."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    os.close(read)

    def report(line):
        os.write(write, (json.dumps(line) + "\n").encode())

    status = 1
    try:
        rank_main(backend, rank, size, path, report, options)
        status = 0
    except BaseException as error:
        why = " / ".join(line.strip() for line in str(error).splitlines() if line.strip())
        report({"failed": f"rank {rank}: {type(error).__name__}: {why[:300]}"})
    os._exit(status)


def collect(ranks, seconds):
    """All reports before the deadline, at which processes are killed."""
    end, late, heard = time.monotonic() + seconds, False, {}
    with selectors.DefaultSelector() as ready:
        for pid, read in ranks:
            os.set_blocking(read, False)
            ready.register(read, selectors.EVENT_READ)
            heard[read] = b""
        while ready.get_map() and not late:
            for key, _ in ready.select(max(0.0, end - time.monotonic())):
                part = os.read(key.fd, 65536)
                heard[key.fd] += part
                if not part:
                    ready.unregister(key.fd)
            late = time.monotonic() >= end
    for pid, read in ranks:
        if late:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
    lines = [json.loads(line) for text in heard.values() for line in text.splitlines()]
    if late:
        lines.append({"failed": f"stopped after {seconds:.0f} s"})
    return lines


def world(backend, size, options):
    """Runs a world; prints and returns its reports."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        ranks = [start(backend, rank, size, path, options) for rank in range(size)]
        lines = collect(ranks, options.seconds)
    wrong = {line["size"] for line in lines if "wrong" in line}
    for line in lines:
        line.update(backend=backend, ranks=size)
        if "failed" in line:
            print(f"{backend:<8} {size:>5}  failed: {line['failed']}", flush=True)
        elif "seconds" in line:
            seconds, length = line["seconds"], line["size"]
            # As in nccl-tests.
            line["busbw"] = 2 * (size - 1) / size * length / seconds
            line["right"] = length not in wrong
            print(
                f"{backend:<8} {size:>5} {name(length):>9} {seconds * 1e6:>11.1f}"
                f" {line['busbw'] / 1e9:>11.3f}  {'right' if line['right'] else 'WRONG'}",
                flush=True,
            )
    return lines


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("worlds", nargs="*", metavar="WORLD", help="gloo:2, nccl:2 or the like")
    parser.add_argument("--seconds", type=float, default=40, help="for each world")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--cpu", action="store_true", help="host tensors: a try of the script")
    options = parser.parse_args()
    options.worlds = options.worlds or WORLDS
    try:
        options.worlds = [(b, int(n)) for b, n in (one.split(":") for one in options.worlds)]
    except ValueError:
        parser.error("a WORLD is a backend, a colon, and a number of ranks")
    return options


def whether(cpu):
    """The versions after a `=`, or why nothing can be measured here. A process of its own asks, for a
    process that has used the device must not fork."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            import torch

            there = cpu or torch.cuda.is_available()
            nccl = torch.cuda.nccl.version() if torch.cuda.is_available() else None
            said = f"=torch {torch.__version__}, NCCL {nccl}" if there else "torch finds no GPU"
        except Exception as error:
            said = f"no torch: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said or "torch ended the process that asked for it"


def main():
    options = parse()
    said = whether(options.cpu)
    if not said.startswith("="):
        print(f"SKIP peers: {said}")
        return
    print(said[1:])
    for variable, value in [
        ("GLOO_SOCKET_IFNAME", "lo"),
        ("NCCL_SOCKET_IFNAME", "lo"),
        ("NCCL_MULTI_RANK_GPU_ENABLE", "1"),
        ("NCCL_DEBUG", "WARN"),
    ]:
        os.environ.setdefault(variable, value)
    print(f"{'backend':<8} {'ranks':>5} {'size':>9} {'time, us':>11} {'busbw, GB/s':>11}")
    lines = [line for one in options.worlds for line in world(*one, options)]
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"versions": said[1:], "lines": lines}, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
