"""Tensors as addresses, and lists of tensors as one piece of memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from .._core import Address
from .._errors import ArgumentError

#: The library's name of each type.
NAMES = {
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.uint16: "uint16",
    torch.int16: "int16",
    torch.uint32: "uint32",
    torch.int32: "int32",
    torch.uint64: "uint64",
    torch.int64: "int64",
    torch.float16: "half",
    torch.bfloat16: "bfloat16",
    torch.float32: "float",
    torch.float64: "double",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
}

#: As what other types are copied, by the size of an element.
_OF_SIZE = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}

#: What is left to do once a call has ended.
Finish = Callable[[], object]
_Item = TypeVar("_Item")


def refuse(call: str, argument: str, given: str, expected: str) -> ArgumentError:
    """The error of an argument."""
    message = f"{call}: {argument} is {given}, expected {expected}"
    return ArgumentError(message, call=call, argument=argument)


def address(
    call: str, tensor: torch.Tensor, size: int | None = None, owner: object = None
) -> Address:
    """The address of a tensor without gaps, or of so many bytes from its first one."""
    name = NAMES.get(tensor.dtype) or _OF_SIZE.get(tensor.element_size())
    if name is None:
        raise refuse(call, "tensor", f"of type {tensor.dtype}", "a type of the library")
    stream = None
    if tensor.is_cuda:
        stream = torch.cuda.current_stream(tensor.device).cuda_stream
    elif not tensor.is_cpu:
        raise refuse(call, "tensor", f"on {tensor.device}", "one on the CPU or a CUDA device")
    size = tensor.nbytes if size is None else size
    if size > 0 and tensor.data_ptr() == 0:
        raise refuse(call, "tensor", "without its memory, which was freed", "one that has it")
    return Address(tensor.data_ptr(), size, name, tensor if owner is None else owner, stream)


def only(call: str, argument: str, given: Sequence[_Item], several: str) -> _Item:
    """The one item of a list, where PyTorch's types would allow several."""
    if len(given) != 1:
        wants = f"a list of one; for several, call {several}"
        raise refuse(call, argument, f"a list of {len(given)}", wants)
    return given[0]


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether memory holds the elements one after the other as they are. A lazy conjugate or
    negative (`conj`, `imag` of one) shares memory whose elements are still to be changed."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def dense(call: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a plain copy of it."""
    if tensor.layout is not torch.strided:
        raise refuse(call, "tensor", f"of layout {tensor.layout}", "a dense one")
    return tensor if is_plain(tensor) else tensor.resolve_conj().resolve_neg().contiguous()


def output_buffer(call: str, tensor: torch.Tensor) -> tuple[torch.Tensor, list[Finish]]:
    """As `dense`, for a tensor that a call writes to, and what brings the result back."""
    buffer = dense(call, tensor)
    if buffer is tensor or buffer.data_ptr() == tensor.data_ptr():
        return buffer, []
    if torch._debug_has_internal_overlap(tensor) == 1:
        given = f"of strides {tuple(tensor.stride())}, whose elements share memory"
        raise refuse(call, "tensor", given, "one that can be written to: a copy of it can")
    return buffer, [lambda: copy_to(tensor, buffer)]


def copy_to(to: torch.Tensor, result: torch.Tensor) -> None:
    """Copies a result, in whichever mode the thread is."""
    with torch.inference_mode(to.is_inference()):
        to.detach().copy_(result)


def is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both have the same elements in the same memory."""
    return one.data_ptr() == other.data_ptr() and is_plain(one) and is_plain(other)


def share_memory(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether a tensor of one list overlaps one of the other list, by a sweep over their starts."""
    starts = [(it.data_ptr(), it.nbytes, 0) for it in ones if it.nbytes]
    starts += [(it.data_ptr(), it.nbytes, 1) for it in others if it.nbytes]
    ends = [0, 0]
    for start, length, which in sorted(starts):
        if start < ends[1 - which]:
            return True
        ends[which] = max(ends[which], start + length)
    return False


