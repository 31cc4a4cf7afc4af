"""A shell script read without running it: variables, arrays, defaults, arithmetic, simple tests.

tree-sitter's grammar of bash makes the tree; `Shell` walks it in order and collects the commands
that would run, each word with the places its characters come from. What only running could tell
(output of commands, tests on files, variables that nobody sets) is unknown, and said to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planner.launch.read.arithmetic import evaluate_arithmetic
from planner.launch.read.text import Files, Span, Text, join

if TYPE_CHECKING:
    from tree_sitter import Node

# Wrappers that take a command as their arguments.
_SBATCH = re.compile(r"^#SBATCH\s+--?([\w-]+)(?:[=\s]+(\S+))?", re.MULTILINE)
# What Slurm sets from its options.
_SLURM_VARIABLES = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "gres": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "n": ("SLURM_NTASKS", "SLURM_NPROCS"),
}
# Functions that call functions end somewhere.
_DEEPEST = 20

Value = Text | list[Text]


@dataclass(frozen=True)
class Word:
    """One word of a command: its value, and where the script uses it."""

    text: Text
    used: Span | None = None


@dataclass(frozen=True)
class Command:
    """A command that would run, with the variables that it would see."""

    words: tuple[Word, ...]
    environment: Mapping[str, Text]
    file: str
    line: int


@dataclass
class Shell:
    """The state of a script while it is read; scripts may follow each other in one shell."""

    files: Files
    given: Mapping[str, str]
    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: dict[str, tuple[Text, Node]] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    # Files that the script would write: path -> content.
    written: dict[str, Text] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    errors: list[tuple[str, int, str]] = field(default_factory=list)
    depth: int = 0

    def read(self, source: Text, *, nested: bool = False) -> None:
        """Walk a script. Errors of syntax are collected, with file and line."""
        if not nested:
            self._read_directives(source)
        tree = _parse(source.value)
        if tree.has_error:
            self._note_errors(source, tree)
        _Walk(self, source).run(tree)

    def _read_directives(self, source: Text) -> None:
        """`#SBATCH --nodes=8`: what Slurm will put into the environment."""
        for match in _SBATCH.finditer(source.value):
            for name in _SLURM_VARIABLES.get(match[1], ()):
                if match[2] is None:
                    continue
                # gres=gpu:a100:8 ends with the number.
                at = match.start(2) + (match[2].rfind(":") + 1)
                self.variables[name] = source[at : match.end(2)]
        nodes, tasks = (self.variables.get(own) for own in ("SLURM_NNODES", "SLURM_NTASKS"))
        per_node = self.variables.get("SLURM_NTASKS_PER_NODE")
        if tasks is None and isinstance(nodes, Text) and isinstance(per_node, Text):
            product = evaluate_arithmetic(f"{nodes.value}*{per_node.value}", {})
            if product is not None:
                self.variables["SLURM_NTASKS"] = Text.made(str(product))

    def _note_errors(self, source: Text, tree: Node) -> None:
        for node in _broken(tree):
            place = source[node.start_byte : node.end_byte + 1].first()
            words = source.value[node.start_byte : node.end_byte].split("\n")[0].strip()
            missing = f"{node.type} missing" if node.is_missing else f"cannot read {words!r}"
            self.errors.append((place[0] if place else "", self.files.line(place), missing))

    def lookup(self, name: str) -> Value | None:
        """A variable's value: as given by the user, else as set so far."""
        if name in self.given:
            return Text.made(self.given[name])
        return self.variables.get(name)

    def environment(self) -> dict[str, Text]:
        """What a command started now would see."""
        seen = {name: self.lookup(name) for name in (*self.exported, *self.given)}
        return {name: own for name, own in seen.items() if isinstance(own, Text)}


def _parse(text: str) -> Node:
    """Syntax tree; offsets in characters."""
    import tree_sitter
    import tree_sitter_bash

    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    # One byte a character, so that offsets agree; nothing outside ASCII is syntax.
    return parser.parse(re.sub(r"[^\x00-\x7f]", "?", text).encode()).root_node


def _broken(node: Node) -> Iterator[Node]:
    if node.type == "ERROR" or node.is_missing:
        yield node
        return
    for child in node.children:
        if child.has_error or child.is_missing:
            yield from _broken(child)


