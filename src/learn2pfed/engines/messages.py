"""Messages as bytes: safetensors, never pickled, bounded and checked where they arrive."""

from __future__ import annotations

import safetensors
import torch
from safetensors.torch import load, save

from learn2pfed.algorithms.base import Message, Specs
from learn2pfed.errors import MessageError


def encode(message: Message) -> bytes:
    """The bytes that travel.

    >>> decode(encode({"w": torch.ones(2)}))
    {'w': tensor([1., 1.])}
    """
    if not message:
        return b""  # nothing is said, and nothing travels
    return save({name: tensor.detach().contiguous() for name, tensor in message.items()})


def decode(blob: bytes) -> Message:
    """The message in the bytes, or a MessageError."""
    try:
        return load(blob)
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise MessageError(f"a message of {len(blob)} bytes is not safetensors: {error}.") from error


def size(specs: Specs) -> int:
    """Bytes of any message that fits `specs`, or of the longest: names, shapes and types say all."""
    return len(encode({name: torch.zeros(spec.shape, dtype=spec.dtype) for name, spec in specs.items()}))


def receive(blob: bytes, specs: Specs) -> Message:
    """Decode and check: size, names, shapes, types, finiteness. A bad message is refused with a reason."""
    largest = size(specs)
    if len(blob) > largest:
        raise MessageError(f"a message of {len(blob)} bytes came where at most {largest} were agreed.")
    message = decode(blob) if blob or specs else {}
    if message.keys() != specs.keys():
        raise MessageError(f"a message with {sorted(message)} came where {sorted(specs)} was agreed.")
    for name, spec in specs.items():
        tensor = message[name]
        alike = tensor.ndim == len(spec.shape) and tensor.shape[1:] == spec.shape[1:]
        shorter = spec.or_shorter and alike and len(tensor) < spec.shape[0]
        if (tuple(tensor.shape) != spec.shape and not shorter) or tensor.dtype != spec.dtype:
            raise MessageError(
                f"{name!r} came as {tuple(tensor.shape)} {tensor.dtype} where {spec.shape} {spec.dtype} was agreed."
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise MessageError(f"{name!r} has entries that are not finite.")
    return message
