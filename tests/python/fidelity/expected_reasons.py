"""Names of the fallback reasons that tests of the items marked (named) look for in the stats."""

from typing import NamedTuple


class Reason(NamedTuple):
    """A reason in the stats; some of the named items may also run in the graph, without one."""

    name: str
    may_run_in_graph: bool = True


EXPECTED = {
    "forward-mode AD": Reason("functorch"),
    "torch.func": Reason("functorch"),
    "backward in another thread": Reason("foreign_thread", may_run_in_graph=False),
    "set_": Reason("moves_storage", may_run_in_graph=False),
    "resize_": Reason("moves_storage", may_run_in_graph=False),
    "sparse": Reason("sparse_tensor", may_run_in_graph=False),
    "quantized": Reason("quantized_tensor", may_run_in_graph=False),
    "tensor subclass": Reason("tensor_subclass"),
    "meta device": Reason("meta_tensor", may_run_in_graph=False),
    "python custom op": Reason("python_kernel", may_run_in_graph=False),
    "other namespace": Reason("custom_op", may_run_in_graph=False),
}