@dataclass
class _Walk:
    """One script (or text of one) walked in a shell."""

    shell: Shell
    source: Text

    # --- statements -----------------------------------------------------------------------------

    def run(self, node: Node) -> None:
        """A statement, or each of a list of them."""
        handler = getattr(self, f"_run_{node.type}", None)
        if handler is not None:
            handler(node)
        elif node.type in _CONTAINERS:
            for child in node.named_children:
                self.run(child)
        elif node.type in _LOOPS:
            self._note(node, "a loop is not followed")

    def _note(self, node: Node, what: str) -> None:
        place = self._piece(node).first()
        self.shell.notes.append(f"line {self.shell.files.line(place)}: {what}")

    def _piece(self, node: Node) -> Text:
        return self.source[node.start_byte : node.end_byte]

    def _run_list(self, node: Node) -> None:
        """`a && b`, `a || b`: b only where a's outcome, if known, lets it run."""
        left, right = node.named_children[0], node.named_children[-1]
        outcome = self._outcome(left)
        operator = next(child.type for child in node.children if child.type in ("&&", "||"))
        if outcome is None or outcome == (operator == "&&"):
            if outcome is None and left.type == "test_command":
                self._note(node, "a test that reading cannot decide; taken as not met")
                return
            self.run(right)

    def _outcome(self, node: Node) -> bool | None:
        """Whether a statement succeeds; it is run, if it is one that is run."""
        if node.type in ("test_command", "negated_command") or self._is_arithmetic(node):
            return self._test(node)
        if node.type == "command" and self._name(node) in ("[", "test"):
            return None
        if node.type == "list":
            return self._test(node)
        self.run(node)
        return None

    def _is_arithmetic(self, node: Node) -> bool:
        return node.type == "compound_statement" and self._piece(node).value.startswith("((")

    def _run_compound_statement(self, node: Node) -> None:
        if self._is_arithmetic(node):
            self._assign_arithmetic(self._piece(node).value[2:-2])
            return
        for child in node.named_children:
            self.run(child)

    def _assign_arithmetic(self, text: str) -> None:
        """`(( X = Y * 2 ))`, `let`."""
        match = re.fullmatch(r"\s*(\w+)\s*=(?!=)(.*)", text, re.DOTALL)
        if match:
            self.shell.variables[match[1]] = self._calculated(match[2])

    def _run_if_statement(self, node: Node) -> None:
        clauses = self._clauses(node)
        for test, body in clauses:
            met = True if test is None else self._test(test)
            if met is None and test is not None:
                self._note(test, "a test that reading cannot decide; taken as not met")
            if met:
                for statement in body:
                    self.run(statement)
                return

    def _clauses(self, node: Node) -> list[tuple[Node | None, list[Node]]]:
        """(test, statements) of if, elif and else; no test for else."""
        own: list[Node] = []
        rest: list[tuple[Node | None, list[Node]]] = []
        for child in node.named_children:
            if child.type == "elif_clause":
                rest.append((child.named_children[0], child.named_children[1:]))
            elif child.type == "else_clause":
                rest.append((None, child.named_children))
            elif child.type != "comment":
                own.append(child)
        return [(own[0], own[1:]), *rest]

    def _run_case_statement(self, node: Node) -> None:
        word, *items = node.named_children
        value = self._value(word)
        if value.unknown:
            self._note(node, "a case that reading cannot decide; skipped")
            return
        for item in items:
            patterns = [c for c in item.children_by_field_name("value")]
            if any(_matches(value.value, self._value(own).value) for own in patterns):
                for statement in item.named_children[len(patterns) :]:
                    self.run(statement)
                return

    def _run_function_definition(self, node: Node) -> None:
        name = self._piece(node.named_children[0]).value
        self.shell.functions[name] = (self.source, node.named_children[-1])

    def _run_declaration_command(self, node: Node) -> None:
        exports = node.children[0].type == "export"
        for child in node.named_children:
            if child.type == "variable_assignment":
                name = self._assign(child)
            elif child.type == "variable_name":
                name = self._piece(child).value
            else:
                continue
            if exports:
                self.shell.exported.add(name)

    def _run_variable_assignment(self, node: Node) -> None:
        self._assign(node)

    def _assign(self, node: Node) -> str:
        target, value_node = node.named_children[0], node.named_children[1:]
        name = self._piece(target).value
        appends = any(child.type == "+=" for child in node.children)
        if target.type == "subscript":
            return name
        value: Value = self._assigned(value_node[0]) if value_node else Text("")
        if appends:
            value = _appended(self.shell.variables.get(name), value)
        self.shell.variables[name] = value
        return name

    def _assigned(self, node: Node) -> Value:
        if node.type == "array":
            return [word.text for child in node.named_children for word in self._words(child)]
        return self._value(node)

    def _run_redirected_statement(self, node: Node) -> None:
        for child in node.named_children:
            if child.type == "heredoc_redirect":
                self._keep_heredoc(child)
            elif child.type not in ("file_redirect", "herestring_redirect"):
                self.run(child)

    def _keep_heredoc(self, node: Node) -> None:
        """`cat <<EOF > file`: the text that the file will hold."""
        body = next((own for own in node.named_children if own.type == "heredoc_body"), None)
        target = next((own for own in node.named_children if own.type == "file_redirect"), None)
        if target is None:
            siblings = node.parent.named_children if node.parent else []
            target = next((own for own in siblings if own.type == "file_redirect"), None)
        if body is None or target is None:
            return
        start = next(own for own in node.named_children if own.type == "heredoc_start")
        raw = self._piece(start).value[:1] in ("'", '"')
        path = self._value(target.named_children[-1])
        self.shell.written[path.value] = self._piece(body) if raw else self._inside(body)

    # --- commands -------------------------------------------------------------------------------

    def _name(self, node: Node) -> str:
        name = node.child_by_field_name("name")
        return self._piece(name).value if name else ""

    def _run_command(self, node: Node) -> None:
        before = {
            self._piece(own.named_children[0]).value: own
            for own in node.named_children
            if own.type == "variable_assignment"
        }
        words = [
            word
            for child in node.named_children
            if child.type not in ("variable_assignment", "file_redirect", "herestring_redirect")
            for word in self._words(child)
        ]
        environment = self.shell.environment()
        for name, own in before.items():
            value = self._value(own.named_children[1]) if own.named_child_count > 1 else Text("")
            environment[name] = value
        self._collect(node, words, environment)

    def _collect(self, node: Node, words: list[Word], environment: dict[str, Text]) -> None:
        """What a command means to the shell, else a command to keep."""
        name = words[0].text.value if words else ""
        shell = self.shell
        if name == "let":
            for word in words[1:]:
                self._assign_arithmetic(word.text.value)
        elif name == "eval":
            self._nested(_spaced(word.text for word in words[1:]))
        elif name in (".", "source"):
            self._source(words[1:])
        elif name == "unset":
            for word in words[1:]:
                shell.variables.pop(word.text.value, None)
        elif name in shell.functions:
            self._call(*shell.functions[name])
        elif (inner := _inline_script(words)) is not None:
            self._nested(inner)
        else:
            place = self._piece(node).first()
            file = place[0] if place else ""
            line = shell.files.line(place)
            shell.commands.append(Command(tuple(words), environment, file, line))

    def _nested(self, script: Text) -> None:
        """A script in a word: `eval`, `bash -c`."""
        if script.unknown or self.shell.depth > _DEEPEST:
            return
        self.shell.depth += 1
        self.shell.read(script, nested=True)
        self.shell.depth -= 1

    def _call(self, source: Text, body: Node) -> None:
        if self.shell.depth > _DEEPEST:
            return
        self.shell.depth += 1
        _Walk(self.shell, source).run(body)
        self.shell.depth -= 1

    def _source(self, words: list[Word]) -> None:
        """`source config.sh`: a file that was given too has been read already."""
        name = words[0].text.value.rsplit("/", 1)[-1] if words else ""
        given = [path for path in self.shell.files.by_path if path.rsplit("/", 1)[-1] == name]
        if not given:
            what = words[0].text.value or words[0].text.unknown if words else ""
            self.shell.notes.append(f"source {what}: not read; give that file too, before this one")

    # --- tests ----------------------------------------------------------------------------------

    def _test(self, node: Node) -> bool | None:
        """Outcome of a condition; None where reading cannot tell."""
        children = [own for own in node.named_children if own.type != "comment"]
        match node.type:
            case "test_command" | "parenthesized_expression":
                return self._test(children[0]) if len(children) == 1 else None
            case "negated_command":
                inner = self._test(children[0])
                return None if inner is None else not inner
            case "list":
                operator = next(c.type for c in node.children if c.type in ("&&", "||"))
                return _both(operator, self._test(children[0]), self._test(children[-1]))
            case "unary_expression":
                return self._test_unary(node, children)
            case "binary_expression":
                return self._test_binary(node, children)
            case "compound_statement":
                value = self._calculated(self._piece(node).value[2:-2])
                return None if value.unknown else value.value != "0"
            case "command":
                return {"true": True, ":": True, "false": False}.get(self._name(node))
            case "word" | "string" | "simple_expansion" | "expansion" | "concatenation":
                value = self._value(node)
                return None if value.unknown else bool(value.value)
        return None

    def _test_unary(self, node: Node, children: list[Node]) -> bool | None:
        operator = self._piece(node.children[0]).value
        if operator == "!":
            inner = self._test(children[-1])
            return None if inner is None else not inner
        if operator not in ("-z", "-n"):
            return None
        value = self._value(children[-1])
        if value.unknown and not value.unknown.startswith("$"):
            return None
        # A variable that nothing sets is empty.
        return bool(value.value) == (operator == "-n")

    def _test_binary(self, node: Node, children: list[Node]) -> bool | None:
        operator = next(
            (self._piece(c).value for c in node.children if self._piece(c).value in _OPERATORS), ""
        )
        if operator in ("&&", "||", "-a", "-o"):
            either = "||" if operator in ("||", "-o") else "&&"
            return _both(either, self._test(children[0]), self._test(children[-1]))
        left, right = self._value(children[0]), self._value(children[-1])
        if left.unknown or right.unknown:
            return None
        return _compare(operator, left.value, right.value)

    # --- words ----------------------------------------------------------------------------------

    def _words(self, node: Node) -> list[Word]:
        """What a node becomes when the shell expands it: none, one or several words."""
        used = self._piece(node).span()
        if node.type == "comment":
            return []
        listed = self._listed(node)
        if listed is not None:
            return [Word(text, text.span()) for text in listed]
        value = self._value(node)
        if value.unknown:
            return [Word(value, used)]
        if node.type in ("simple_expansion", "expansion", "command_substitution"):
            parts = list(value.split())
            whole = len(parts) == 1
            return [Word(part, used if whole else part.span()) for part in parts]
        return [Word(value, used)]

    def _listed(self, node: Node) -> list[Text] | None:
        """`"${ARGS[@]}"`: the words of an array; None if the node is something else."""
        inner = node
        if node.type == "string" and node.named_child_count == 1:
            inner = node.named_children[0]
            if self._piece(inner).value != self._piece(node).value[1:-1]:
                return None
        if inner.type not in ("expansion", "simple_expansion"):
            return None
        match = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}|\$(@|\*)", self._piece(inner).value)
        if not match:
            return None
        value = self.shell.lookup(match[1]) if match[1] else None
        if value is None:
            return []
        return value if isinstance(value, list) else [value]

    def _value(self, node: Node) -> Text:
        """A node's text once expanded, as one word."""
        match node.type:
            case "string" | "heredoc_body":
                return self._inside(node, quoted=node.type == "string")
            case "raw_string":
                return self._piece(node)[1:-1]
            case "ansi_c_string":
                return self._piece(node)[2:-1]
            case "concatenation" | "command_name":
                return self._inside(node)
            case "simple_expansion" | "expansion":
                return self._expanded(node)
            case "arithmetic_expansion":
                text = self._piece(node).value
                return self._calculated(text[3:-2] if text.startswith("$((") else text[2:-1])
            case "command_substitution" | "process_substitution":
                return Text.not_known(f"output of {self._piece(node).value}")
        return _unescaped(self._piece(node))

    def _inside(self, node: Node, *, quoted: bool = False) -> Text:
        """Text between and of a node's children, with expansions replaced."""
        start, end = node.start_byte + quoted, node.end_byte - quoted
        parts: list[Text] = []
        for child in node.named_children:
            if child.type in ("string_content", "heredoc_content"):
                continue
            parts.append(self._plain(start, child.start_byte, quoted))
            parts.append(self._value(child))
            start = child.end_byte
        parts.append(self._plain(start, end, quoted))
        return join(parts)

    def _plain(self, start: int, end: int, quoted: bool) -> Text:
        piece = self.source[start:end]
        return _continued(piece) if quoted else piece

    def _expanded(self, node: Node) -> Text:
        text = self._piece(node).value
        match = re.fullmatch(r"\$\{(\w+|[@*#?])(?:\[([^\]]*)\])?(:?[-=+?])?(.*)\}", text, re.DOTALL)
        if not match:
            match = re.fullmatch(r"\$(\w+|[@*#?$!])", text)
            return self._variable(match[1]) if match else Text.not_known(text)
        name, index, operator, _ = match.groups()
        if operator is None and match[4]:
            return Text.not_known(text)
        value = self._element(name, index) if index is not None else self._variable(name)
        if operator in (":-", "-", ":=", "=", ":+", "+"):
            return self._default(node, operator, name, value)
        return value

    def _default(self, node: Node, operator: str, name: str, value: Text) -> Text:
        """`${X:-8}`: the value, or what stands for it."""
        unset = bool(value.unknown) or (operator.startswith(":") and not value.value)
        at = self._piece(node).value.index(operator) + len(operator) + node.start_byte
        if operator.endswith("+"):
            return Text("") if unset else self._between(node, at)
        if not unset:
            return value
        default = self._between(node, at)
        if operator.endswith("="):
            self.shell.variables[name] = default
        return default

    def _between(self, node: Node, start: int) -> Text:
        """What stands from `start` to the closing brace of an expansion."""
        children = [child for child in node.named_children if child.start_byte >= start]
        parts: list[Text] = []
        for child in children:
            parts += [self.source[start : child.start_byte], self._value(child)]
            start = child.end_byte
        return join([*parts, self.source[start : node.end_byte - 1]])

    def _variable(self, name: str) -> Text:
        value = self.shell.lookup(name)
        if value is None:
            return Text.not_known(f"${name}, which the files do not set")
        if isinstance(value, list):
            return value[0] if value else Text("")
        return value

    def _element(self, name: str, index: str) -> Text:
        value = self.shell.lookup(name)
        if value is None:
            return Text.not_known(f"${name}, which the files do not set")
        if isinstance(value, Text):
            return value
        if index in ("@", "*"):
            return _spaced(value)
        at = self._calculated(index)
        if at.unknown or int(at.value) >= len(value):
            return Text.not_known(f"${{{name}[{index}]}}")
        return value[int(at.value)]

    def _calculated(self, text: str) -> Text:
        """An arithmetic expression."""
        values: dict[str, str] = {}
        for name in re.findall(r"\$?\{?([A-Za-z_]\w*|(?<=\$)\d)", text):
            value = self._variable(name)
            if value.unknown:
                return value
            values[name] = value.value
        number = evaluate_arithmetic(text, values)
        return Text.not_known(f"$(({text}))") if number is None else Text.made(str(number))


