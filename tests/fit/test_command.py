"""Fitting commands on wrong input."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fit import accuracy, held_out, residual_fit
from tests.fit.command import run


@pytest.mark.parametrize("module", [accuracy, held_out, residual_fit])
def test_a_path_that_is_not_there_is_said_in_a_sentence(
    module: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(getattr(module, "main"), [str(tmp_path / "none.csv")])  # noqa: B009
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert "none.csv does not exist" in shown
    assert "Traceback" not in shown
