"""LightGBM on a third of the rows at each of three ranks, against one process with all of them."""

import os
import signal
import sys

import lightgbm as lgb
import numpy as np

import ringreduce as rr
import ringreduce.lightgbm

PARAMETERS = {"objective": "regression", "num_leaves": 15, "verbose": -1, "num_threads": 1}
ROUNDS = 20


def main() -> None:
    """Trains, and compares."""
    comm = rr.init()
    generator = np.random.default_rng(0)
    x = generator.random((3000, 6))
    y = np.sin(5 * x[:, 0]) + x[:, 1] * x[:, 2]
    whole = lgb.Dataset(x, y, free_raw_data=False).construct()
    alone = lgb.train(PARAMETERS, whole, ROUNDS)
    rows = slice(comm.rank, None, comm.size)
    # The bins of all rows, as one process has them.
    part = lgb.Dataset(x[rows], y[rows], reference=whole).construct()
    options = {"tree_learner": "data", "num_machines": comm.size}
    if sys.argv[1:] == ["killed"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

        def kill(_: object) -> None:
            if comm.rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            with ringreduce.lightgbm.network(comm):
                lgb.train({**PARAMETERS, **options}, part, ROUNDS, callbacks=[kill])
        except rr.Error as error:
            print(f"rank {comm.rank} raises {type(error).__name__}: {error}", flush=True)
        return
    with ringreduce.lightgbm.network(comm):
        together = lgb.train({**PARAMETERS, **options}, part, ROUNDS)
    text = together.model_to_string()
    assert all(other == text for other in comm.all_gather_object(text)), "models differ"
    error = np.abs(together.predict(x) - alone.predict(x)).max()
    assert error < 1e-6, error
    print(f"rank {comm.rank} of {comm.size}: LightGBM's model is that of one process")


main()
