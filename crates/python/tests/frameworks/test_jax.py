"""Collectives inside functions that JAX compiles, as in `examples/jax_callback.py`."""

import textwrap

import pytest
from conftest import ROOT, Run

pytest.importorskip("jax")

EXAMPLE = (ROOT / "crates/python/examples/jax_callback.py").read_text()
HEAD = f"""
{EXAMPLE.partition("@jax.jit")[0]}
import jax.numpy as jnp
rank, size = comm.rank, comm.size
"""


def ends(job: Run, body: str, size: int = 2, expect: int | None = 0) -> str:
    """What ranks print that run `body` after the example's definitions."""
    done = job(size, HEAD + textwrap.dedent(body), expect=expect, TEST_LIMIT="120")
    return done.stdout + done.stderr


def test_calls_of_a_compiled_function_are_made_in_order(job: Run) -> None:
    """Independent calls, loops, branches and an unused result: lengths tell the calls apart."""
    out = ends(
        job,
        """
        @jax.jit
        def step(x):
            all_reduce(jnp.ones(50))
            sums = [all_reduce(jnp.full(n + 1, x[0])) for n in range(8)]
            x = jax.lax.fori_loop(0, 5, lambda n, it: all_reduce(it) / size, x)
            x, _ = jax.lax.scan(lambda it, _: (all_reduce(it) / size, None), x, None, length=3)
            x = jax.lax.cond(x[0] > 0, all_reduce, lambda it: it, x)
            return x, sum(it[0] for it in sums)

        for _ in range(3):
            x, total = step(jnp.ones(3))
            assert x.tolist() == [size] * 3 and total == 8 * size, (x, total)
        made = comm.monitor().metrics().partition(f'"all_reduce",rank="{rank}"}} ')[2].split()[0]
        assert int(made) == 3 * (1 + 8 + 5 + 3 + 1), made
        big = jax.jit(all_reduce)(jnp.ones(1 << 20))
        assert (big == size).all()
        for dtype in ("int32", "uint8", "bfloat16", "float16", "complex64"):
            some = jax.jit(all_reduce)(jnp.ones(3, dtype))
            assert some.dtype == dtype and (some == size).all(), dtype
        assert jax.jit(all_reduce)(jnp.ones(0)).shape == (0,)
        print("in order")
        """,
    )
    assert out.count("in order") == 2, out


def test_a_gradient_of_a_sum_is_the_sum_of_gradients(job: Run) -> None:
    out = ends(
        job,
        """
        loss = lambda x: (rank + 1) * (all_reduce(x) ** 2).sum()
        value, slope = jax.jit(jax.value_and_grad(loss))(jnp.ones(2))
        assert value == (rank + 1) * 2 * size**2
        assert slope.tolist() == [3 * 2 * size] * 2, slope
        print("is right")
        """,
    )
    assert out.count("is right") == 2, out


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", ("PeerLostError", "rank 1")),
        ("step(jnp.ones(5))", ("MismatchError", "count")),
        ("comm.close()", ("rank 1",)),
        ("raise KeyError('mine')", ("rank 1",)),
    ],
    ids=["is killed", "has another length", "has closed", "has raised"],
)
def test_a_rank_that_fails_is_an_exception_at_the_others(
    job: Run, trouble: str, words: tuple[str, ...]
) -> None:
    out = ends(
        job,
        f"""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        step = jax.jit(all_reduce)
        step(jnp.ones(3)).block_until_ready()
        if rank == 1:
            {trouble}
            os._exit(1)
        try:
            step(jnp.ones(3)).block_until_ready()
        except Exception as error:
            print("raised:", " ".join(str(error).split()), flush=True)
        os._exit(0)
        """,
        expect=None,
    )
    assert out.count("raised:") == 1 and all(word in out for word in words), out


def test_a_closed_communicator_and_the_end_of_the_program(job: Run) -> None:
    out = ends(
        job,
        """
        spare = comm.duplicate()
        comm.close()
        try:
            jax.jit(all_reduce)(jnp.ones(2)).block_until_ready()
        except Exception as error:
            print("closed:", "BrokenError" in str(error), flush=True)
        comm = spare
        print("end", flush=True)
        if rank == 0:
            pending = jax.jit(all_reduce)(jnp.ones(2))
        """,
        expect=None,
    )
    assert out.count("closed: True") == out.count("end\n") == 2, out
    assert "core dumped" not in out and "signal" not in out, out
