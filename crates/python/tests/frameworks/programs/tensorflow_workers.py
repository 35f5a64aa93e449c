"""A program of TensorFlow alone: the ranks are the workers of its own strategy."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert strategy.cluster_resolver.task_id == rank
assert strategy.num_replicas_in_sync == size


@tf.function
def total():
    """The sum of 1 to the number of ranks, of which each replica adds one."""

    def add():
        replica = tf.distribute.get_replica_context()
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(rank + 1.0))

    return strategy.run(add)


assert total().numpy() == size * (size + 1) / 2
print("the sum is right")
