"""The reader of files that are completed by the arguments of a Trainer script."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from planner.launch.dialects.hf.arguments import HfArguments
from planner.launch.read.document import NO_LENGTH, NO_RECOMPUTE, Document, DocumentReader, Source
from planner.launch.read.found import Found, Problem, Setting
from planner.launch.sentences import said_problems

# Options that may be the micro-batch of an unknown program.
_BATCH = re.compile(r"--(?!\w*(eval|val|test|infer|global|total))\w*(batch|bsz)\w*")


# Facts that the program decides, by columns of measured runs.
_OF_THE_PROGRAM = ("recompute", "flash", "compile", "loss")


class ScriptedReader(DocumentReader):
    """A file that is completed by the arguments of a Trainer script."""

    def __init__(self, document: Document, source: Source, script: HfArguments) -> None:
        super().__init__(document, replace(source, hints=script.hints))
        self.script, self.assumed = script, list(script.assumed)
        self.problems += script.unresolved
        if script.hints.seq is None:
            self.assumed.append("sequences as long as the model was pretrained with (give --seq)")
            why = "shorter sequences than the model was pretrained with: less memory than predicted"
            self.unmodelled += ((Setting(NO_LENGTH, None, document.path), why),)
        if script.hints.recompute is None and not script.given:
            why = "the program that is started may recompute: less memory than predicted"
            self.unmodelled += ((Setting(NO_RECOMPUTE, None, document.path), why),)
        # What the program decides if its settings were not read.
        stated = ("recompute",) if script.hints.recompute is not None else ()
        decides = () if script.given else _OF_THE_PROGRAM
        self.left_open = tuple(fact for fact in decides if fact not in stated)

    def said(self, table: str, **facts: Any) -> None:
        """Note the problems of a table of `rules.toml`."""
        self.problems += said_problems("hf", table, facts, self.document)

    def scripted(
        self,
        known: Callable[[str], bool],
        keys: Mapping[str, str],
        framework: str,
        further: tuple[str, ...] = (),
        **fields: Any,
    ) -> Found:
        """The result, with what the script and the caller say. `further`: variations that the file
        itself states."""
        return self.gathered(
            known,
            keys,
            self.script.where,
            framework=framework,
            variations=(*self.script.variations(framework), *further),
            model=self.hints.model,
            seq=self.hints.seq,
            attention=self.script.attention,
            left_open=self.left_open,
            **fields,
        )

    def demand_model(self) -> None:
        """Note it if nothing names the model."""
        if not self.hints.model:
            self.problems.append(self.script.model_unknown("the file does not name the model"))

    def no_accumulation(self) -> None:
        """Note that 1 is assumed."""
        self.assumed.append("no gradient accumulation (give --grad-acc or --gbs)")

    def no_micro_batch(self) -> None:
        """Note that the micro-batch is not stated; the program, which is not read, decides it."""
        words = self.launch.arguments if self.launch is not None else ()
        named = (_BATCH.match(word.text.value) for word in words)
        option = next((match[0] for match in named if match is not None), None)
        text = "the micro-batch is not stated: the program that is started says it"
        if option is not None:
            text = f"whether {option} is the micro-batch of a GPU is not known"
        self.problems.append(Problem("micro-batch", text, "missing", fix="--mbs N"))
