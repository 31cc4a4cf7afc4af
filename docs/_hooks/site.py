"""What the site needs besides Markdown: files of the repository as pages, formulas as MathML.

A link out of `docs/` (`../../planner/cost/step.py`) and a path in backticks
(`planner/cost/step.py`) lead to a page with that file's text, so that the site is whole without a
network. Formulas, in ```math or $x$, become MathML, which browsers draw without script or fonts.
Below a paragraph that begins with a link to a file of `data/` stands its table, which
`docs/images/tables.js` sorts and filters.
"""

from __future__ import annotations

import csv
import html
import json
import posixpath
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^( *)(```+)(\w*).*?\n(.*?)^\1\2$\n?", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<![`$])\$([^$`\n]+)\$")
_LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(#[^)]*)?\)")
_CODE = re.compile(
    r"(?<!\[)`((?:planner|constraints|hardware|examples|tests)/[\w./-]+\.\w+)`(?!\])"
)
_LOADED = re.compile(
    r"<(?:script|img|iframe|link(?![^>]*canonical))[^>]*(?:src|href)=[\"']?(https?://[^\"' >]+)"
)
_DATA = re.compile(r"^\[[^\]]*\]\(((?:\.\./)*data/[\w-]+)\.csv\): .*$", re.MULTILINE)
_LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".json": "json", ".csv": "text"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The search's script for pages opened as files is ours, not the plugin's of a network."""
    config.extra["polyfills"] = ["images/search-from-files.js"]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Every file of the repository that a page names, as a page or a picture of the site."""
    for path in sorted(_named(files)):
        files.append(_site_file(path, config))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Formulas drawn, and links to the repository led to its pages."""
    here = posixpath.dirname(page.file.src_uri)
    return "".join(
        _drawn(text, language) if fenced else _with_tables(_linked(text, here), here)
        for text, language, fenced in _pieces(markdown)
    )


def _with_tables(text: str, here: str) -> str:
    """Data that paragraphs begin with a link to, as tables below them."""

    def shown(match: re.Match[str]) -> str:
        path = ROOT / posixpath.normpath(posixpath.join("docs", here, match[1]))
        return f"{match[0]}\n\n{_table(path)}\n"

    return _DATA.sub(shown, text)


def _table(path: Path) -> str:
    """A table of HTML of a file of data, whose header says what its schema does."""
    fields = json.loads(path.with_suffix(".schema.json").read_text(encoding="utf-8"))["fields"]
    heads = (
        f"<th class={one['type']} title='{html.escape(one['description'])}'>{one['name']}</th>"
        for one in fields
    )
    with path.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        rows = [[_cell(cell) for cell in row] for row in csv.reader(file)][1:]
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    head = f"<thead><tr>{''.join(heads)}</tr></thead>"
    # One line: a blank one would end the block, and its cells be read as Markdown.
    return f"<div class=data><table class=data>{head}<tbody>{lines}</tbody></table></div>".replace(
        "\n", " "
    )


def _cell(text: str) -> str:
    """A cell as HTML; words in backticks are code, as on the pages."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def on_post_build(config: MkDocsConfig) -> None:
    """Abort if a page would load anything from a network."""
    for page in Path(config.site_dir).rglob("*.html"):
        if loaded := _LOADED.findall(page.read_text(encoding="utf-8")):
            raise PluginError(
                f"{page.name} loads {', '.join(loaded)}: the site is for reading alone"
            )


def _pieces(markdown: str) -> list[tuple[str, str, bool]]:
    """Text and fenced blocks in order: (text, language, whether fenced)."""
    pieces, at = [], 0
    for match in _FENCE.finditer(markdown):
        pieces.append((markdown[at : match.start()], "", False))
        math = match[3] == "math"
        pieces.append((match[4] if math else match[0], match[3], True))
        at = match.end()
    return [*pieces, (markdown[at:], "", False)]


def _drawn(text: str, language: str) -> str:
    if language != "math":
        return text
    return f"\n<div class=formula>{convert(text.strip(), display='block')}</div>\n\n"


def _linked(text: str, here: str) -> str:
    def lead(match: re.Match[str]) -> str:
        path = _in_repository(match[1], here)
        return match[0] if path is None else f"]({_relative(path, here)}{match[2] or ''})"

    text = _INLINE.sub(lambda match: convert(match[1]), text)
    text = _LINK.sub(lead, text)
    return _CODE.sub(lambda match: f"[`{match[1]}`]({_relative(match[1], here)})", text)


def _named(files: Files) -> set[str]:
    """Paths in the repository, outside docs/, that pages link to or name."""
    named = {"CONTRIBUTING.md", "CHANGELOG.md"}
    texts = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    texts += [(name, (ROOT / name).read_text(encoding="utf-8")) for name in sorted(named)]
    for uri, content in texts:
        here = posixpath.dirname(uri)
        for text, _, fenced in _pieces(content):
            if not fenced:
                links = (_in_repository(match[1], here) for match in _LINK.finditer(text))
                named |= {path for path in links if path} | {m[1] for m in _CODE.finditer(text)}
    return {path for path in named if (ROOT / path).is_file()}


def _in_repository(link: str, here: str) -> str | None:
    """A path from the repository's root that a link of a page means; None inside docs/."""
    path = posixpath.normpath(posixpath.join("docs", here, link))
    return None if path.startswith(("docs/", "..")) else path


def _site_uri(path: str) -> str:
    """Where a file of the repository is in the site's sources."""
    if path.endswith(".md") and "/" not in path:
        return path.lower()
    return f"code/{path}" if path.endswith((".svg", ".png")) else f"code/{path}.md"


def _relative(path: str, here: str) -> str:
    return posixpath.relpath(_site_uri(path), here or ".")


def _site_file(path: str, config: MkDocsConfig) -> File:
    source = ROOT / path
    if source.suffix in (".svg", ".png"):
        return File.generated(config, _site_uri(path), abs_src_path=str(source))
    text = source.read_text(encoding="utf-8")
    if source.suffix != ".md":
        fence = "`" * (3 + text.count("```"))
        head = f"---\nsearch: {{exclude: true}}\n---\n# {path}\n\n"
        text = f"{head}{fence}{_LANGUAGES.get(source.suffix, 'text')}\n{text}\n{fence}\n"
    return File.generated(config, _site_uri(path), content=text)
