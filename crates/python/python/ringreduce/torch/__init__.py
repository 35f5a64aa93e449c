"""PyTorch's process groups: `import ringreduce.torch; dist.init_process_group("ringreduce")`.

The import registers the backend for tensors of the CPU and of CUDA devices. Under `ringrun` it also
makes `init_process_group` find the ranks; under torchrun PyTorch finds them itself.
"""

from torch import distributed as dist

from . import _group, _rendezvous
from ._backend import Backend
from ._memory import empty

__all__ = ["Backend", "empty"]

dist.Backend.register_backend("ringreduce", Backend.of_options, True, devices=["cpu", "cuda"])
_group.install()
_rendezvous.install()
