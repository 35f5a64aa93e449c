"""Times of TensorFlow's calls, eager and in a graph, beside a `tf.numpy_function` of nothing.

python -m ringreduce.run -n 2 crates/python/benches/tensorflow_calls.py

Times are in microseconds: the best of several means, of the slowest rank. A call in a graph is a
part of a chain of calls in one function, without what TensorFlow takes to enter the function.
"""

import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import ringreduce.tensorflow as rtf
import tensorflow as tf

SIZES = [4, 4 << 10, 256 << 10, 4 << 20]
CHAIN = 32


def nothing(tensor: Any) -> Any:
    """Hands a tensor to Python and back."""
    result = tf.numpy_function(lambda it: it, [tensor], tensor.dtype)
    result.set_shape(tensor.shape)
    return result


CALLS: dict[str, Callable[[Any], Any]] = {
    "all_reduce": lambda it: rtf.all_reduce(it, "max"),
    "broadcast": rtf.broadcast,
    "numpy_function of nothing": nothing,
}


def best(run: Callable[[], object], count: int) -> float:
    """Microseconds of a run at the slowest rank."""
    means = []
    for _ in range(6):
        rtf.barrier()
        began = time.perf_counter()
        for _ in range(count):
            run()
        means.append((time.perf_counter() - began) / count)
    slowest = max(rtf.communicator().all_gather_object(min(means)))
    return float(1e6 * slowest)


def chain(call: Callable[[Any], Any], length: int) -> Callable[[Any], Any]:
    """So many calls, each of the result of the one before, as a graph."""

    def run(tensor: Any) -> Any:
        for _ in range(length):
            tensor = call(tensor)
        return tensor

    function: Callable[[Any], Any] = tf.function(run)
    return function


def main() -> None:
    """Measures, and prints the table at rank 0."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    rtf.init()
    if rtf.rank() == 0:
        head = f"{'call':28}{'bytes':>10}{'eager':>10}{'in a graph':>12}"
        print(f"{rtf.size()} ranks, microseconds\n{head}", flush=True)
    for name, call in CALLS.items():
        for size in SIZES:
            tensor = tf.ones([size // 4])
            count = max(3, min(200, (4 << 20) // (size + 16384)))
            short, long = chain(call, 1), chain(call, 1 + CHAIN)
            runs: list[Callable[[], object]]
            runs = [lambda: call(tensor), lambda: short(tensor), lambda: long(tensor)]  # noqa: B023
            for run in runs:
                run()
            eager, one, all_of_them = (best(run, count) for run in runs)
            if rtf.rank() == 0:
                each = (all_of_them - one) / CHAIN
                print(f"{name:28}{size:>10}{eager:>10.1f}{each:>12.1f}", flush=True)


main()
