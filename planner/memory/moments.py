"""What a rank holds at each moment of a training step, by term.

Moments of one micro-batch: forward at the loss, backward at the loss, at the head's product, at
each layer, at the embedding's gradient; then the optimizer step. `planner.cost.stage` compiles
the same moments for stages of a pipeline; a test holds one against the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from planner.frameworks.tensors import TrainingState
from planner.memory.rank import PieceOnRank, RankShape, padded_vocabulary
from planner.memory.settings import StepSettings
from planner.ops.context import OpContext

Terms = dict[str, float]


@dataclass(frozen=True)
class Pass:
    """One micro-batch's forward and backward: `held` bytes of gradients exist before it (all of
    them when `accumulates`), `in_flight` micro-batches of activations at its start.

    `deferred`, `head_deferred`: micro-batches of which layers, the head, only wait for weight
    gradients; `head`: those whose loss is not yet differentiated; `ends` False: after the last
    forward, inside the layers.
    """

    held: float
    in_flight: float
    accumulates: bool
    deferred: float = 0.0
    head: float = 1.0
    head_deferred: float = 0.0
    ends: bool = True


@dataclass(frozen=True)
class Rank:
    """Pieces of a rank and the byte rules that apply to them.

    `layers` in forward order; embedding, multi-token-prediction modules and head where the rank
    holds them. A tied head away from the embedding owns a copy of the vocabulary table.
    """

    context: OpContext
    shape: RankShape
    settings: StepSettings
    layers: tuple[PieceOnRank, ...]
    embedding: PieceOnRank | None
    mtp: tuple[PieceOnRank, ...]
    head: PieceOnRank | None
    # Offloaded tensors of one layer, and what a layer that is back holds twice of them.
    offloaded: float = 0.0
    duplicated: float = 0.0

    # --- what it is made of ----------------------------------------------------------------------

    @cached_property
    def state(self) -> TrainingState:
        """Bytes per parameter in the dtype mode."""
        return self.context.profile.in_mode(self.context.mode).state

    @cached_property
    def order(self) -> tuple[PieceOnRank, ...]:
        """All pieces in forward order."""
        first = () if self.embedding is None else (self.embedding,)
        last = () if self.head is None else (self.head,)
        return (*first, *self.layers, *self.mtp, *last)

    @cached_property
    def parameters(self) -> tuple[float, float]:
        """(dense, expert) parameters before ZeRO."""
        return sum(p.dense for p in self.order), sum(p.experts for p in self.order)

    @property
    def sharded(self) -> bool:
        """Gradients (ZeRO-2) or weights too (ZeRO-3) are divided."""
        return self.shape.zero > 1 and self.shape.shards > 1

    @property
    def in_place(self) -> bool:
        """Backward finds buffers for all gradients."""
        return self.state.persistent_gradients or self.state.gradients_at_backward

    @property
    def keeps_weights(self) -> bool:
        """Low-precision weights stay between steps; FSDP makes them from fp32 shards."""
        return not self.sharded or self.state.zero3_keeps_weight_shard

    @cached_property
    def largest_layer(self) -> float:
        """Parameters of the largest layer."""
        return max((piece.parameters for piece in self.layers), default=0.0)

    @cached_property
    def root(self) -> float:
        """Parameters of embedding and head."""
        return sum(p.parameters for p in (self.embedding, self.head) if p is not None)

    @property
    def tied_here(self) -> bool:
        """Embedding and head share one table on this rank."""
        both = self.embedding is not None and self.head is not None
        return both and self.context.model.tied_embeddings

    def total(self, per_parameter: float, stage: int) -> float:
        """Bytes at `per_parameter`, divided by the ZeRO group from `stage` on."""
        return self.share(self.parameters, per_parameter, stage)

    def share(self, parameters: tuple[float, float], per_parameter: float, stage: int) -> float:
        """`total` of some (dense, expert) parameters."""
        dense, experts = parameters
        if self.shape.zero < stage:
            return per_parameter * (dense + experts)
        shards, expert_shards = self.shape.shards, self.shape.expert_shards
        return per_parameter * (dense / shards + experts / expert_shards)

    # --- gradients -------------------------------------------------------------------------------

    @property
    def gradient_bytes(self) -> float:
        """Bytes per parameter of a gradient, 0 if it lies in DDP's buckets."""
        if self.settings.ddp is not None and self.settings.ddp.view:
            return 0.0
        return self.state.gradient_bytes + self.state.extra_gradient_bytes

    def settled_gradients(self) -> float:
        """Gradients that the optimizer reads."""
        if self.sharded:
            resident = self.settings.gradients_on_gpu * self.state.gradient_bytes
            return self.total(resident, 2)
        return self.total(self.gradient_bytes, 9)

    def passes(self) -> Iterator[tuple[str, Pass]]:
        """The first micro-batch's pass, that of later ones, which find gradients, and the one
        with most weight gradients deferred.

        As many micro-batches as there are are in flight at the first backward, one less at the
        second (Narayanan et al. 2021, arXiv 2104.04473, section 2.2).
        """
        own = self.settings
        buffers = self.state.persistent_gradients
        local = self.sharded and not own.reduce_every_microbatch and not buffers
        held = self.total(self.gradient_bytes, 9) if local else self.settled_gradients()
        first = Pass(
            held if buffers else 0.0,
            own.in_flight,
            accumulates=buffers,
            deferred=own.deferred,
            head=own.head_in_flight,
            head_deferred=own.head_deferred,
        )
        yield "", first
        after = own.grad_acc - 1.0
        if after > 0.0 and not buffers:
            flight, head = min(own.in_flight, after), max(1.0, min(first.head, after))
            later = replace(first, held=held, in_flight=flight, accumulates=True, head=head)
            yield " (accumulating)", later
        if own.late is not None:
            flight, deferred = own.late
            yield (
                " (weight gradients deferred)",
                Pass(held, flight, True, deferred, 1.0, own.head_deferred, ends=False),
            )

    def _new_gradients(self, pieces: Sequence[PieceOnRank]) -> float:
        """Gradients that pieces leave behind once their backward is done."""
        dense, experts = sum(p.dense for p in pieces), sum(p.experts for p in pieces)
        if self.sharded and self.settings.reduce_every_microbatch:
            return self.share((dense, experts), self.state.gradient_bytes, 2)
        tied = self.tied_here and any(p is self.head for p in pieces)
        shared = pieces[-1].table if tied and all(p is not self.embedding for p in pieces) else 0.0
        return self.gradient_bytes * (dense + experts + shared)

    # --- moments ---------------------------------------------------------------------------------

    def base(self, gradients: float, *, first: bool) -> Terms:
        """Weights, optimizer state and the gradients that exist already."""
        moments = self.settings.moment_bytes
        if moments is None:
            moments = 2.0 * self.state.optimizer_state_element_bytes
        weights = self.total(self.state.weight_bytes, 3) if self.keeps_weights else 0.0
        return {
            "weights": weights,
            "master weights": self.total(self.state.master_bytes, 1),
            "buffers": self._mask_buffers(),
            "optimizer state": 0.0
            if first
            else self.total(moments, 1) + self.settings.extra_state_bytes,
            "gradients": gradients,
            "inputs": 8.0 * self.shape.tokens(self.context.seq),
            "gradient buckets": self._buckets(),
            "workspaces": self.settings.workspace_bytes,
        }

    def _mask_buffers(self) -> float:
        """Causal masks of unfused attention, one a layer."""
        if self.context.attention != "eager":
            return 0.0
        per_layer = self.context.saved.mask_buffer_bytes * self.context.model.max_positions**2
        return per_layer * len(self.layers)

    def _buckets(self) -> float:
        """DDP's flat copy of the gradients, or the bucket of ZeRO-2."""
        if self.settings.ddp is not None:
            return self.total(self.state.gradient_bytes, 9)
        return self.state.bucket_bytes if self.sharded and self.shape.zero == 2 else 0.0

    def activations(self, remaining: Sequence[PieceOnRank], flight: Pass) -> float:
        """Bytes kept: by what of this micro-batch is left, and by the others in flight.

        But for GPipe the head's backward follows its forward at once, so others keep nothing
        there. With several chunks a stage, this backward gives back one chunk in the end; where
        weight gradients are made apart, all but what those read.
        """
        split = self.settings.split_backward
        layers = sum(piece.kept for piece in self.layers)
        weights = sum(piece.weight_kept for piece in self.layers)
        left = sum(piece.kept for piece in remaining)
        if self.settings.chunks > 1 or split:
            own = [piece for piece in remaining if not any(piece is each for each in self.layers)]
            given_back = 0.0
            if len(remaining) == len(own):
                given_back = (layers - split * weights) / self.settings.chunks
            left = sum(piece.kept for piece in own) + layers - given_back
        first = 0.0 if self.embedding is None else self.embedding.kept
        ends = [*self.mtp] if self.head is None else [*self.mtp, self.head]
        others = (flight.head - 1.0) * sum(piece.kept for piece in ends)
        others += flight.deferred * weights
        others += flight.head_deferred * sum(piece.weight_kept for piece in ends)
        others += self.resident(len(remaining) - (self.embedding is not None), flight)
        return left + others + (flight.in_flight - 1.0) * (layers + first)

    def resident(self, layers: int, flight: Pass) -> float:
        """Offloaded tensors that are on the GPU all the same, with so many pieces of the
        micro-batch at work left: those on their way to the host or back."""
        alive = layers + (flight.in_flight - 1.0) * len(self.layers)
        if alive <= 0.0:
            return 0.0
        most = self.context.profile.activation_offload.resident_layers
        if self.settings.staying is not None and min(flight.in_flight, self.settings.in_flight) > 1:
            # Copies back run ahead: `planner.cost.stage.returned_bytes`.
            chunks = self.settings.chunks
            whole = sum(piece.offloaded for piece in self.layers) + (chunks - 1) * self.offloaded
            return whole / chunks + max(0.0, most - 1.0) * self.offloaded + self.duplicated
        return min(most, alive) * self.offloaded + self.duplicated

    def forward(self, base: Terms, own: Pass) -> tuple[Terms, Terms]:
        """At the loss, and just after it: everything kept, in forward also the logits in flight."""
        casts = sum(piece.casts_kept for piece in self.order)
        resting = self._root_gathered() if self.shape.zero < 3 else 0.0
        kept = self.activations(self.order, own)
        end = base | {"activations": kept, "weight casts": casts, "gathered weights": resting}
        peak = end | {
            # Autocast keeps its casts until it exits, also those that no graph holds.
            "weight casts": sum(piece.casts for piece in self.order),
            "logits": self.context.saved.logits_forward_bytes * self.logits(),
            "gathered weights": self._root_gathered() + self._layer_gather(1.0),
        }
        return peak, end

    def logits(self) -> float:
        """Tokens times the vocabulary that the loss sees, 0 away from the head."""
        if self.head is None:
            return 0.0
        split = self.shape.tp if self.context.saved.logits_sharded else 1
        vocab = padded_vocabulary(self.context, self.shape.tp) / split
        return self.shape.tokens(self.context.seq) * vocab

    def _layer_gather(self, layers: float) -> float:
        """Gathered weights of so many of the largest layers."""
        return layers * self.state.weight_bytes * self.largest_layer if self.sharded else 0.0

    def _root_gathered(self) -> float:
        """Weights gathered for all of forward and backward: ends under ZeRO-3, all under 2."""
        if not self.sharded:
            return 0.0
        if self.shape.zero < 3:
            return 0.0 if self.keeps_weights else self.total(self.state.weight_bytes, 9)
        return float(self.state.root_stays_gathered) * self.state.weight_bytes * self.root

    def backward(self, base: Terms, own: Pass) -> Iterator[tuple[str, Terms]]:
        """Moments between the loss and the embedding's gradient, in order; none without pieces."""
        if self.head is not None and own.ends:
            yield "loss", self._at_loss(base, own)
        for left in range(len(self.order), 0, -1):
            remaining, done = self.order[:left], self.order[left:]
            piece = remaining[-1]
            if not own.ends and not any(piece is each for each in self.layers):
                continue
            terms = base | {
                "gradients": base["gradients"] + self._made(done, own),
                "activations": self.activations(remaining, own) - piece.logits,
                "weight casts": sum(each.casts_kept for each in remaining),
            }
            if piece is self.head:
                terms |= self._head_terms()
            elif piece is self.embedding:
                terms |= self._embedding_terms(piece)
            else:
                terms |= self._layer_terms(piece, remaining, done)
            yield piece.name, terms

    def _made(self, done: Sequence[PieceOnRank], own: Pass) -> float:
        return 0.0 if own.accumulates or not done else self._new_gradients(done)

    def _at_loss(self, base: Terms, own: Pass) -> Terms:
        """Gradient of the loss: fp32 logits, their softmax and its gradient side by side."""
        saved = self.context.saved
        extra = max(0.0, saved.logits_peak_bytes - saved.logits_saved_bytes)
        return base | {
            "activations": self.activations(self.order, own),
            "weight casts": sum(piece.casts_kept for piece in self.order),
            "logits": extra * self.logits(),
            "gathered weights": self._root_gathered()
            + (self._layer_gather(1.0) if self.shape.zero > 2 else 0.0),
        }

    @property
    def _stream(self) -> float:
        """A gradient of the residual stream."""
        width = self.context.model.hidden
        return self.context.saved.residual_bytes * self.shape.tokens(self.context.seq) * width

    def _head_terms(self) -> Terms:
        """Gradients of logits, of the head's input and of its weights."""
        terms = {
            "working": self._stream,
            "logits": self.context.saved.activation_bytes * self.logits(),
        }
        if self.sharded:
            return terms | {
                "gathered weights": self._root_gathered(),
                "unsharded gradients": self.state.weight_bytes * self._head_made(),
            }
        per_parameter = self.gradient_bytes
        if self.in_place:
            per_parameter = self.state.weight_gradient_bytes
        return terms | {"working": self._stream + per_parameter * self._head_made()}

    def _head_gradient(self) -> float:
        return self.state.weight_gradient_bytes * self._head_made()

    def _head_made(self) -> float:
        """Parameters whose gradients the head makes: its own, or the embedding's table."""
        if self.head is None:
            return 0.0
        return self.head.parameters + (self.head.table if self.tied_here else 0.0)

    def _embedding_terms(self, piece: PieceOnRank) -> Terms:
        """The gradient of the vocabulary table, which no kernel adds to one that exists."""
        if self.sharded:
            # The root's weights are freed before its gradients are reduced, all at once.
            made = self.root
            return {
                "working": self._stream,
                "unsharded gradients": self.state.weight_bytes * made,
                "reduction": self.state.gradient_bytes * made,
            }
        per_parameter = self.gradient_bytes
        if self.in_place:
            per_parameter = 0.0 if self.state.extra_gradient_bytes else self.state.weight_bytes
        return {"working": self._stream + per_parameter * piece.dense}

    def _layer_terms(
        self, piece: PieceOnRank, remaining: Sequence[PieceOnRank], done: Sequence[PieceOnRank]
    ) -> Terms:
        """Gradients in flight inside a layer and, sharded, the buffers around it.

        FSDP2 holds the weights of this layer and of the next (of all that are left, if forward
        did not free them), the reduction of the previous one, and the head's gradient, which
        waits for the embedding's to be reduced with it.
        """
        working = {"recomputed": piece.again, "working": piece.working + piece.weight_gradient}
        if piece in self.mtp:
            loss = self.context.saved.logits_peak_bytes - self.context.saved.logits_saved_bytes
            working["logits"] = max(0.0, loss) * self.logits()
        if not self.sharded:
            # Where weight gradients are made beside the buffer, the head's is still there.
            own = self._with_lookups(piece, working["working"])
            return working | {"working": own + self._head_gradient()}
        if self.shape.zero > 2:
            gathered = self._root_gathered() + self._layer_gather(self.state.gathered_layers)
        elif self.keeps_weights:
            gathered = 0.0
        else:
            ends = [end for end in done if end is self.head]
            parameters = sum(each.parameters for each in (*remaining, *ends))
            gathered = self.state.weight_bytes * parameters
        waits = float(self.state.root_stays_gathered) * self.state.weight_bytes
        is_last = not self.layers or len(remaining) >= len(self.layers) + (
            self.embedding is not None
        )
        before = 0.0 if is_last else self.largest_layer
        return working | {
            "working": piece.working,
            "gathered weights": gathered,
            "unsharded gradients": waits * self._head_made(),
            "reduction": self.state.reduce_buffer_layers * self.state.gradient_bytes * before,
        }

    def _with_lookups(self, piece: PieceOnRank, working: float) -> float:
        """A working set with the gradients of multi-token prediction's lookups in the table.

        A module's backward ends with it (no more is kept then than counted here). Autograd adds
        those of all modules and of the embedding, where it is here, before they are accumulated.
        """
        buffers = self.state.persistent_gradients and not self.state.extra_gradient_bytes
        if not self.mtp or not buffers:
            return working
        gradient = self.state.weight_bytes * self.mtp[0].table
        if piece not in self.mtp:
            return working + (gradient if self.embedding is not None else 0.0)
        return working + gradient if len(self.mtp) > 1 else max(working, gradient)

    def optimizer_temporaries(self) -> float:
        """Temporaries of the update: a copy of what it updates (foreach), none, one tensor."""
        share = self.state.optimizer_temporary_bytes
        if self.settings.optimizer_kernel == "fused":
            return 0.0
        if self.settings.optimizer_kernel == "foreach":
            return self.total(share, 1) + self.settings.update_bytes
        # Square root and quotient of the second moment, of the largest tensor.
        ends = (self.embedding, self.head)
        return 2.0 * share * max((piece.parameters for piece in ends if piece), default=0.0)