_CONTAINERS = (
    "program", "pipeline", "subshell", "do_group", "negated_command",
)  # fmt: skip
_LOOPS = ("for_statement", "c_style_for_statement", "while_statement")
_OPERATORS = (
    "=", "==", "!=", "-eq", "-ne", "-gt", "-lt", "-ge", "-le", "<", ">", "&&", "||", "-a", "-o",
    "=~",
)  # fmt: skip


def _spaced(words: Iterable[Text]) -> Text:
    """Words with blanks between them."""
    parts: list[Text] = []
    for word in words:
        parts += [word, Text.made(" ")]
    return join(parts[:-1])


def _appended(old: Value | None, more: Value) -> Value:
    if isinstance(old, list) or isinstance(more, list):
        first = old if isinstance(old, list) else [old] if old is not None else []
        return [*first, *(more if isinstance(more, list) else [more])]
    return join([old or Text(""), more])


def _inline_script(words: list[Word]) -> Text | None:
    """What `bash -c "..."` runs, behind srun or not; None for another command."""
    for at, word in enumerate(words[:-2]):
        shell = word.text.value.rsplit("/", 1)[-1]
        if shell in ("bash", "sh") and re.fullmatch(r"-\w*c", words[at + 1].text.value):
            return words[at + 2].text
    return None


