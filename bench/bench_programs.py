"""The seventeen programs: the fifteen samples, a small MLP, and a chain bound by memory."""

import importlib
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT, ROOT / "python"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

from samples.common.program import Program  # noqa: E402

SAMPLES = (
    "bert_qa", "bert_cls", "gpt2", "music_transformer",
    "resnet50", "dcgan", "dropblock", "sdpoint", "wgan_gp",
    "yolov3", "faster_rcnn",
    "lstm_ragged", "moe", "tree_lstm", "actor_critic",
)  # fmt: skip
OWN = ("small_mlp", "pointwise_chain")
NAMES = SAMPLES + OWN


def load(name):
    """Imports what the program needs, without making it."""
    if name in SAMPLES:
        importlib.import_module(f"samples.{name}.program")


def make(name, size, seed):
    """The program `name` at size "small" or "bench"."""
    if name == "small_mlp":
        return make_small_mlp(size, seed)
    if name == "pointwise_chain":
        return make_pointwise_chain(size, seed)
    return importlib.import_module(f"samples.{name}.program").make(size, seed)


def make_small_mlp(size, seed):
    """Four linear layers and Adam: nearly all of an eager step is overhead."""
    torch.manual_seed(seed)
    width = 64 if size == "bench" else 16
    layers = [nn.Linear(width, width) for _ in range(4)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(32, width), torch.randn(32, width)

    def step(index):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    return Program("small_mlp", step, {"model": model}, {"optimizer": optimizer})


def make_pointwise_chain(size, seed):
    """Pointwise ops, layer norm and softmax on 64x1024x256 floats (64 MB a tensor)."""
    torch.manual_seed(seed)
    shape = (64, 1024, 256) if size == "bench" else (4, 16, 32)
    norm = nn.LayerNorm(shape[-1])
    scale = nn.Parameter(torch.randn(shape[-1]))
    model = nn.Module()
    model.norm, model.scale = norm, scale
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(shape)

    def step(index):
        optimizer.zero_grad()
        hidden = F.gelu(inputs * scale + 0.5)
        hidden = torch.tanh(hidden) * torch.sigmoid(hidden) + inputs
        hidden = norm(hidden) * 0.7
        loss = (torch.softmax(hidden, -1) * inputs).mean()
        loss.backward()
        optimizer.step()
        return loss

    return Program("pointwise_chain", step, {"model": model}, {"optimizer": optimizer})
