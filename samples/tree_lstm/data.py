"""Syntax trees of standard library functions, labelled with their module."""

from __future__ import annotations

import ast
import random
from dataclasses import dataclass, field

from ..common.source import source_of

MODULES = ("argparse", "calendar", "difflib", "fractions", "statistics", "textwrap")


@dataclass
class Tree:
    """A node's kind and its children, in source order."""

    kind: int
    children: list[Tree] = field(default_factory=list)

    def __len__(self) -> int:
        return 1 + sum(len(child) for child in self.children)


class TreeSamples:
    """next() gives a list of (tree, label) pairs; trees have `smallest` to `largest` nodes."""

    def __init__(self, smallest: int, largest: int, batch: int):
        self.kinds: dict[str, int] = {}
        self.samples: list[tuple[Tree, int]] = []
        self.batch = batch
        for label, module in enumerate(MODULES):
            for node in ast.walk(ast.parse(source_of(module))):
                if isinstance(node, ast.FunctionDef):
                    tree = self.convert(node)
                    if smallest <= len(tree) <= largest:
                        self.samples.append((tree, label))

    def convert(self, node: ast.AST) -> Tree:
        """The tree of a syntax node; contexts such as ast.Load are left out."""
        kind = self.kinds.setdefault(type(node).__name__, len(self.kinds))
        children = [
            self.convert(child)
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, ast.expr_context)
        ]
        return Tree(kind, children)

    def next(self) -> list[tuple[Tree, int]]:
        return random.sample(self.samples, self.batch)