def _unescaped(piece: Text) -> Text:
    """A bare word without its backslashes."""
    if "\\" not in piece.value:
        return piece
    kept = [at for at in range(len(piece.value)) if not _is_escape(piece.value, at)]
    return join([piece[at : at + 1] for at in kept]) if kept else Text("")


def _is_escape(text: str, at: int) -> bool:
    before = len(text[:at]) - len(text[:at].rstrip("\\"))
    return text[at] == "\\" and before % 2 == 0


def _continued(piece: Text) -> Text:
    """The inside of double quotes: a backslash before a line's end, $, ", ` or itself goes."""
    parts, start = [], 0
    for match in re.finditer(r"\\\n|\\(?=[$`\"\\])", piece.value):
        parts.append(piece[start : match.start()])
        start = match.end()
    return join([*parts, piece[start:]])


def _matches(value: str, pattern: str) -> bool:
    import fnmatch

    return fnmatch.fnmatchcase(value, pattern)


def _both(operator: str, left: bool | None, right: bool | None) -> bool | None:
    """Three-valued `and` and `or`."""
    decisive = operator == "||"
    if decisive in (left, right):
        return decisive
    return None if left is None or right is None else not decisive


def _compare(operator: str, left: str, right: str) -> bool | None:
    if operator in ("=", "=="):
        return _matches(left, right)
    if operator == "!=":
        return not _matches(left, right)
    try:
        one, two = int(left or 0), int(right or 0)
    except ValueError:
        return None
    return {
        "-eq": one == two, "-ne": one != two, "-gt": one > two, "-lt": one < two,
        "-ge": one >= two, "-le": one <= two,
    }.get(operator)  # fmt: skip
