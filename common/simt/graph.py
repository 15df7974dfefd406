"""Stand-ins for cuda.core.graph: a graph is the list of what was recorded, replayed in that order."""

from collections.abc import Callable
from typing import Any, NoReturn

from common.simt.errors import SimulatorUnsupported


class GraphBuilder:
    """Records work given to it between begin_building() and end_building()."""

    def __init__(self, stream: Any):
        self.stream = stream
        self.is_building = False
        self._work: list[Callable[[], None]] = []

    def begin_building(self, mode: str | None = "relaxed") -> "GraphBuilder":
        if self.is_building:
            raise RuntimeError("Graph builder already building.")
        self.is_building = True
        return self

    def end_building(self) -> "GraphBuilder":
        if not self.is_building:
            raise RuntimeError("Graph builder is not building.")
        self.is_building = False
        return self

    def _submit(self, work: Callable[[], None]) -> None:
        if not self.is_building:
            raise RuntimeError("Graph builder is not building.")
        self._work.append(work)

    def split(self, count: int) -> "tuple[GraphBuilder, ...]":
        """Branches record into the one list: any order that respects the joins is a right one."""
        if count < 2:
            raise ValueError(f"Invalid split count: expecting >= 2, got {count}")
        return (self, *(self._branch() for _ in range(count - 1)))

    def _branch(self) -> "GraphBuilder":
        branch = GraphBuilder(self.stream)
        branch.is_building, branch._work = True, self._work
        return branch

    @staticmethod
    def join(*graph_builders: "GraphBuilder") -> "GraphBuilder":
        for builder in graph_builders[1:]:
            builder.is_building = False
        return graph_builders[0]

    def complete(self, options: object = None) -> "Graph":
        if self.is_building:
            raise RuntimeError("Graph has not finished building.")
        return Graph(list(self._work))

    def close(self) -> None:
        self._work = []

    def __getattr__(self, name: str) -> NoReturn:
        raise SimulatorUnsupported(f"GraphBuilder.{name}")


class Graph:
    """An executable graph."""

    def __init__(self, work: list):
        self._work = work

    def launch(self, stream: Any) -> None:
        for work in self._work:
            stream._submit(work)

    def upload(self, stream: Any) -> None:
        return None

    def update(self, source: GraphBuilder) -> None:
        if len(source._work) != len(self._work):
            raise RuntimeError("Graph update failed: the graphs have different numbers of nodes")
        self._work = list(source._work)

    def close(self) -> None:
        self._work = []