def input_buffer(call: str, tensor: torch.Tensor, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensor, plain, or a copy of it if it shares memory with what a call writes to."""
    tensor = dense(call, tensor)
    return tensor.clone() if share_memory([tensor], outputs) else tensor


def _is_one_piece(tensors: Sequence[torch.Tensor]) -> bool:
    end = tensors[0].data_ptr()
    for tensor in tensors:
        if not is_plain(tensor) or tensor.data_ptr() != end:
            return False
        end += tensor.nbytes
    storage = tensors[0].untyped_storage().data_ptr()
    return all(tensor.untyped_storage().data_ptr() == storage for tensor in tensors)


def _check(call: str, tensors: Sequence[torch.Tensor]) -> None:
    if not tensors:
        raise refuse(call, "tensors", "an empty list", "one for each rank")
    first = tensors[0]
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise refuse(call, "tensors", f"of layout {tensor.layout}", "dense ones")
        if tensor.dtype != first.dtype or tensor.device != first.device:
            given = f"of {first.dtype} on {first.device} and of {tensor.dtype} on {tensor.device}"
            raise refuse(call, "tensors", given, "of one type, on one device")


def check_apart(call: str, outputs: Sequence[torch.Tensor]) -> None:
    """Refuses a list of which two tensors would get results in the same memory."""
    dense_ones = [it for it in outputs if it.is_contiguous() and it.nbytes]
    starts = sorted((it.data_ptr(), it.nbytes) for it in dense_ones)
    if any(at + length > after for (at, length), (after, _) in itertools.pairwise(starts)):
        raise refuse(call, "tensors", "a list of tensors that overlap", "memory of its own each")


class Scratch:
    """Memory for lists of tensors that do not lie one after the other. The last one of each type is
    kept: new memory costs more than the copies, for its pages."""

    #: Bytes of what is kept, at most.
    LIMIT = 64 << 20

    def __init__(self) -> None:
        self._kept: dict[torch.dtype, torch.Tensor] = {}

    def take(self, like: torch.Tensor, count: int) -> tuple[torch.Tensor, Finish]:
        """So many elements, and what gives them back once a call has ended."""
        kept = self._kept.pop(like.dtype, None) if like.is_cpu else None
        if kept is None or kept.numel() < count:
            kept = torch.empty(count, dtype=like.dtype, device=like.device)
        return kept[:count], lambda: self._give(kept)

    def _give(self, memory: torch.Tensor) -> None:
        if memory.is_cpu and memory.nbytes <= self.LIMIT:
            self._kept[memory.dtype] = memory


def joined_inputs(
    call: str,
    tensors: Sequence[torch.Tensor],
    scratch: Scratch,
    outputs: Sequence[torch.Tensor] = (),
) -> tuple[Address, list[Finish]]:
    """All elements of the tensors in their order, which are copied unless they lie so, and apart
    from what the call writes to; and what is to be done once it has ended."""
    _check(call, tensors)
    first = tensors[0]
    if not share_memory(tensors, outputs) and _is_one_piece(tensors):
        whole = address(call, first, sum(tensor.nbytes for tensor in tensors), tuple(tensors))
        return whole, []
    flat, give_back = scratch.take(first, sum(tensor.numel() for tensor in tensors))
    torch.cat([tensor.detach().reshape(-1) for tensor in tensors], out=flat)
    return address(call, flat), [give_back]


def joined_outputs(
    call: str, tensors: Sequence[torch.Tensor], scratch: Scratch
) -> tuple[Address, list[Finish]]:
    """Memory for the elements of all tensors, and what brings them to the tensors."""
    _check(call, tensors)
    first = tensors[0]
    check_apart(call, tensors)
    if _is_one_piece(tensors):
        return joined_inputs(call, tensors, scratch)
    counts = [tensor.numel() for tensor in tensors]
    flat, give_back = scratch.take(first, sum(counts))

    def finish() -> None:
        for tensor, part in zip(tensors, flat.split(counts), strict=True):
            copy_to(tensor, part.view(tensor.shape))

    return address(call, flat), [finish, give_back]


def row_counts(which: str, sizes: Sequence[int], tensor: torch.Tensor, ranks: int) -> list[int]:
    """The elements for each rank, of a tensor that is split so along its first dimension, or into
    equal parts."""
    if not sizes:
        if tensor.dim() == 0 or tensor.shape[0] % ranks:
            given = f"of shape {list(tensor.shape)}"
            raise refuse("all_to_all", which, given, f"a multiple of {ranks}")
        return [tensor.numel() // ranks] * ranks
    row = math.prod(tensor.shape[1:])
    return [size * row for size in sizes]
