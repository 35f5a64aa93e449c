"""PyTorch's process groups: `import ringreduce.torch; dist.init_process_group("ringreduce")`.

The import registers the backend for tensors of the CPU and of CUDA devices. Under `ringrun` it also
makes `init_process_group` find the ranks; under torchrun PyTorch finds them itself.
"""

from torch import distributed as dist

from . import _buckets, _group, _rendezvous
from ._backend import Backend
from ._flight import BACKEND, dump_flight_record
from ._memory import empty

__all__ = ["Backend", "dump_flight_record", "empty"]

dist.Backend.register_backend(BACKEND, Backend.of_options, True, devices=["cpu", "cuda"])
_buckets.install()
_group.install()
_rendezvous.install()
