"""A sum over all ranks inside a function that JAX compiles, with its gradient.

JAX makes ordered callbacks once each, in the order of the program, so all ranks call in one order.
"""

from typing import Any

import jax  # type: ignore[import-not-found,unused-ignore]
import numpy as np
import ringreduce as rr
from jax.experimental import io_callback  # type: ignore[import-not-found,unused-ignore]

comm = rr.init()


@jax.custom_vjp  # type: ignore[untyped-decorator,unused-ignore]
def all_reduce(array: Any) -> Any:
    """The sum of `array` over all ranks, as a part of a compiled function."""
    result = jax.ShapeDtypeStruct(array.shape, array.dtype)
    return io_callback(lambda it: comm.all_reduce(np.array(it)), result, array, ordered=True)


# The gradient of a sum over all ranks is the sum of all ranks' gradients.
all_reduce.defvjp(lambda array: (all_reduce(array), None), lambda _, of: (all_reduce(of),))


@jax.jit  # type: ignore[untyped-decorator,unused-ignore]
def step(array: Any) -> Any:
    """Something to compile."""
    return 2 * all_reduce(array + 1)


print(f"rank {comm.rank}: {step(jax.numpy.zeros(2)).tolist()}")
