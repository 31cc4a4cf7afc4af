"""`planner report` writes a page of a plan file or a study; `planner serve` serves a live page."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import click

from planner.cli.output import compile_if_first_run
from planner.job.errors import UsageError, demand_installed
from planner.job.written import refuse_to_overwrite, write_text
from planner.report.charts.drawing import demand_plot


def run_report(file: str, output: str, force: bool, quiet: bool) -> None:
    path = Path(output)
    refuse_to_overwrite(path, force)
    demand_plot()
    from planner.report.pages.files import page_of_file
    from planner.report.pages.page import render

    page = page_of_file(Path(file), lambda: compile_if_first_run(quiet))
    write_text(path, render(page), force=force)
    click.echo(f"Page written to {path}: open it in a browser.")


HOST = "127.0.0.1"
DEFAULT_TIME_LIMIT_S = 20.0


def run_serve(port: int, time_limit: float | None, quiet: bool) -> None:
    demand_plot()
    demand_installed("planner serve needs", "serve", "starlette", "uvicorn")
    listening = _listening(port)
    compile_if_first_run(quiet)
    _serve(listening, time_limit or DEFAULT_TIME_LIMIT_S)


def _listening(port: int) -> socket.socket:
    """A listening socket. Raises UsageError if another program has the port."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except OSError as error:
        listening.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise UsageError(
            f"--port {port} is not available ({error.strerror}); give another one, or 0 for any"
        ) from None
    return listening


def _serve(listening: socket.socket, time_limit_s: float) -> None:
    import uvicorn

    from planner.report.serve.app import HastyProtocol, make_app

    config = uvicorn.Config(
        make_app(time_limit_s), http=HastyProtocol, ws="none", log_level="warning",
        server_header=False, timeout_keep_alive=5, timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=16_384,
    )  # fmt: skip
    # From now on a browser that connects early waits instead of being refused.
    listening.listen()
    click.echo(f"Open http://{HOST}:{listening.getsockname()[1]}/ in a browser; Ctrl-C ends.")
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        click.echo("ended")
    finally:
        listening.close()
