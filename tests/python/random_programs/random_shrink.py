"""Makes a failing program small: deletes statements while the failure stays.

Each rule makes, of a text and a position, a smaller text. A rule goes through the positions once,
outer statements first, and stays where it is after a success. A failure stays if it is of the same
kind: the first path that differs without its index, a crash, or a hang.
"""

import ast

from random_runner import Checker

KEPT_FUNCTIONS = ("start", "inputs", "between", "step")
NEW_ERRORS = ("NameError", "Unbound", "AttributeError")


def statements(tree):
    """(block, index) of every statement, outer ones before those inside them."""
    found = []

    def visit(node):
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                for index, child in enumerate(block):
                    if isinstance(child, ast.stmt):
                        found.append((block, index))
                    visit(child)

    visit(tree)
    return found


def finish(tree):
    """Puts `pass` where a body became empty; None if a function is lost that must be there."""
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list) and not node.body:
            node.body.append(ast.Pass())
        if isinstance(node, ast.Try) and not node.handlers and not node.finalbody:
            return None
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if not names.issuperset(KEPT_FUNCTIONS):
        return None
    return ast.unparse(ast.fix_missing_locations(tree))


def deletions(text):
    """Functions that make the text without one statement, with all that is in it."""

    def delete(text, position):
        tree = ast.parse(text)
        block, index = statements(tree)[position]
        if len(block) == 1 and isinstance(block[0], ast.Pass):
            return None
        del block[index]
        return finish(tree)

    return delete, lambda text: len(statements(ast.parse(text)))


def unwrapping(text):
    """Functions that put the body of a branch, loop, handler or `with` in its place."""

    def unwrap(text, position):
        tree = ast.parse(text)
        block, index = statements(tree)[position]
        if not isinstance(block[index], (ast.If, ast.For, ast.While, ast.With, ast.Try)):
            return None
        block[index : index + 1] = block[index].body
        return finish(tree)

    return unwrap, lambda text: len(statements(ast.parse(text)))


def simplification(text):
    """Functions that put an operand in the place of an operation, call or branch expression."""

    def simplify(text, position):
        tree = ast.parse(text)
        node = list(ast.walk(tree))[position // 2]
        replacement = operand(node, position % 2)
        if replacement is None:
            return None
        Replace(node, replacement).visit(tree)
        return ast.unparse(ast.fix_missing_locations(tree))

    return simplify, lambda text: 2 * len(list(ast.walk(ast.parse(text))))


def operand(node, choice):
    if isinstance(node, ast.BinOp):
        return (node.left, node.right)[choice]
    if isinstance(node, ast.IfExp):
        return (node.body, node.orelse)[choice]
    if isinstance(node, ast.Call):
        if choice == 0 and isinstance(node.func, ast.Attribute):
            base = node.func.value
            return None if isinstance(base, ast.Name) and base.id in ("torch", "F") else base
        if choice == 1 and node.args:
            return node.args[0]
    if isinstance(node, ast.Subscript) and choice == 0:
        return node.value
    return None


class Replace(ast.NodeTransformer):
    def __init__(self, old, new):
        self.old, self.new = old, new

    def visit(self, node):
        return self.new if node is self.old else super().generic_visit(node)


class Shrinker:
    """The smallest failing program so far, and how many runs are left."""

    def __init__(self, text, failure, calls, options, tries, progress):
        self.text, self.failure, self.calls = ast.unparse(ast.parse(text)), failure, calls
        self.left, self.progress = tries, progress
        self.checker = Checker(options, timeout=10.0)

    def take(self, candidate, calls):
        """Takes the candidate over if it fails in the same way."""
        self.left -= 1
        found = self.checker.check(candidate, calls)
        if found is None or found["kind"] != self.failure["kind"]:
            return False
        if any(word in found["text"] for word in NEW_ERRORS):
            return False
        self.text, self.calls, self.failure = candidate, calls, found
        self.progress(self)
        return True

    def run(self, rule):
        """Goes through all positions once; whether anything was taken over."""
        make, count = rule(self.text)
        position, before = 0, len(self.text)
        while position < count(self.text) and self.left > 0:
            candidate = make(self.text, position)
            smaller = candidate is not None and len(candidate) < len(self.text)
            if not (smaller and self.take(candidate, self.calls)):
                position += 1
        return len(self.text) < before


def shrink(text, failure, calls=6, options=None, tries=1000, progress=lambda shrinker: None):
    """The smallest text and call count found with at most `tries` runs, and its failure."""
    shrinker = Shrinker(text, failure, calls, options, tries, progress)
    try:
        any(shrinker.take(shrinker.text, fewer) for fewer in range(1, calls))
        while shrinker.left > 0:
            if not any([shrinker.run(r) for r in (deletions, unwrapping, simplification)]):
                break
    finally:
        shrinker.checker.close()
    return shrinker.text, shrinker.calls, shrinker.failure
