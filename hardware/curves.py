"""Fitted curves of compute kernels, and which of them apply to a GPU; coefficients of curves, and
tables that take theirs from another (`like = "..."`).

`efficiency/compute.toml` holds one table per architecture, one of what is taken alike on every GPU,
and one of hosts. This module gives it a type and picks
the table of a GPU; it computes no time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import or_
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict

from hardware.errors import HardwareError, did_you_mean
from hardware.files import shipped_toml
from hardware.frozen import Frozen
from hardware.schema import Gpu
from hardware.settings import Coefficient, declared

AttentionKernel = Literal["flash1", "flash2", "flash3_or_cudnn", "aiter", "aotriton"]
# Types whose products draw the power of wide operands.
_WIDE = ("bf16", "fp16", "tf32", "fp32")
# Where an architecture without a table of its own looks: the vendor's best documented one.
VENDOR_FALLBACK = {"nvidia": "hopper", "amd": "cdna3"}


FIGURES = "hardware", "efficiency/curves.toml"


class Curve(Frozen):
    """A table of coefficients."""

    model_config = ConfigDict(defer_build=True)

    if TYPE_CHECKING:

        def __getattr__(self, figure: str) -> Coefficient: ...

    def values(self) -> dict[str, float]:
        """Its figures by name."""
        return {name: item.value for name, item in self if isinstance(item, Coefficient)}


@declared(*FIGURES, "attention")
class AttentionCurve(Curve):
    """One fused attention kernel."""


@declared(*FIGURES, "architecture")
class ArchitectureCurves(Curve):
    """Curves of one architecture.

    `gpus`: the table is for GPUs whose names begin with these words, not for all of its
    architecture.
    """

    name: str
    gpus: tuple[str, ...] = ()
    default_attention: AttentionKernel
    attention: dict[str, AttentionCurve]


@declared(*FIGURES, "hosts")
class HostCurves(Curve):
    """The CPUs of a node."""


class ComputeCurves(Frozen):
    """The curves that apply to one GPU. `provenance` says which table, and how sure it is."""

    gpu: Gpu
    curves: ArchitectureCurves
    provenance: str

    @property
    def guessed(self) -> bool:
        """Whether the GPU has a table of its own, whose rates nobody has measured on it."""
        return bool(self.curves.gpus) and self.curves.sustained_share_16.provenance == "assumed"

    def sustained_share(self, dtype: str) -> float:
        """Share of the datasheet peak that a large GEMM sustains in `dtype`."""
        curves = self.curves
        kept = curves.sustained_share_16 if dtype in _WIDE else curves.sustained_share_8
        return kept.value * self.max_share(dtype)

    def max_share(self, dtype: str) -> float:
        """Share of the peak that a short benchmark reaches: of `dtype`, else of 16 bit, else
        what the architecture's other GPUs reach."""
        for name in (dtype, "bf16" if dtype in _WIDE else "fp8", "bf16", "fp16"):
            measured = self.gpu.measured_matmul_flop_per_s.get(name)
            if measured is not None and name in self.gpu.peak_flop_per_s:
                return min(1.0, measured / self.gpu.peak(name))
        return self.curves.max_share.value

    def attention(self, kernel: str) -> AttentionCurve:
        """Curve of a fused attention kernel; `auto`: the architecture's usual one."""
        wanted = self.curves.default_attention if kernel == "auto" else kernel
        known = self.curves.attention
        if wanted not in known:
            raise HardwareError(
                f"attention kernel {kernel!r} does not run on {self.gpu.name} "
                f"({self.gpu.architecture}); it has: {', '.join(known)}, eager."
                f"{did_you_mean(kernel, known)}"
            )
        return known[wanted]


def _over(base: Table, fields: Table) -> Table:
    """An architecture's fields over those of the one it is `like`, its kernels over the same
    kernel's; the GPUs that the other names are not its."""
    kernels = fields.get("attention", {})
    chosen = {
        kernel: base["attention"].get(fields.get("like", kernel), {}) | fields
        for kernel, fields in kernels.items()
    }
    for fields_of_kernel in chosen.values():
        fields_of_kernel.pop("like", None)
    return {**base, "gpus": (), **fields, "attention": chosen or base["attention"]}


@cache
def architecture_curves() -> dict[str, ArchitectureCurves]:
    """All tables of `efficiency/compute.toml`, by architecture, over the figures of every GPU."""
    file = _compute_toml()
    tables, every_gpu = file["architectures"], file["every_gpu"]
    return {
        name: ArchitectureCurves.model_validate(every_gpu | inherit(name, tables, _over))
        for name in tables
    }


@cache
def host_curves() -> HostCurves:
    """The hosts of `efficiency/compute.toml`."""
    return HostCurves.model_validate(_compute_toml()["hosts"])


def _compute_toml() -> dict[str, Any]:
    return shipped_toml("hardware", "efficiency/compute.toml")


def _table_of(gpu: Gpu) -> ArchitectureCurves:
    """Table that names the GPU, else its architecture's, else its vendor's fallback."""
    tables = architecture_curves()
    words = f"{gpu.name}-"
    for table in tables.values():
        if any(words.startswith(f"{name}-") for name in table.gpus):
            return table
    return tables.get(gpu.architecture) or tables[VENDOR_FALLBACK[gpu.vendor]]


def _describe(gpu: Gpu, curves: ArchitectureCurves) -> str:
    """`blackwell: GEMM rate measured (B200-SXM, 514 matmul rows), scaled to ...`."""
    share = curves.sustained_share_16
    fitted = f" ({share.fitted_on})" if share.fitted_on else ""
    scale = "its own" if gpu.measured_matmul_flop_per_s else "the architecture's"
    return f"{curves.name}: GEMM rate {share.provenance}{fitted}, scaled to {scale} maximum"


@cache
def load_compute_curves(gpu: Gpu) -> ComputeCurves:
    """The curves of a GPU, and in `provenance` which table they come from and how sure it is."""
    curves = _table_of(gpu)
    return ComputeCurves(gpu=gpu, curves=curves, provenance=_describe(gpu, curves))


Table = dict[str, Any]


def inherit(
    name: str, tables: dict[str, Table], over: Callable[[Table, Table], Table] = or_
) -> Table:
    """Table `name` completed from the table it is `like`, if any; `over`: lays its fields over the
    copied ones."""
    fields = dict(tables[name])
    origin = fields.pop("like", None)
    if origin is None:
        return {"name": name, **fields}
    base = inherit(origin, tables, over)
    copied = {key: as_extrapolated(value, origin) for key, value in base.items()}
    return over(copied, fields) | {"name": name}


def as_extrapolated(entry: Any, origin: str) -> Any:
    """A copied figure, labelled as taken from another table (`like`); an assumption stays one."""
    if not isinstance(entry, dict):
        return entry
    if "value" not in entry:
        return {key: as_extrapolated(value, origin) for key, value in entry.items()}
    provenance = "assumed" if entry["provenance"] == "assumed" else "extrapolated"
    return {**entry, "provenance": provenance, "fitted_on": f"as {origin}"}
