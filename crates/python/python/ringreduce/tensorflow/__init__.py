"""TensorFlow's tensors and Keras' training on all ranks of a job.

`ringreduce.tensorflow.init()` first, or the first call does it. Calls work on tensors of the CPU,
eagerly and inside `tf.function`, but not where XLA compiles it.
"""

from ._calls import all_gather, all_reduce, barrier, broadcast, communicator, init, rank, size
from ._training import (
    AverageMetrics,
    BroadcastVariables,
    DistributedGradientTape,
    DistributedOptimizer,
    average_gradients,
    broadcast_variables,
)

__all__ = [
    "AverageMetrics",
    "BroadcastVariables",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "all_gather",
    "all_reduce",
    "average_gradients",
    "barrier",
    "broadcast",
    "broadcast_variables",
    "communicator",
    "init",
    "rank",
    "size",
]
