"""TensorFlow's calls, their gradients and their order: each check eagerly and in a graph."""

import os
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import numpy as np
import tensorflow as tf

import ringreduce as rr
import ringreduce.tensorflow as rtf

comm = rtf.init()
rank, size = comm.rank, comm.size
VARIABLE = tf.Variable([1.0, 2.0])


def both(body):
    """Checks `body` eagerly and as a graph, whose shapes are known and not known."""
    body()
    tf.function(body)()


def gradient(call, x, weights):
    """The gradient of a weighted sum of a call's result."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(call(x) * weights)
    return tape.gradient(y, x)


def equal(tensor, expected):
    """Checks values at the time at which they are there."""
    tf.debugging.assert_equal(tensor, tf.constant(expected, tensor.dtype))


def gradients():
    """A rank's gradients come from the results at all ranks, whose weights are rank + 1."""
    x, weight, total = tf.ones([2, 2]), rank + 1.0, size * (size + 1) / 2
    equal(gradient(rtf.all_reduce, x, weight), np.full((2, 2), total))
    average = lambda it: rtf.all_reduce(it, "avg")  # noqa: E731
    equal(gradient(average, x, weight), np.full((2, 2), total / size))
    for root in range(size):
        copy = lambda it: rtf.broadcast(it, root)  # noqa: B023, E731
        equal(gradient(copy, x, weight), np.full((2, 2), total if rank == root else 0.0))
    # Rank r has r rows, rank 0 none, and row n of the result has the weight n.
    rows = size * (size - 1) // 2
    first = rank * (rank - 1) // 2
    weights = weight * np.arange(rows, dtype=np.float32)[:, None]
    expected = total * np.arange(first, first + rank)[:, None] * np.ones((1, 3))
    equal(gradient(rtf.all_gather, tf.ones([rank, 3]), weights), expected)
    scalar = gradient(rtf.all_gather, tf.constant(2.0), weight * np.arange(size, dtype=np.float32))
    equal(scalar, total * rank)


def gradients_of_gradients():
    """The second derivative of a sum of squares of what was gathered, copied or summed."""
    x = tf.fill([rank + 1], 3.0)
    for call in (rtf.all_gather, rtf.broadcast, rtf.all_reduce):
        if call is not rtf.all_gather:
            x = tf.fill([2], 3.0)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(call(x) ** 2)
            first = inner.gradient(y, x)
        second = outer.gradient(first, x)
        # Each of `size` results is a square of one element, or of the sum of `size` elements.
        factor = 2.0 * size
        if call is rtf.all_reduce:
            factor *= size
        is_root = call is not rtf.broadcast or rank == 0
        equal(second, np.full(x.shape, factor if is_root else 0.0))


def order():
    """Calls of a graph are all made, once each and in the program's order, whatever is ready first:
    ranks have their inputs at different times, and their lengths tell the calls apart."""

    def late(tensor, when):
        def wait(given):
            time.sleep(0.05 if when else 0)
            return given

        result = tf.numpy_function(wait, [tensor], tensor.dtype, stateful=False)
        result.set_shape(tensor.shape)
        return result

    @tf.function
    def step(x):
        rtf.all_reduce(x)  # Nobody needs the result.
        one = rtf.all_reduce(x)
        two = rtf.all_reduce(x)  # The same call again.
        parts = [late(tf.fill([n + 1], 1.0), (n + rank) % 2) for n in range(6)]
        sums = [rtf.all_reduce(part) for part in parts]
        for n in tf.range(3):
            rtf.all_reduce(tf.fill([n + 10], 1.0))
        if tf.reduce_sum(x) > 0:
            rtf.all_reduce(x)
        return one + two + tf.add_n([part[0] for part in sums])

    made = calls()
    assert step(tf.ones([1])).numpy() == [8 * size]
    assert calls() - made == 3 + 6 + 3 + 1, calls() - made


def calls():
    """How many all-reduces the communicator has made."""
    name = f'calls_total{{collective="all_reduce",rank="{rank}"}} '
    return int(comm.monitor().metrics().partition(name)[2].split()[0])


def types():
    """All types, and empty tensors."""
    names = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64"
    for name in f"{names} complex64 complex128".split():
        x = tf.cast(tf.fill([3], rank + 1), name)
        equal(rtf.all_reduce(x), [size * (size + 1) // 2] * 3)
        assert rtf.broadcast(x).dtype == rtf.all_gather(x).dtype == x.dtype
    x = tf.constant([rank == 0, True])
    equal(rtf.all_reduce(x, "land"), [size == 1, True])
    equal(rtf.broadcast(x, size - 1), [size == 1, True])
    small = tf.cast(tf.ones([2]), "float8_e4m3fn")
    equal(tf.cast(rtf.all_reduce(small), tf.float32), [float(size)] * 2)
    empty = tf.zeros([0, 4])
    assert rtf.all_reduce(empty).shape == rtf.broadcast(empty).shape == (0, 4)
    assert rtf.all_gather(empty).shape[1] == 4
    equal(rtf.all_reduce(VARIABLE), [1.0 * size, 2.0 * size])
    equal(rtf.all_reduce([1.0, 2.0]), [1.0 * size, 2.0 * size])


def memory():
    """An input that is used again keeps its elements, and a variable its value."""

    @tf.function
    def step(x):
        y = x * 2
        total = rtf.all_reduce(y)
        again = rtf.all_reduce(VARIABLE)
        return y, total, again, rtf.all_reduce(total * 1)

    for _ in range(3):
        y, total, again, twice = step(tf.ones([2]))
        equal(y, [2.0, 2.0])
        equal(total, [2.0 * size] * 2)
        equal(again, [1.0 * size, 2.0 * size])
        equal(twice, [2.0 * size * size] * 2)
    equal(tf.convert_to_tensor(VARIABLE), [1.0, 2.0])


def unknown_shapes():
    """A graph for tensors of any shape."""

    @tf.function(input_signature=[tf.TensorSpec(None), tf.TensorSpec([None, None])])
    def step(x, rows):
        with tf.GradientTape() as tape:
            tape.watch([x, rows])
            y = tf.reduce_sum(rtf.all_reduce(x)) + tf.reduce_sum(rtf.all_gather(rows))
            y += tf.reduce_sum(rtf.broadcast(rows[:1]))
        return tape.gradient(y, [x, rows])

    for shape in ([], [3], [2, 2]):
        x, rows = step(tf.ones(shape), tf.ones([rank + 1, 2]))
        equal(x, np.full(shape, 1.0 * size))
        equal(rows[:1], [[2.0 * size if rank == 0 else 1.0 * size] * 2])


both(gradients)
both(gradients_of_gradients)
both(types)
order()
memory()
unknown_shapes()
many = rtf.average_gradients([tf.ones([2]), None, tf.ones([], tf.float64), tf.zeros([0])])
assert many[1] is None and many[2].dtype == tf.float64 and many[3].shape == (0,)
try:
    rtf.init()
except rr.ArgumentError as error:
    assert "duplicate()" in str(error)
else:
    raise AssertionError("a second init")
print(f"rank {rank} of {size}: all calls are right")
