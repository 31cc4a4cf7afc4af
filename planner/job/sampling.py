"""The samples of a request: their lengths, the limit, and how the framework makes rows of them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from planner.job.errors import UsageError
from planner.job.frameworks.profile import FrameworkProfile
from planner.job.length_text import read_lengths
from planner.job.objective import Objective
from planner.job.pictures import Pictured, has_pictures, pictured
from planner.job.quantities import share
from planner.job.samples import (
    BALANCED,
    BY_SAMPLE,
    PACKING_WORDS,
    Balance,
    Lengths,
    Offered,
    Packing,
    Samples,
    frameworks_that,
    offered_by,
)
from planner.job.specs import ModelSpec
from planner.job.vision import ImageLoad

if TYPE_CHECKING:
    from constraints.condition import UserCondition
    from planner.job.request_fields import RequestFields

# Fewest samples of mean length in a pack, unless the model's usual length is shorter.
SAMPLES_A_PACK = 8


def samples_of(
    request: RequestFields, profile: FrameworkProfile, model: ModelSpec
) -> tuple[Samples, int]:
    """How a request's samples become rows, and the most tokens of a row. Raises UsageError."""
    if request.lengths is None:
        _demand_positions(request, model)
        for option, value in (("packing", request.packing), ("balance", request.balance)):
            if value is not None:
                raise UsageError(
                    f"--{option} {value}: this option is about samples of different lengths; give "
                    "those too, for example --lengths mean=450"
                )
        return Samples(), request.seq or model.pretraining_seq
    lengths = _seen_lengths(request, model) or _lengths(request.lengths, _stamp(request.lengths))
    offered = offered_by(profile.name, profile.family)
    packing = _packing(request, offered, profile)
    balance = _balance(request, offered, profile, packing, model)
    packer = offered.packings.get(packing, "best-fit")
    limit = _limit(request, lengths, packing, model, offered)
    kept = lengths if packing == "pack" and packer == "cut" else lengths.cut(limit)
    samples = Samples(kept, packing, balance, packer, lengths.above(limit))
    rows = packing in ("longest", "padding-free")
    return samples, min(limit, kept.longest) if rows else limit


def demand_answers(
    request: RequestFields, profile: FrameworkProfile, samples: Samples, objective: Objective
) -> None:
    """Raise UsageError if an objective reads whole answers and the framework's trainers for it
    cannot make rows that way."""
    launched = request.overrides.launched is not None
    if samples.lengths is None or not objective.reads_answers or launched:
        return
    offered = offered_by(profile.name, profile.family)
    if samples.packing not in offered.answers:
        raise UsageError(
            f"--packing {samples.packing} with --objective {objective}: trainers for preferences "
            f"and rewards under {profile.name} pad answers instead of joining them; give "
            f"--packing {' or '.join(offered.answers)}"
        )


def sample_conditions(profile: FrameworkProfile, samples: Samples) -> tuple[UserCondition, ...]:
    """Conditions that rows of samples impose on the degrees. In some frameworks a micro-batch is
    one pack, whose length sets its size; some balance rules allow only few degrees."""
    from constraints.condition import user_condition

    offered = offered_by(profile.name, profile.family)
    packed = samples.lengths is not None and samples.packing == "pack-varlen"
    found = {f"--packing {samples.packing}": "mbs == 1"} if packed and offered.single_packs else {}
    if demand := offered.demands.get(samples.balance):
        found[f"--balance {samples.balance}"] = demand
    return tuple(replace(user_condition("require", text), of=of) for of, text in found.items())


def images_of_samples(
    request: RequestFields, model: ModelSpec, mean: float, limit: int
) -> ImageLoad | None:
    """The images of a batch that the lengths file states, per token of its samples. `mean`: mean
    tokens of a sample, cut at `limit`. None if the file states no images. Raises UsageError."""
    found = _pictured(request, model)
    if found is None:
        return None
    if found.most_tokens > limit:
        raise UsageError(
            f"--lengths {request.lengths}: the images of a sample are {found.most_tokens:,} "
            f"tokens, but --seq is {limit:,}; give --seq {found.most_tokens} or more"
        )
    load, longer = found.load, found.lengths.mean / mean
    changed = {"patches": load.patches * longer, "seen": load.seen * longer}
    return load.model_copy(update=changed | {"tokens": min(1.0, load.tokens * longer)})


def states_images(text: str | None) -> bool:
    """Whether `--lengths` names a file with image columns. Raises UsageError or OSError."""
    return text is not None and has_pictures(text, _stamp(text))


def _seen_lengths(request: RequestFields, model: ModelSpec) -> Lengths | None:
    found = _pictured(request, model)
    return None if found is None else found.lengths


