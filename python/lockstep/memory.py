"""`lockstep.memory`: what the memory of a step is for, and when."""

import bisect
import gc
import threading
from typing import NamedTuple

import torch

from lockstep._check import load_library
from lockstep.errors import Error
from lockstep.explain import count_eager_calls
from lockstep.measured_block import MeasuredBlock
from lockstep.places import describe_line, split_place

_C = load_library()

ROLES = ("weights", "gradients", "optimizer state", "activations", "workspace", "other")
_OPTIMIZER_CALLS = (
    "Optimizer.",
    "patch_track_step_called.",
)  # what `optimizer.step` is called inside
_SHOWN_ROWS = 20


class Block(NamedTuple):
    """Memory that one storage asked for.

    Attributes:
        role: one of `ROLES`.
        bytes: as asked for.
        begin: microseconds since the `with` block began; 0 for what was there before.
        end: when it was given back; that of the `with` block where it was not.
        op: schema name of the op that asked; empty where none of the function's did.
        where: `file:line in function` of the line that asked; empty where no line did.
    """

    role: str
    bytes: int
    begin: float
    end: float
    op: str
    where: str


class memory(MeasuredBlock):
    """Records what the memory of a function's calls is for while the `with` block runs.

        with lockstep.memory(step) as m:
            step(batch)
        print(m)
        m.plot("step.png")

    Roles: `weights` are parameters and buffers of modules; `gradients` those of parameters, and all
    that backward passes make on their way; `optimizer state` what optimizers keep, and what their
    steps make on their way; `activations` what forward passes make; `workspace` what a kernel asks
    for and gives back before it returns; `other` tensors that were there before, and what nobody in
    the function asked for, such as inputs.

    Args:
        fn: a decorated function, a decorated module or a session.

    Attributes:
        blocks: list of Block.
        seconds: that the `with` block took.
        dropped: how many blocks found no room (about a million do).
        eager_calls: how many calls of the function ran eagerly as a whole; what these ask for is
            not seen.

    Raises:
        Error: where `fn` is none of these, or where another `lockstep.memory` is open.
    """

    _tool = "lockstep.memory"
    _kind = "memory_open"
    _is_open = "another lockstep.memory is open: close it first, since there is one log"
    _open = threading.Lock()

    def __init__(self, fn):
        super().__init__(fn)
        self.blocks: list[Block] = []
        self.seconds = self._last = 0.0
        self.dropped = self.eager_calls = 0

    def _begin(self):
        self._eager_before = count_eager_calls(_C.counters(self._core))
        self._before = _known_memory()
        _C.start_memory_log()

    def _end(self):
        return _C.stop_memory_log(self._core)

    def _keep(self, records, end, dropped):
        self.dropped = dropped
        self.eager_calls = count_eager_calls(_C.counters(self._core)) - self._eager_before
        self._last = end
        self.seconds = end / 1e6
        self.blocks = _blocks(records, end, self._before, _known_memory())
        del self._before

    @property
    def peak_bytes(self) -> int:
        """The most that lived at once."""
        return max(self.curve()[1], default=0)

    def curve(self, role: str | None = None) -> tuple[list[float], list[int]]:
        """Times in microseconds, and the bytes that live from each on; of one role or of all.

        Raises:
            Error: for a role that there is not.
        """
        if role is not None and role not in ROLES:
            message = f"no role {role!r}: use one of {', '.join(ROLES)}"
            raise Error("bad_value", "lockstep.memory", message)
        steps: dict[float, int] = {}
        for block in self.blocks:
            if role in (None, block.role):
                steps[block.begin] = steps.get(block.begin, 0) + block.bytes
                if block.end < self._last:
                    steps[block.end] = steps.get(block.end, 0) - block.bytes
        times, live, now = sorted(steps), [], 0
        for time in times:
            now += steps[time]
            live.append(now)
        return times, live

    def peak_time(self) -> float:
        """When the peak was reached first, in microseconds."""
        times, live = self.curve()
        return times[live.index(max(live))] if live else 0.0

    def at_peak(self) -> list[Block]:
        """What lived then, the largest first."""
        peak = self.peak_time()
        living = (block for block in self.blocks if block.begin <= peak < block.end)
        return sorted(living, key=lambda block: -block.bytes)

    def by_role(self) -> dict[str, int]:
        """Bytes at the peak by role; their sum is `peak_bytes`."""
        roles = dict.fromkeys(ROLES, 0)
        for block in self.at_peak():
            roles[block.role] += block.bytes
        return roles

    def by_line(self) -> list[dict]:
        """A row for each source line that asked for what lived at the peak, the largest first.

        Returns:
            dicts of `where`, `file`, `line`, `function`, `source`, `bytes`, and `roles`, a dict
            from role to bytes.
        """
        rows: dict[str, dict] = {}
        for block in self.at_peak():
            if block.where:
                head = {**split_place(block.where), "bytes": 0, "roles": {}}
                row = rows.setdefault(block.where, head)
                row["bytes"] += block.bytes
                row["roles"][block.role] = row["roles"].get(block.role, 0) + block.bytes
        return sorted(rows.values(), key=lambda row: -row["bytes"])

    def plot(self, path) -> None:
        """Draws the bytes by role over time, with the peak marked.

        Args:
            path: of the picture; matplotlib goes by its suffix (.png, .svg, .pdf).

        Raises:
            Error: where matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            message = "matplotlib is not installed: pip install matplotlib"
            raise Error("missing_package", "lockstep.memory", message) from error
        times = [*self.curve()[0], self._last]
        shown = [role for role in ROLES if any(block.role == role for block in self.blocks)]
        figure = Figure(figsize=(10, 5), layout="constrained")
        axes = figure.subplots()
        heights = [[live / 2**20 for live in self._sampled(role, times)] for role in shown]
        milliseconds = [time / 1e3 for time in times]
        axes.stackplot(milliseconds, heights, labels=shown, step="post")
        axes.axvline(self.peak_time() / 1e3, color="black", linestyle=":", linewidth=1)
        axes.set(
            title=f"{self.name}: peak {self.peak_bytes / 2**20:.1f} MiB",
            xlabel="time (ms)",
            ylabel="live memory (MiB)",
        )
        axes.margins(x=0)
        if shown:
            axes.legend(loc="upper left", reverse=True)
        figure.savefig(path)

    def _sampled(self, role: str, times: list[float]) -> list[int]:
        own, live = self.curve(role)
        found = (bisect.bisect_right(own, time) - 1 for time in times)
        return [live[i] if i >= 0 else 0 for i in found]

    def __str__(self) -> str:
        peak = self.peak_bytes
        text = [
            f"{self.name}: peak {peak / 2**20:.2f} MiB, {self.peak_time() / 1e3:.2f} ms after begin"
        ]
        if self.dropped:
            text.append(f"  {self.dropped} blocks found no room: record fewer calls")
        if self.eager_calls:
            calls = "1 call" if self.eager_calls == 1 else f"{self.eager_calls} calls"
            text.append(
                f"  {calls} ran eagerly, which hides what was asked for: decorate with "
                'when="always" to see all'
            )
        for role, at_peak in self.by_role().items():
            most = max(self.curve(role)[1], default=0)
            share = 100 * at_peak / peak if peak else 0.0
            text.append(
                f"  {role:<16} {at_peak / 2**20:>10.2f} MiB {share:>5.1f} %"
                f"   (at most {most / 2**20:.2f} MiB)"
            )
        rows = self.by_line()
        if rows:
            text += ["", "  what lives at the peak, by the line that asked for it:"]
        for row in rows[:_SHOWN_ROWS]:
            place = describe_line(row)
            roles = ", ".join(row["roles"])
            text.append(f"  {row['bytes'] / 2**20:>10.2f} MiB  {place}  [{roles}]")
        if len(rows) > _SHOWN_ROWS:
            text.append(f"  and {len(rows) - _SHOWN_ROWS} more lines")
        return "\n".join(text)


def _known_memory() -> dict[int, tuple[str, int]]:
    """Address -> (role, bytes) of the memory of all tensors that Python holds."""
    found: dict[int, tuple[str, int]] = {}

    def note(role: str, tensor) -> None:
        where = _C.memory_of(tensor)
        if where is not None and where[1] > 0:
            found.setdefault(where[0], (role, where[1]))

    # What classes of the program say of their tensors is not asked.
    with torch._C.DisableTorchFunctionSubclass():
        _note_all([o for o in gc.get_objects() if issubclass(type(o), _LOOKED_AT)], note)
    return found


def _note_all(objects: list, note) -> None:
    tensors = [o for o in objects if issubclass(type(o), torch.Tensor)]
    for module in objects:
        if issubclass(type(module), torch.nn.Module):
            for kind in ("_parameters", "_buffers"):
                for tensor in list(module.__dict__.get(kind, {}).values()):
                    note("weights", tensor)
    for tensor in tensors:
        if issubclass(type(tensor), torch.nn.Parameter):
            note("weights", tensor)
    for tensor in tensors:
        if tensor.is_leaf and tensor.requires_grad:
            note("gradients", tensor.grad)
    for optimizer in objects:
        if issubclass(type(optimizer), torch.optim.Optimizer):
            for tensor in _tensors_in(vars(optimizer).get("state", {})):
                note("optimizer state", tensor)
    for tensor in tensors:
        note("other", tensor)


_LOOKED_AT = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)


def _tensors_in(value) -> list:
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, list, tuple)):
        return []
    return [tensor for item in inner for tensor in _tensors_in(item)]


def _blocks(records: list, end: float, before: dict, after: dict) -> list[Block]:
    """What was logged, and what was there before with the time at which it was given back."""
    ends = {address: gone for address, size, _, gone, *_ in reversed(records) if not size}
    blocks = [
        Block(role, size, 0.0, ends.get(address, end), "", "")
        for address, (role, size) in before.items()
    ]
    for address, size, begin, gone, op, where, api_call, is_backward, is_workspace in records:
        if not size:
            continue
        lives_on = gone is None and address in after
        if is_workspace:
            role = "workspace"
        elif lives_on and after[address][0] != "other":
            role = after[address][0]
        elif api_call.startswith(_OPTIMIZER_CALLS):
            role = "optimizer state"
        elif is_backward:
            role = "gradients"
        else:
            role = "activations" if op else "other"
        blocks.append(Block(role, size, begin, end if gone is None else gone, op, where))
    return blocks
