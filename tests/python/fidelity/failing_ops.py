"""Ops that fail because of a value: their kind of error (an item of items.toml) and a call each.

Every call takes a pending x [5, 6]; what decides is computed from it where that is possible.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def _bad_index(x):
    """Indices computed from a pending value, one of them out of range: [2]."""
    return torch.stack([x.sum() * 0, x.sum() * 0 + 777]).long()


def _singular(x):
    """A matrix of zeros [6, 6] that is known only once x is computed."""
    return x[:1].T @ x[:1] * 0


def _bad_label(x):
    return torch.full((x.shape[0],), 9)


BY_VALUE = {
    "embedding index": ("4.bad-index", lambda x: F.embedding(_bad_index(x), torch.ones(4, 3))),
    "index_select": ("4.bad-index", lambda x: x.index_select(0, _bad_index(x))),
    "gather": ("4.bad-index", lambda x: x.gather(0, _bad_index(x).reshape(2, 1))),
    "indexing": ("4.bad-index", lambda x: x[_bad_index(x)]),
    "index_put": ("4.bad-index", lambda x: x.index_put_((_bad_index(x),), torch.ones(2, 6))),
    "scatter": ("4.bad-index", lambda x: x.scatter_(0, _bad_index(x).reshape(2, 1), 1.0)),
    "one_hot": ("4.bad-index", lambda x: F.one_hot(_bad_index(x), 3)),
    "put": ("4.bad-index", lambda x: x.put(_bad_index(x) * 100, x[0, :2])),
    "take": ("4.bad-index", lambda x: x.take(_bad_index(x) * 100)),
    "inv": ("4.singular-matrix", lambda x: torch.linalg.inv(_singular(x))),
    "solve": ("4.singular-matrix", lambda x: torch.linalg.solve(_singular(x), x.T[:, :2])),
    "cholesky": ("4.singular-matrix", lambda x: torch.linalg.cholesky(-_singular(x) - 1)),
    "eigh of nan": ("4.singular-matrix", lambda x: torch.linalg.eigh(_singular(x) * float("nan"))),
    "cross_entropy": ("4.wrong-class-label", lambda x: F.cross_entropy(x, _bad_label(x))),
    "nll_loss": ("4.wrong-class-label", lambda x: F.nll_loss(x.log_softmax(1), _bad_label(x))),
    "multi_margin": ("4.wrong-class-label", lambda x: F.multi_margin_loss(x, _bad_label(x))),
    "bce": ("4.wrong-class-label", lambda x: F.binary_cross_entropy(x * 9 + 5, x)),
    "multinomial": ("4.wrong-class-label", lambda x: torch.multinomial(-x.abs(), 2)),
    "bernoulli": ("4.wrong-class-label", lambda x: torch.bernoulli(x.abs() + 3)),
    "index_add": ("4.bad-index", lambda x: x.index_add_(0, _bad_index(x), torch.ones(2, 6))),
    "index_copy": ("4.bad-index", lambda x: x.index_copy(0, _bad_index(x), torch.ones(2, 6))),
    "index_fill": ("4.bad-index", lambda x: x.index_fill_(0, _bad_index(x), 3.0)),
    "scatter_add": ("4.bad-index", lambda x: x.scatter_add(0, -_bad_index(x)[:, None], x[:2] * 2)),
    "bincount": ("4.bad-index", lambda x: torch.bincount(-_bad_index(x))),
    "repeat_interleave": ("4.bad-index", lambda x: x.repeat_interleave(-_bad_index(x)[1:])),
    "masked_scatter": ("4.bad-index", lambda x: x.masked_scatter(x > -99, x[:1] * 2)),
    "embedding_bag": (
        "4.bad-index",
        lambda x: F.embedding_bag(_bad_index(x), torch.ones(4, 3), torch.tensor([0, 1])),
    ),
    "embedding_bag offsets": (
        "4.bad-index",
        lambda x: F.embedding_bag(_bad_index(x) // 777, torch.ones(4, 3), _bad_index(x)),
    ),
    "max_unpool": (
        "4.bad-index",
        lambda x: F.max_unpool1d(x[None, :1, :2], _bad_index(x)[None, None], 2),
    ),
    "tensor_split": ("4.bad-index", lambda x: x.tensor_split(-_bad_index(x)[1])),
    "integer division": ("4.bad-index", lambda x: _bad_index(x) // (_bad_index(x) * 0)),
    "integer remainder": ("4.bad-index", lambda x: _bad_index(x) % (_bad_index(x) * 0)),
    "lu solve": (
        "4.singular-matrix",
        lambda x: torch.linalg.solve_ex(_singular(x), x.T, check_errors=True),
    ),
    "inverse": ("4.singular-matrix", lambda x: torch.inverse(_singular(x)[None].expand(2, 6, 6))),
    "svd of nan": ("4.singular-matrix", lambda x: torch.linalg.svd(_singular(x) * float("nan"))),
    "histc of nan": ("4.singular-matrix", lambda x: torch.histc(x * float("nan"))),
    "quantile": ("4.wrong-class-label", lambda x: torch.quantile(x, x.abs().max() + 2)),
    "weighted cross_entropy": (
        "4.wrong-class-label",
        lambda x: F.cross_entropy(x, _bad_label(x), weight=torch.ones(6)),
    ),
    "nll_loss 2d": (
        "4.wrong-class-label",
        lambda x: F.nll_loss(x[None, :, :, None], torch.full((1, 6, 1), 9)),
    ),
    "multilabel margin": (
        "4.wrong-class-label",
        lambda x: F.multilabel_margin_loss(x, (x * 0 + 9).long()),
    ),
    "normal": ("4.wrong-class-label", lambda x: torch.normal(x, -x.abs())),
    "poisson": ("4.wrong-class-label", lambda x: torch.poisson(-x.abs() - 1)),
    "multinomial of zeros": ("4.wrong-class-label", lambda x: torch.multinomial(x * 0, 1)),
    "assert_async": (
        "4.wrong-class-label",
        lambda x: torch._assert_async(x.sum() > 1e9, "too small"),
    ),
}
