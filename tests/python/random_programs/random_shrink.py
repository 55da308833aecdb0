"""Makes a failing program small: deletes statements while the failure stays.

A failure stays if it is of the same kind (the first path that differs without its index, a crash,
a hang) and eager does not newly fail with a name that a deleted statement had defined.
"""

import ast

from random_runner import check_text

KEPT_FUNCTIONS = ("start", "inputs", "between", "step")


def blocks(tree):
    """All statement lists of the program that may be thinned out, the longest first."""
    found = []
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                found.append(block)
    return sorted(found, key=len, reverse=True)


def valid(tree):
    """Puts `pass` where a body became empty; False if the program lost a function it must have."""
    for node in ast.walk(tree):
        if hasattr(node, "body") and isinstance(node.body, list) and not node.body:
            node.body.append(ast.Pass())
        if isinstance(node, ast.Try) and not node.handlers and not node.finalbody:
            return False
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return names.issuperset(KEPT_FUNCTIONS)


def deletions(text):
    """Smaller texts: each with some neighbouring statements left out, large cuts first."""
    shape = [len(block) for block in blocks(ast.parse(text))]
    for size in (8, 4, 2, 1):
        for index, length in enumerate(shape):
            for start in range(0, length, size):
                if size > length and size > 1:
                    continue
                tree = ast.parse(text)
                del blocks(tree)[index][start : start + size]
                if valid(tree):
                    yield ast.unparse(ast.fix_missing_locations(tree))


def unwrapped(text):
    """Smaller texts: each with one branch, loop, handler or `with` replaced by its body."""
    count = len(list(ast.walk(ast.parse(text))))
    for number in range(count):
        tree = ast.parse(text)
        node = list(ast.walk(tree))[number]
        if not isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
            continue
        for block in blocks(tree):
            if node in block:
                at = block.index(node)
                block[at : at + 1] = node.body
                break
        if valid(tree):
            yield ast.unparse(ast.fix_missing_locations(tree))


def simpler_expressions(text):
    """Smaller texts: each with one operation, call or branch expression replaced by an operand."""
    count = len(list(ast.walk(ast.parse(text))))
    for number in range(count):
        for choice in range(3):
            tree = ast.parse(text)
            node = list(ast.walk(tree))[number]
            replacement = operand(node, choice)
            if replacement is None:
                continue
            Replace(node, replacement).visit(tree)
            yield ast.unparse(ast.fix_missing_locations(tree))


def operand(node, choice):
    if isinstance(node, ast.BinOp) and choice < 2:
        return (node.left, node.right)[choice]
    if isinstance(node, ast.IfExp) and choice < 2:
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


def shrink(text, failure, calls=6, options=None, tries=400, progress=None):
    """The smallest text and call count found with at most `tries` runs, and its failure."""
    text = ast.unparse(ast.parse(text))
    left = [tries]

    def fails(candidate, calls):
        left[0] -= 1
        found = check_text(candidate, calls, options, timeout=10.0)
        same = found and found["kind"] == failure["kind"]
        named = same and ("NameError" in found["text"] or "UnboundLocal" in found["text"])
        return found if same and not named else None

    for fewer in range(1, calls):
        found = fails(text, fewer)
        if found:
            calls, failure = fewer, found
            break
    again = True
    while again and left[0] > 0:
        again = False
        for rule in (deletions, unwrapped, simpler_expressions):
            smaller, found = first_that_fails(rule(text), text, fails, calls, left)
            while found:
                text, failure, again = smaller, found, True
                if progress:
                    progress(len(text.splitlines()), left[0])
                smaller, found = first_that_fails(rule(text), text, fails, calls, left)
    return text, calls, failure


def first_that_fails(candidates, text, fails, calls, left):
    for candidate in candidates:
        if left[0] <= 0:
            break
        if candidate == text or len(candidate) > len(text):
            continue
        found = fails(candidate, calls)
        if found:
            return candidate, found
    return None, None
