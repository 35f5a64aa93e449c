"""LeNet on Fashion-MNIST by Keras on TensorFlow.

python -m ringreduce.run -n 2 crates/python/examples/keras_lenet.py FOLDER [--epochs N]

FOLDER has the four files of the images, packed or not.
"""

import argparse
import gzip
from pathlib import Path
from typing import Any

import keras
import numpy as np
import ringreduce.tensorflow as rtf
import tensorflow as tf


def read(folder: Path, name: str, header: int) -> np.ndarray[Any, Any]:
    """The bytes of an IDX file after its header."""
    path = folder / name
    if path.exists():
        content = path.read_bytes()
    else:
        content = gzip.decompress(Path(f"{path}.gz").read_bytes())
    return np.frombuffer(content, np.uint8, offset=header)


def load(folder: Path, name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Images and their classes."""
    images = read(folder, f"{name}-images-idx3-ubyte", 16).reshape(-1, 28, 28, 1)
    return images.astype(np.float32) / 255, read(folder, f"{name}-labels-idx1-ubyte", 8)


def lenet() -> Any:
    """Two convolutions and three dense layers."""
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


def main() -> None:
    """Trains, and prints each epoch's loss and accuracy at rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="of all ranks")
    asked = parser.parse_args()
    rtf.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    rank, size = rtf.rank(), rtf.size()
    keras.utils.set_random_seed(rank)
    x, y = load(asked.folder, "train")
    # All ranks make the same number of steps.
    rows = len(x) // size * size
    model = lenet()
    model.compile(
        rtf.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    history = model.fit(
        x[rank:rows:size],
        y[rank:rows:size],
        batch_size=asked.batch // size,
        epochs=asked.epochs,
        verbose=0,
        validation_data=load(asked.folder, "t10k"),
        callbacks=[rtf.BroadcastVariables(), rtf.AverageMetrics()],
    ).history
    if rank == 0:
        for epoch in range(asked.epochs):
            loss, accuracy = history["loss"][epoch], history["val_accuracy"][epoch]
            print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)


main()
