"""Faults of the host: memory that is never freed, freed twice, or used when it is freed already."""

import gc

import numpy as np

from common import gpu
from common.gpu import LaunchConfig, Stream, launch
from tests.faults import Fault

COPY = r"""extern "C" __global__ void copy(const int* x, int* y)
{
    y[threadIdx.x] = x[threadIdx.x];  // fault
}"""
KEPT: list[gpu.DeviceArray] = []  # what a program forgets
WORKSPACES: dict[int, gpu.DeviceArray] = {}


def ones(stream: Stream) -> gpu.DeviceArray:
    return gpu.to_device(np.ones(64, np.int32), stream)


def copied(stream: Stream, source: str, address: int) -> None:
    """Launch the kernel on 64 integers at an address."""
    (kernel,) = gpu.compile_kernels(source, "copy")
    y = gpu.zeros(64, np.int32, stream)
    launch(stream, LaunchConfig(grid=1, block=64), kernel, np.uint64(address), y.buffer)
    stream.sync()
    y.buffer.close(stream)


def result_kept(stream: Stream, source: str, mended: bool) -> None:
    x = ones(stream)
    results = [gpu.zeros(64, np.int32, stream) for _ in range(2)]  # fault
    if not mended:
        KEPT.append(results[1])
    copied(stream, source, int(x.buffer.handle))


def cache_without_end(stream: Stream, source: str, mended: bool) -> None:
    cache = {} if mended else WORKSPACES
    cache[id(stream)] = gpu.zeros(64, np.int32, stream)  # fault
    copied(stream, source, int(cache[id(stream)].buffer.handle))


def handle_without_owner(stream: Stream, source: str, mended: bool) -> None:
    x = ones(stream)
    address = int(x.buffer.handle)
    if not mended:
        x = None
        gc.collect()
    copied(stream, source, address)


def closed_before_the_launch(stream: Stream, source: str, mended: bool) -> None:
    x = ones(stream)
    address = int(x.buffer.handle)
    if not mended:
        x.buffer.close(stream)
    copied(stream, source, address)


def freed_by_hand_and_closed(stream: Stream, source: str, mended: bool) -> None:
    x = ones(stream)
    if not mended:
        gpu.DeviceMemoryResource(stream.device).deallocate(int(x.buffer.handle), 256, stream=stream)
    x.buffer.close(stream)  # fault


def freed_inside(stream: Stream, source: str, mended: bool) -> None:
    resource = gpu.DeviceMemoryResource(stream.device)
    buffer = resource.allocate(1024, stream=stream)
    address = int(buffer.handle) + 512
    if not mended:
        resource.deallocate(address, 512, stream=stream)  # fault
    buffer.close(stream)


def freed_twice_unseen(stream: Stream, source: str, mended: bool) -> None:
    x = ones(stream)
    if not mended:
        gpu.DeviceMemoryResource(stream.device).deallocate(int(x.buffer.handle), 256, stream=stream)
    del x  # fault
    gpu.zeros(64, np.int32, stream)


PLANTED = [
    Fault("result_kept", "leak", COPY, host=result_kept, mark="# fault"),
    Fault("cache_without_end", "leak", COPY, host=cache_without_end, mark="# fault"),
    Fault("handle_without_owner", "use after free", COPY, host=handle_without_owner, buffer="x"),
    Fault("closed_before_the_launch", "use after free", COPY, host=closed_before_the_launch, buffer="x"),
    Fault("freed_by_hand_and_closed", "invalid free", COPY, host=freed_by_hand_and_closed, mark="# fault"),
    Fault("freed_inside", "invalid free", COPY, host=freed_inside, mark="# fault"),
    Fault("freed_twice_unseen", "invalid free", COPY, host=freed_twice_unseen, mark="# fault"),
]
