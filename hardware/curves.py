"""Fitted efficiency curves of compute kernels, and the choice of curves for a GPU.

`efficiency/compute.toml` holds one table for each architecture, one that applies to every GPU, and
one for hosts. A table may complete itself from another one (`like = "..."`). This module reads the
tables and picks one for a GPU; it computes no times.
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
# Types whose products draw as much power as wide operands.
_WIDE = ("bf16", "fp16", "tf32", "fp32")
# Default table of each vendor: its best documented architecture.
VENDOR_FALLBACK = {"nvidia": "hopper", "amd": "cdna3"}


FIGURES = "hardware", "efficiency/curves.toml"


class Curve(Frozen):
    """A table of coefficients."""

    model_config = ConfigDict(defer_build=True)

    if TYPE_CHECKING:

        def __getattr__(self, figure: str) -> Coefficient: ...

    def values(self) -> dict[str, float]:
        """The coefficients by name."""
        return {name: item.value for name, item in self if isinstance(item, Coefficient)}


@declared(*FIGURES, "attention")
class AttentionCurve(Curve):
    """One fused attention kernel."""


@declared(*FIGURES, "architecture")
class ArchitectureCurves(Curve):
    """Curves of one architecture. A table with `gpus` applies only to GPUs whose names start with
    one of those words."""

    name: str
    gpus: tuple[str, ...] = ()
    default_attention: AttentionKernel
    attention: dict[str, AttentionCurve]


@declared(*FIGURES, "hosts")
class HostCurves(Curve):
    """The CPUs of a node."""


class ComputeCurves(Frozen):
    """The curves that apply to one GPU. `provenance` names their table and how reliable it is."""

    gpu: Gpu
    curves: ArchitectureCurves
    provenance: str

    @property
    def guessed(self) -> bool:
        """Whether the GPU has its own table but nobody has measured its rates."""
        return bool(self.curves.gpus) and self.curves.sustained_share_16.provenance == "assumed"

    def sustained_share(self, dtype: str) -> float:
        """Share of the datasheet peak that a large GEMM sustains in `dtype`."""
        curves = self.curves
        kept = curves.sustained_share_16 if dtype in _WIDE else curves.sustained_share_8
        return kept.value * self.max_share(dtype)

    def max_share(self, dtype: str) -> float:
        """Share of the datasheet peak that a short benchmark reaches: in `dtype` if known, else in
        bf16 or fp8 (whichever is closer to it), else in 16 bits, else the share reached by other
        GPUs of the architecture."""
        for name in (dtype, "bf16" if dtype in _WIDE else "fp8", "bf16", "fp16"):
            measured = self.gpu.measured_matmul_flop_per_s.get(name)
            if measured is not None and name in self.gpu.peak_flop_per_s:
                return min(1.0, measured / self.gpu.peak(name))
        return self.curves.max_share.value

    def attention(self, kernel: str) -> AttentionCurve:
        """Curve of a fused attention kernel; `auto` picks the usual one of the architecture."""
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
    """Complete `fields` from the architecture it is `like`; kernels of the same name are merged
    field by field. The list of GPUs is not copied."""
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
    """All tables of `efficiency/compute.toml` by architecture, completed from the table for every
    GPU."""
    file = _compute_toml()
    tables, every_gpu = file["architectures"], file["every_gpu"]
    return {
        name: ArchitectureCurves.model_validate(every_gpu | inherit(name, tables, _over))
        for name in tables
    }


@cache
def host_curves() -> HostCurves:
    """The host table of `efficiency/compute.toml`."""
    return HostCurves.model_validate(_compute_toml()["hosts"])


def _compute_toml() -> dict[str, Any]:
    return shipped_toml("hardware", "efficiency/compute.toml")


def _table_of(gpu: Gpu) -> ArchitectureCurves:
    """The table that names the GPU, else its architecture's table, else its vendor's default."""
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
    """Table `name` completed from the table it is `like`, if any. `over` merges its fields into the
    copy."""
    fields = dict(tables[name])
    origin = fields.pop("like", None)
    if origin is None:
        return {"name": name, **fields}
    base = inherit(origin, tables, over)
    copied = {key: as_extrapolated(value, origin) for key, value in base.items()}
    return over(copied, fields) | {"name": name}


def as_extrapolated(entry: Any, origin: str) -> Any:
    """A figure copied from another table, relabelled as extrapolated; assumptions stay
    assumptions."""
    if not isinstance(entry, dict):
        return entry
    if "value" not in entry:
        return {key: as_extrapolated(value, origin) for key, value in entry.items()}
    provenance = "assumed" if entry["provenance"] == "assumed" else "extrapolated"
    return {**entry, "provenance": provenance, "fitted_on": f"as {origin}"}