def _pictured(request: RequestFields, model: ModelSpec) -> Pictured | None:
    """Samples with their images, if the lengths file has image columns. UsageError if images are
    given twice."""
    text = request.lengths
    if text is None:
        return None
    found = pictured(text, _stamp(text), model.vision, model.name)
    given = {"images": request.images, "image-tokens": request.image_tokens}
    said = [f"--{option} {value}" for option, value in given.items() if value is not None]
    if found is not None and said:
        raise UsageError(f"--lengths {text} has columns with images; leave {' '.join(said)} out")
    return found


@lru_cache(maxsize=16)
def _lengths(text: str, _: tuple[int, int]) -> Lengths:
    """`read_lengths`, cached while the file is unchanged, because a request is resolved often."""
    return read_lengths(text)


def _stamp(text: str) -> tuple[int, int]:
    """(time, size) of the file that a text names; zeros if it names none."""
    for name in (text.strip(), text.strip().rpartition(":")[0]):
        try:
            found = Path(name).stat()
        except (OSError, ValueError):
            continue
        return found.st_mtime_ns, found.st_size
    return 0, 0


def _packing(request: RequestFields, offered: Offered, profile: FrameworkProfile) -> Packing:
    """The given packing rule, else the framework's default. UsageError if the framework lacks
    it."""
    packing = request.packing or offered.usual
    if request.overrides.launched is not None:
        return packing
    if packing not in offered.packings:
        raise UsageError(
            f"--packing {packing}: {profile.name} has {', '.join(offered.packings)}; frameworks "
            f"that have it: {', '.join(frameworks_that(packing=packing))}"
        )
    within = packing in ("pack-varlen", "padding-free")
    if within and (request.attention or profile.attention) == "eager":
        raise UsageError(
            f"--packing {packing}: attention limited to each sample needs fused attention "
            "kernels; leave --attention eager out, or give --packing pack"
        )
    return packing


def _balance(
    request: RequestFields,
    offered: Offered,
    profile: FrameworkProfile,
    packing: Packing,
    model: ModelSpec,
) -> Balance:
    """The balance rule. UsageError if the framework or the packing rule does not allow it."""
    balance = request.balance or "none"
    if balance == "none" or request.overrides.launched is not None:
        return balance
    if balance not in offered.balances:
        having = frameworks_that(balance=balance)
        raise UsageError(
            f"--balance {balance}: {profile.name} has {', '.join(offered.balances)}; frameworks "
            f"that have it: {', '.join(having)}"
        )
    if balance in BY_SAMPLE and model.mla is not None:
        raise UsageError(
            f"--balance {balance}: Megatron splits latent attention over the same ranks for every "
            f"sample (multi_latent_attention.py), and {model.name} uses it; leave --balance out"
        )
    suits = BALANCED[balance]
    if packing not in suits:
        raise UsageError(
            f"--balance {balance} with --packing {packing} ({PACKING_WORDS[packing]}): this "
            f"balance rule needs --packing {' or '.join(suits)}; give that, or leave --balance out"
        )
    return balance


def _demand_positions(request: RequestFields, model: ModelSpec) -> None:
    """Raise UsageError for a sequence beyond a table of learned positions. For a launch file its
    check reports this along with everything else that is wrong."""
    seq, most = request.seq, model.longest_seq
    if seq is not None and seq > most and request.overrides.launched is None:
        raise UsageError(
            f"--seq {seq}: {model.name} has {most:,} learned positions, and a sequence of {seq:,} "
            f"tokens would need more; give --seq {most}"
        )


def _limit(
    request: RequestFields, lengths: Lengths, packing: Packing, model: ModelSpec, offered: Offered
) -> int:
    """The most tokens of a row: `--seq`, else what samples and model suggest. For forms without a
    longest sample, the length at which the framework's tools cut. UsageError if the longest sample
    exceeds the model's positions."""
    given, most = request.seq, model.max_positions
    reach = min(given or lengths.longest, lengths.longest)
    if reach > most and (model.longest_seq == most or (given is None and not lengths.open_ended)):
        raise UsageError(
            f"--lengths {request.lengths}: the longest sample has {lengths.longest:,} tokens, but "
            f"{model.name} has only {most:,} positions; give --seq {most}, which cuts "
            f"{share(lengths.above(most))} of the samples"
        )
    if given is not None:
        return given
    usual = min(model.pretraining_seq, offered.limit or model.pretraining_seq)
    longest = min(lengths.longest, usual if lengths.open_ended else most)
    if packing in ("limit", "longest", "padding-free"):
        return longest
    return pack_length(lengths, longest, model)


def pack_length(lengths: Lengths, longest: int, model: ModelSpec) -> int:
    """Default tokens of a pack: a power of two that holds the longest sample, and several mean ones
    if the model's usual length allows."""
    several = min(SAMPLES_A_PACK * lengths.mean, float(model.pretraining_seq))
    wanted = max(longest, int(several))
    return max(longest, min(1 << (wanted - 1).bit_length(), model.max_positions))
