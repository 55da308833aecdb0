"""The ways to run a step: eager, Lockstep, and what they are compared with."""

import glob
import os
import tempfile


def identity(program, step, options):
    return step


def lockstep_with(when):
    def decorate(program, step, options):
        import lockstep

        return lockstep.function(step, when=when, numerics=options["numerics"])

    return decorate


def compile_step(program, step, options):
    import torch

    return torch.compile(step)


def compile_model(program, step, options):
    for module in program.modules.values():
        module.compile()
    return step


# name -> decorate(program, step, options)
VARIANTS = {
    "eager_a": identity,
    "eager_b": identity,
    "always": lockstep_with("always"),
    "auto": lockstep_with("auto"),
    "eager_tcmalloc": identity,
    "compile_step": compile_step,
    "compile_model": compile_model,
}
USUAL = ("eager_a", "eager_b", "always", "auto")
OPTIONAL = {"tcmalloc": ("eager_tcmalloc",), "compile": ("compile_step", "compile_model")}
# A thread pool, allocator or cache of its own: such a variant always has a process of its own.
OWN_PROCESS = ("eager_tcmalloc", "compile_step", "compile_model")


def balanced_order(names, index):
    """A row of a Williams square: in as many rows as there are names, or twice as many, each name
    is followed by each other one equally often, and stands in each place equally often.
    """
    count = len(names)
    if not count:
        return []
    row = [0]
    for step in range(1, count):
        row.append((row[-1] + (step if step % 2 else -step)) % count)
    order = [names[(place + index) % count] for place in row]
    return order[::-1] if count % 2 and index // count % 2 else order


def find_tcmalloc():
    """Path of a tcmalloc library, or None."""
    found = glob.glob("/usr/lib/*/libtcmalloc*.so.*") + glob.glob("/usr/lib/libtcmalloc*.so.*")
    found = [path for path in found if "debug" not in path and "profiler" not in path]
    return min(found, key=len) if found else None


def environment(variant, cache=None):
    """The environment of a process that begins with this variant: nothing is remembered yet, or
    what is in the folder `cache`.
    """
    cache = cache or tempfile.mkdtemp(prefix="bench-lockstep-")
    variables = {**os.environ, "LOCKSTEP_CACHE": cache}
    if variant == "eager_tcmalloc":
        library = find_tcmalloc()
        if library is None:
            raise FileNotFoundError("no tcmalloc found: install the package libtcmalloc-minimal4")
        # It keeps the pages that are freed, instead of giving them back to the kernel.
        variables |= {"LD_PRELOAD": library, "TCMALLOC_RELEASE_RATE": "0"}
    if variant.startswith("compile"):
        variables["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="bench-inductor-")
    return variables
