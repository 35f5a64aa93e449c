"""Trains LightGBM on some rows at each rank: python -m ringreduce.run -n 3 lightgbm_train.py"""

import lightgbm as lgb
import numpy as np
import ringreduce as rr
import ringreduce.lightgbm

comm = rr.init()
rows = np.random.default_rng(0).random((3000, 4))
values = rows[:, 0] * rows[:, 1]
# All ranks have the bins of all rows, and train on some of the rows.
whole = lgb.Dataset(rows, values, free_raw_data=False).construct()
mine = slice(comm.rank, None, comm.size)
part = lgb.Dataset(rows[mine], values[mine], reference=whole).construct()
parameters = {"tree_learner": "data", "num_machines": comm.size, "num_threads": 1, "verbose": -1}
with ringreduce.lightgbm.network(comm):
    booster = lgb.train(parameters, part, 50)
error = np.abs(booster.predict(rows) - values).mean()
print(f"rank {comm.rank} of {comm.size}: the error is below 0.01: {error < 0.01}")
