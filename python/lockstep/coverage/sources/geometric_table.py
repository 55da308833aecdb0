"""How each layer, aggregation, normalisation and model of torch_geometric is built and called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn as g
from torch.nn import Linear, ReLU, Sequential

NODES, EDGES, WIDTH = 12, 40, 8
_W = WIDTH


def _mlp(inputs: int = _W, outputs: int = _W) -> torch.nn.Module:
    return Sequential(Linear(inputs, 12), ReLU(), Linear(12, outputs))


_XE = ("x", "edge_index")
_XEW = ("x", "edge_index", "edge_weight")
_XEA = ("x", "edge_index", "edge_attr")
_XET = ("x", "edge_index", "edge_type")
_XPE = ("x", "pos", "edge_index")
_DEGREE = torch.tensor([0, 2, 4, 3, 2, 1])

# name: (build, what forward takes)
LAYERS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "SimpleConv": (lambda: g.SimpleConv("mean"), _XEW),
    "GCNConv": (lambda: g.GCNConv(_W, _W), _XEW),
    "ChebConv": (lambda: g.ChebConv(_W, _W, 3), _XEW),
    "SAGEConv": (lambda: g.SAGEConv(_W, _W), _XE),
    "SAGEConv-max": (lambda: g.SAGEConv(_W, _W, aggr="max", project=True), _XE),
    "SAGEConv-lstm": (lambda: g.SAGEConv(_W, _W, aggr="lstm"), ("x", "sorted_edges")),
    "GraphConv": (lambda: g.GraphConv(_W, _W), _XEW),
    "GatedGraphConv": (lambda: g.GatedGraphConv(_W, 2), _XEW),
    "ResGatedGraphConv": (lambda: g.ResGatedGraphConv(_W, _W, edge_dim=_W), _XEA),
    "GATConv": (lambda: g.GATConv(_W, 4, heads=2, dropout=0.1, edge_dim=_W), _XEA),
    "GATv2Conv": (lambda: g.GATv2Conv(_W, 4, heads=2, dropout=0.1, edge_dim=_W), _XEA),
    "TransformerConv": (lambda: g.TransformerConv(_W, 4, 2, beta=True, edge_dim=_W), _XEA),
    "AGNNConv": (lambda: g.AGNNConv(), _XE),
    "TAGConv": (lambda: g.TAGConv(_W, _W), _XEW),
    "GINConv": (lambda: g.GINConv(_mlp(), train_eps=True), _XE),
    "GINEConv": (lambda: g.GINEConv(_mlp(), edge_dim=_W), _XEA),
    "ARMAConv": (lambda: g.ARMAConv(_W, _W, 2, 2, dropout=0.1), _XEW),
    "SGConv": (lambda: g.SGConv(_W, _W, K=2), _XEW),
    "SSGConv": (lambda: g.SSGConv(_W, _W, alpha=0.1, K=2), _XEW),
    "APPNP": (lambda: g.APPNP(3, 0.1, dropout=0.1), _XEW),
    "MFConv": (lambda: g.MFConv(_W, _W, max_degree=4), _XE),
    "RGCNConv": (lambda: g.RGCNConv(_W, _W, 3, num_bases=2), _XET),
    "FastRGCNConv": (lambda: g.FastRGCNConv(_W, _W, 3), _XET),
    "RGATConv": (lambda: g.RGATConv(_W, _W, 3, edge_dim=_W), (*_XET, "edge_attr")),
    "SignedConv": (lambda: g.SignedConv(_W, 4, first_aggr=True), ("x", "pos_edges", "neg_edges")),
    "GMMConv": (lambda: g.GMMConv(_W, _W, dim=2, kernel_size=3), ("x", "edge_index", "pseudo")),
    "NNConv": (lambda: g.NNConv(_W, _W, _mlp(_W, _W * _W)), _XEA),
    "CGConv": (lambda: g.CGConv(_W, dim=_W, batch_norm=True), _XEA),
    "EdgeConv": (lambda: g.EdgeConv(_mlp(2 * _W)), _XE),
    "PointNetConv": (lambda: g.PointNetConv(_mlp(_W + 3), _mlp()), _XPE),
    "PPFConv": (lambda: g.PPFConv(_mlp(_W + 4), _mlp()), ("x", "pos", "normal", "edge_index")),
    "FeaStConv": (lambda: g.FeaStConv(_W, _W, heads=2), _XE),
    "PointTransformerConv": (lambda: g.PointTransformerConv(_W, _W), _XPE),
    "HypergraphConv": (lambda: g.HypergraphConv(_W, _W), _XE),
    "LEConv": (lambda: g.LEConv(_W, _W), _XEW),
    "PNAConv": (
        lambda: g.PNAConv(_W, _W, ["mean", "max", "std"], ["identity", "attenuation"], _DEGREE),
        _XE,
    ),
    "ClusterGCNConv": (lambda: g.ClusterGCNConv(_W, _W), _XE),
    "GENConv": (lambda: g.GENConv(_W, _W, learn_t=True, edge_dim=_W), _XEA),
    "GCN2Conv": (lambda: g.GCN2Conv(_W, 0.1, 0.5, 1), ("x", "x_0", "edge_index")),
    "WLConvContinuous": (lambda: g.WLConvContinuous(), _XEW),
    "FiLMConv": (lambda: g.FiLMConv(_W, _W, num_relations=3), _XET),
    "SuperGATConv": (lambda: g.SuperGATConv(_W, 4, heads=2, dropout=0.1), _XE),
    "FAConv": (lambda: g.FAConv(_W, dropout=0.1), ("x", "x_0", "edge_index")),
    "EGConv": (lambda: g.EGConv(_W, _W, ["mean", "max"], num_heads=2, num_bases=2), _XE),
    "PDNConv": (lambda: g.PDNConv(_W, _W, _W, 6), _XEA),
    "GeneralConv": (lambda: g.GeneralConv(_W, _W, _W, attention=True), _XEA),
    "HEATConv": (
        lambda: g.HEATConv(_W, _W, 2, 3, 4, _W, 4, heads=2, concat=False, dropout=0.1),
        ("x", "edge_index", "node_type", "edge_type", "edge_attr"),
    ),
    "LGConv": (lambda: g.LGConv(), _XEW),
    "PointGNNConv": (
        lambda: g.PointGNNConv(_mlp(_W, 3), _mlp(_W + 3), _mlp()),
        _XPE,
    ),
    "GPSConv": (lambda: g.GPSConv(_W, g.GCNConv(_W, _W), heads=2, dropout=0.1), _XE),
    "AntiSymmetricConv": (lambda: g.AntiSymmetricConv(_W), _XE),
    "DirGNNConv": (lambda: g.DirGNNConv(g.SAGEConv(_W, _W)), _XE),
    "MixHopConv": (lambda: g.MixHopConv(_W, 4), _XEW),
    "DNAConv": (lambda: g.DNAConv(_W, heads=2), ("layers", "edge_index")),
}

AGGREGATIONS: dict[str, Callable[[], Any]] = {
    "Sum": g.SumAggregation,
    "Mean": g.MeanAggregation,
    "Max": g.MaxAggregation,
    "Min": g.MinAggregation,
    "Mul": g.MulAggregation,
    "Var": g.VarAggregation,
    "Std": g.StdAggregation,
    "Softmax": lambda: g.SoftmaxAggregation(learn=True),
    "PowerMean": lambda: g.PowerMeanAggregation(learn=True),
    "Median": g.MedianAggregation,
    "Quantile": lambda: g.QuantileAggregation([0.25, 0.75]),
    "LSTM": lambda: g.LSTMAggregation(_W, _W),
    "GRU": lambda: g.GRUAggregation(_W, _W),
    "Set2Set": lambda: g.Set2Set(_W, 2),
    "Sort": lambda: g.SortAggregation(3),
    "GraphMultisetTransformer": lambda: g.GraphMultisetTransformer(_W, 2, heads=2),
    "Attentional": lambda: g.AttentionalAggregation(Linear(_W, 1)),
    "Equilibrium": lambda: g.EquilibriumAggregation(_W, 4, [6], 1),
    "MLP": lambda: g.MLPAggregation(_W, _W, NODES // 2, num_layers=1),
    "DeepSets": lambda: g.DeepSetsAggregation(_mlp(), _mlp()),
    "SetTransformer": lambda: g.SetTransformerAggregation(_W, heads=2, dropout=0.1),
    "LCM": lambda: g.LCMAggregation(_W, _W),
    "VariancePreserving": g.VariancePreservingAggregation,
}

NORMS: dict[str, Callable[[], Any]] = {
    "BatchNorm": lambda: g.BatchNorm(_W),
    "InstanceNorm": lambda: g.InstanceNorm(_W, affine=True),
    "LayerNorm": lambda: g.LayerNorm(_W),
    "GraphNorm": lambda: g.GraphNorm(_W),
    "GraphSizeNorm": lambda: g.GraphSizeNorm(),
    "PairNorm": lambda: g.PairNorm(),
    "MeanSubtractionNorm": lambda: g.MeanSubtractionNorm(),
    "DiffGroupNorm": lambda: g.DiffGroupNorm(_W, groups=2),
}


def _on_graph(model: Any, graph: Any) -> torch.Tensor:
    return model(graph.x, graph.edge_index)


def _basic(kind: type, **options: Any) -> tuple[Callable[[], Any], Callable]:
    return lambda: kind(_W, 12, 2, 3, dropout=0.2, **options), _on_graph


def _encoder() -> Any:
    return g.GCN(_W, 12, 2, _W)


MODELS: dict[str, tuple[Callable[[], Any], Callable]] = {
    "MLP": (lambda: g.MLP([_W, 12, 3], dropout=0.2), lambda m, q: m(q.x)),
    "GCN": _basic(g.GCN, jk="cat"),
    "GraphSAGE": _basic(g.GraphSAGE, jk="lstm"),
    "GIN": _basic(g.GIN, jk="max"),
    "GAT": _basic(g.GAT, v2=True, heads=2),
    "PNA": _basic(g.PNA, aggregators=["mean", "max"], scalers=["identity"], deg=_DEGREE),
    "EdgeCNN": _basic(g.EdgeCNN, norm="batch_norm"),
    "PMLP": (lambda: g.PMLP(_W, 12, 3, 2), _on_graph),
    "GAE": (
        lambda: g.GAE(_encoder()),
        lambda m, q: m.recon_loss(m.encode(q.x, q.edge_index), q.pos_edges, q.neg_edges)[None],
    ),
    "DeepGraphInfomax": (
        lambda: g.DeepGraphInfomax(
            _W, _encoder(), lambda z, *a: z.mean(0).sigmoid(), lambda x, e: (x.flip(0), e)
        ),
        lambda m, q: m.loss(*m(q.x, q.edge_index))[None],
    ),
    "GraphUNet": (lambda: g.GraphUNet(_W, 8, 3, 2), _on_graph),
    "AttentiveFP": (
        lambda: g.AttentiveFP(_W, 8, 3, _W, 2, 2, dropout=0.1),
        lambda m, q: m(q.x, q.edge_index, q.edge_attr, q.batch),
    ),
    "LINKX": (
        lambda: g.LINKX(NODES, _W, 8, 3, 2, dropout=0.1),
        lambda m, q: m(q.x, q.edge_index, q.edge_weight),
    ),
    "LightGCN": (lambda: g.LightGCN(NODES, 8, 2), lambda m, q: m(q.edge_index)),
    "DeepGCNLayer": (
        lambda: g.DeepGCNLayer(g.GENConv(_W, _W), torch.nn.LayerNorm(_W), ReLU(), dropout=0.1),
        _on_graph,
    ),
    "GroupAddRev": (  # frees the memory of its input
        lambda: g.GroupAddRev(g.SAGEConv(4, 4), num_groups=2),
        lambda m, q: m(q.x.clone(), q.edge_index),
    ),
    "MaskLabel": (
        lambda: g.MaskLabel(3, _W),
        lambda m, q: m(q.x, q.y, q.node_type.bool()),
    ),
    "NeuralFingerprint": (
        lambda: g.NeuralFingerprint(_W, 8, 3, 2),
        lambda m, q: m(q.x, q.edge_index, q.batch),
    ),
    "RECT_L": (lambda: g.RECT_L(_W, 8), lambda m, q: m(q.x, q.edge_index, q.edge_weight)),
    "SGFormer": (
        lambda: g.SGFormer(_W, 8, 3),
        lambda m, q: m(q.x, q.edge_index, q.batch),
    ),
    "Polynormer": (
        lambda: g.Polynormer(_W, 8, 3),
        lambda m, q: m(q.x, q.edge_index, q.batch),
    ),
    "TopKPooling": (lambda: g.TopKPooling(_W, 0.5), lambda m, q: m(q.x, q.edge_index)[0]),
    "SAGPooling": (lambda: g.SAGPooling(_W, 0.5), lambda m, q: m(q.x, q.edge_index)[0]),
    "EdgePooling": (
        lambda: g.EdgePooling(_W, dropout=0.1),
        lambda m, q: m(q.x, q.edge_index, q.batch)[0],
    ),
    "MemPooling": (
        lambda: g.MemPooling(_W, 4, 2, 2),
        lambda m, q: m(q.x, q.batch)[0],
    ),
    "SchNet": (
        lambda: g.SchNet(8, 8, 2, 6, interaction_graph=_all_pairs),
        lambda m, q: m(q.z, q.pos, q.batch),
    ),
    "MetaLayer": (
        lambda: g.MetaLayer(_EdgeModel(), None, None),
        lambda m, q: m(q.x, q.edge_index, q.edge_attr)[1],
    ),
}


class _EdgeModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = _mlp(3 * _W)

    def forward(self, source: Any, target: Any, edges: Any, u: Any, batch: Any) -> Any:
        return self.inner(torch.cat([source, target, edges], 1))


def _all_pairs(pos: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = (batch[:, None] == batch[None]).fill_diagonal_(False).nonzero().t()
    return pairs, (pos[pairs[0]] - pos[pairs[1]]).norm(dim=-1)
