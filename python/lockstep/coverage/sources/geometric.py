"""Graph networks of the package torch_geometric: every layer that runs from plain PyTorch in a net
of two, whole models, aggregations and normalisations. One case is one of them; its program trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from ..case import Case, Run, one_program
from .geometric_table import AGGREGATIONS, EDGES, LAYERS, MODELS, NODES, NORMS, WIDTH

CLASSES = 3


class Graph:
    """A small random graph; what a layer asks for by name is an attribute."""

    def __init__(self) -> None:
        self.x = torch.randn(NODES, WIDTH)
        index = torch.randint(0, NODES, (2, EDGES))
        self.edge_index = index[:, index[0] != index[1]].unique(dim=1)
        count = self.edge_index.shape[1]
        self.edge_weight = torch.rand(count)
        self.edge_attr = torch.rand(count, WIDTH)
        self.edge_type = torch.randint(0, 3, (count,))
        self.node_type = torch.randint(0, 2, (NODES,))
        self.pseudo = torch.rand(count, 2)
        self.pos = torch.randn(NODES, 3)
        self.normal = F.normalize(torch.randn(NODES, 3), dim=1)
        self.batch = torch.arange(NODES) // (NODES // 2)
        self.z = torch.randint(1, 9, (NODES,))
        self.x_0 = self.x
        order = self.edge_index[1].argsort(stable=True)
        self.sorted_edges = self.edge_index[:, order]
        self.y = torch.randint(0, CLASSES, (NODES,))
        half = count // 2
        self.pos_edges, self.neg_edges = self.edge_index[:, :half], self.edge_index[:, half:]


def cases() -> Iterator[Case]:
    for name, (build, wants) in LAYERS.items():
        yield _case(f"layer/{name}", lambda b=build, w=wants: _LayerNet(b, w))
    for name, build in AGGREGATIONS.items():
        yield _case(f"aggregation/{name}", lambda b=build: _AggregationNet(b))
    for name, build in NORMS.items():
        yield _case(f"norm/{name}", lambda b=build: _NormNet(b))
    for name, (build, call) in MODELS.items():
        yield _case(f"model/{name}", lambda b=build, c=call: _ModelNet(b, c))


def _case(name: str, build: Callable[[], torch.nn.Module]) -> Case:
    def make() -> Run:
        graph = Graph()
        net = build()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        return _training_run(net, optimizer, graph)

    return one_program("geometric", name, make)


def _training_run(net: Any, optimizer: Any, graph: Graph) -> Run:
    def step(g: Graph) -> Any:
        optimizer.zero_grad()
        out = net(g)
        if out.shape[-1] == CLASSES and out.shape[0] == NODES:
            loss = F.cross_entropy(out, g.y)
        else:
            loss = out.float().pow(2).mean()
        loss.backward()
        optimizer.step()
        return out, loss

    return Run(step, lambda i: (graph,), state=(net, optimizer))


class _LayerNet(torch.nn.Module):
    def __init__(self, build: Callable, wants: tuple[str, ...]) -> None:
        super().__init__()
        self.first, self.second = build(), build()
        self.wants = wants
        self.head = torch.nn.LazyLinear(CLASSES)
        self.between = torch.nn.LazyLinear(WIDTH)
        with torch.no_grad():
            self(Graph())

    def _apply_layer(self, layer: Any, g: Graph, x: torch.Tensor) -> torch.Tensor:
        known = {"x": x, "layers": torch.stack([x, x * 0.5], 1)}
        given = [known[w] if w in known else getattr(g, w) for w in self.wants]
        out = layer(*given)
        return out[0] if isinstance(out, tuple) else out

    def forward(self, g: Graph) -> torch.Tensor:
        h = self._apply_layer(self.first, g, g.x)
        h = F.dropout(F.relu(self.between(h)), 0.2, self.training)
        return self.head(self._apply_layer(self.second, g, h))


class _AggregationNet(torch.nn.Module):
    def __init__(self, build: Callable) -> None:
        super().__init__()
        self.inner, self.aggregate = torch.nn.Linear(WIDTH, WIDTH), build()
        self.head = torch.nn.LazyLinear(CLASSES)
        with torch.no_grad():
            self(Graph())

    def forward(self, g: Graph) -> torch.Tensor:
        h = self.aggregate(torch.sigmoid(self.inner(g.x)), g.batch)
        return self.head(h.flatten(1))


class _NormNet(torch.nn.Module):
    def __init__(self, build: Callable) -> None:
        super().__init__()
        self.inner, self.norm = torch.nn.Linear(WIDTH, WIDTH), build()
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, g: Graph) -> torch.Tensor:
        return self.head(self.norm(self.inner(g.x)))


class _ModelNet(torch.nn.Module):
    def __init__(self, build: Callable, call: Callable) -> None:
        super().__init__()
        self.model, self.call = build(), call

    def forward(self, g: Graph) -> torch.Tensor:
        return self.call(self.model, g)
