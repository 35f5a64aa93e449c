"""TensorFlow's calls and Keras' LeNet, against one process with the whole batch."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import keras
import numpy as np
import tensorflow as tf

import ringreduce.tensorflow as rtf

BATCH, STEPS = 24, 4


def calls(rank, size):
    """Each call, eagerly and in a graph."""

    def body(x, rows):
        return rtf.all_reduce(x), rtf.all_reduce(x, "max"), rtf.broadcast(x), rtf.all_gather(rows)

    for run in (body, tf.function(body)):
        x = tf.constant([1.0, rank])
        rows = tf.fill([rank + 1, 2], rank)
        total, most, root, gathered = run(x, rows)
        assert total.numpy().tolist() == [size, size * (size - 1) / 2]
        assert most.numpy().tolist() == [1, size - 1]
        assert root.numpy().tolist() == [1, 0]
        expected = np.repeat(np.arange(size), np.arange(size) + 1)
        assert gathered.numpy()[:, 0].tolist() == expected.tolist()
    for dtype in (tf.float16, tf.bfloat16, tf.float64, tf.int32, tf.int64, tf.uint8):
        assert rtf.all_reduce(tf.ones([3], dtype)).numpy().tolist() == [size] * 3, dtype
    x = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        y = rtf.all_reduce(x * x)
    assert tape.gradient(y, x).numpy() == 4 * size
    tape = rtf.DistributedGradientTape(tf.GradientTape())
    with tape:
        y = x * float(rank)
    assert tape.gradient(y, [x])[0].numpy() == (size - 1) / 2
    for wrong in (tf.constant(["text"]), tf.IndexedSlices(tf.ones([1, 2]), [0])):
        try:
            rtf.all_reduce(wrong)
        except ValueError as error:
            assert "tensor" in str(error)
        else:
            raise AssertionError(wrong)
    assert rtf.all_reduce(1.0).numpy() == size


def lenet(seed):
    """Two convolutions and three dense layers."""
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(6, 5, padding="same", activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Conv2D(16, 5, activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(120, activation="tanh"),
            layers.Dense(84, activation="tanh"),
            layers.Dense(10),
        ]
    )


def fit(model, optimizer, rank, size):
    """Trains on this rank's part of each batch."""
    generator = np.random.default_rng(0)
    x = generator.random((BATCH * STEPS, 28, 28, 1), np.float32)
    y = generator.integers(0, 10, BATCH * STEPS)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    callbacks = [rtf.BroadcastVariables(), rtf.AverageMetrics()] if size > 1 else []
    options = {"batch_size": BATCH // size, "shuffle": False, "verbose": 0}
    return model.fit(x[rank::size], y[rank::size], callbacks=callbacks, **options).history


def scaled(rank, size):
    """Scaled losses: a step is skipped by all ranks if the gradients of one overflow."""
    keras.config.set_dtype_policy("mixed_float16")
    x, y = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)
    if rank == 0:
        y[:] = np.inf

    def step(optimizer):
        model = keras.Sequential([layers.Input((3,)), layers.Dense(1)])
        model.compile(optimizer, "mse", jit_compile=False)
        model.fit(x, y, 4, verbose=0, callbacks=[rtf.BroadcastVariables()])
        return model.get_weights()

    layers, sgd = keras.layers, keras.optimizers.SGD(0.1)
    after = step(rtf.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(sgd)))
    after = np.concatenate([weights.reshape(-1) for weights in after])
    assert np.isfinite(after).all()
    np.testing.assert_array_equal(after, rtf.broadcast(after).numpy())
    try:
        step(rtf.DistributedOptimizer(sgd))
    except ValueError as error:
        assert "LossScaleOptimizer" in str(error)
    else:
        raise AssertionError("an average that one rank may skip")
    assert rtf.all_reduce(1.0).numpy() == size


def main():
    """Checks."""
    rtf.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    rank, size = rtf.rank(), rtf.size()
    calls(rank, size)
    for make in (lambda: keras.optimizers.SGD(0.1, 0.9), lambda: keras.optimizers.Adam(0.01)):
        alone, together = lenet(0), lenet(rank)
        history = fit(alone, make(), 0, 1)
        both = fit(together, rtf.DistributedOptimizer(make()), rank, size)
        for one, other in zip(alone.get_weights(), together.get_weights(), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-3, atol=2e-5)
        assert abs(both["loss"][0] - history["loss"][0]) < 1e-3, (both, history)
    lazy = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    lazy.compile(rtf.DistributedOptimizer("sgd"), "mse", jit_compile=False)
    x = np.full((8, 3), rank + 1.0, np.float32)
    lazy.fit(x, x[:, :1], 2, verbose=0, callbacks=[rtf.BroadcastVariables()])
    flat = np.concatenate([weights.reshape(-1) for weights in lazy.get_weights()])
    np.testing.assert_array_equal(flat, rtf.broadcast(flat).numpy())
    try:
        rtf.DistributedOptimizer(lazy.optimizer)
    except ValueError as error:
        assert "optimizer" in str(error)
    else:
        raise AssertionError("an optimizer that has a state")
    scaled(rank, size)
    print(f"rank {rank} of {size}: Keras trains as one process does")


main()
