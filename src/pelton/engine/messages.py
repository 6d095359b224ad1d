"""The messages on the socket between an engine process and its client, and their framing."""

import struct
from types import UnionType
from typing import Any

import msgspec

from pelton.config import EngineConfig
from pelton.model_config import ModelInfo
from pelton.types import EngineStats, Output, SamplingParams


class Start(msgspec.Struct, frozen=True, tag="start", array_like=True):
    """First message to the engine process: load this model with these resolved settings."""

    config: EngineConfig
    info: ModelInfo
    path: str


class Add(msgspec.Struct, frozen=True, tag="add", array_like=True):
    """Queue a request. Ids are unique among the requests of one connection."""

    request_id: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    priority: int
    salt: str


class Abort(msgspec.Struct, frozen=True, tag="abort", array_like=True):
    """End requests; unknown ids are ignored."""

    request_ids: tuple[int, ...]


class Ready(msgspec.Struct, frozen=True, tag="ready", array_like=True):
    """First message from the engine process: it can take requests."""

    stats: EngineStats


class Failed(msgspec.Struct, frozen=True, tag="failed", array_like=True):
    """The engine process cannot start, and why."""

    message: str


class Outputs(msgspec.Struct, frozen=True, tag="outputs", array_like=True):
    """What one step gave. Sent after every step, also one without outputs: it shows progress."""

    outputs: list[Output]
    stats: EngineStats


ToEngine = Start | Add | Abort
FromEngine = Ready | Failed | Outputs

_HEADER = struct.Struct("<I")


class Framing:
    """Length-prefixed MessagePack: bytes in, messages out. One per direction of a connection."""

    def __init__(self, message_type: UnionType) -> None:
        self._decoder = msgspec.msgpack.Decoder(message_type)
        self._rest = b""

    def feed(self, data: bytes) -> list[Any]:
        """The messages that `data` completes."""
        if self._rest:
            data = self._rest + data
        view = memoryview(data)
        messages: list[Any] = []
        start = 0
        while len(data) - start >= _HEADER.size:
            (length,) = _HEADER.unpack_from(data, start)
            end = start + _HEADER.size + length
            if len(data) < end:
                break
            messages.append(self._decoder.decode(view[start + _HEADER.size : end]))
            start = end
        self._rest = data[start:]
        return messages


def frame(message: msgspec.Struct) -> bytes:
    """One message as bytes on the wire."""
    body = msgspec.msgpack.encode(message)
    return _HEADER.pack(len(body)) + body
