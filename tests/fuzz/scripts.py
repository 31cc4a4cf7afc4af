"""A grammar of shell scripts that end in a training command, or never end."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.fuzz.material import SCRIPT

_NAMES = st.sampled_from(["A", "B", "TP", "ARGS", "f", "g", "1", "@", "#", "!", "?"])
_ATOMS = st.sampled_from(
    ["1", "-5", "9" * 40, "x", "''", '""', "$A", "${A}", "${A:-$B}", "${B[-5]}", "${B[@]}",
     "${#B[@]}", "${A%%.*}", "${A//x/y}", "$((A+1))", "$(( (9**64)**64 % 7 ))", "$((1/0))",
     "$(( 1 << 99 ))", "$(date)", "`hostname`", "<(ls)", "~", "*", "a{1..9}", "\\\n", "é",
     "${A##*/}", "${#A}", "${A: -2:1}", "${A^^}", "${B[$A]}", "$(printf %05d $A)",
     "$A$A", '"$A$A"', "${!A}", "$'\\x00'", "${A:?no}", "((", "))", "[[", "]]"]
)  # fmt: skip


def _blocks(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Statements around statements."""
    return st.one_of(
        st.tuples(_NAMES, inner).map(lambda drawn: f"{drawn[0]}() {{\n{drawn[1]}\n}}\n{drawn[0]}"),
        st.tuples(_ATOMS, inner, inner).map(
            lambda drawn: f"if [ {drawn[0]} = 1 ]; then\n{drawn[1]}\nelse\n{drawn[2]}\nfi"
        ),
        st.tuples(_ATOMS, inner).map(lambda drawn: f"for x in {drawn[0]}; do\n{drawn[1]}\ndone"),
        st.tuples(_ATOMS, inner).map(lambda drawn: f"while [[ {drawn[0]} ]]; do\n{drawn[1]}\ndone"),
        st.tuples(_ATOMS, inner).map(lambda drawn: f"case {drawn[0]} in\n*) {drawn[1]} ;;\nesac"),
        st.tuples(inner, inner).map(lambda drawn: f"{drawn[0]} && {drawn[1]}"),
        st.tuples(inner, inner).map(lambda drawn: f"{drawn[0]} | {drawn[1]} &"),
        inner.map(lambda drawn: f"({drawn})"),
        inner.map(lambda drawn: f"eval '{drawn}'"),
        inner.map(lambda drawn: f'bash -c "{drawn}"'),
        inner.map(lambda drawn: f'ssh -p 22 host "{drawn}"'),
        inner.map(lambda drawn: f"cat <<EOF > x.json\n{drawn}\nEOF"),
        st.tuples(inner, st.integers(2, 40)).map(lambda drawn: "\n".join([drawn[0]] * drawn[1])),
    )


_STATEMENTS = st.recursive(
    st.one_of(
        st.tuples(_NAMES, _ATOMS).map("=".join),
        st.tuples(_NAMES, _ATOMS).map(lambda drawn: f"{drawn[0]}+={drawn[1]}"),
        st.tuples(_NAMES, _ATOMS, _ATOMS).map(lambda drawn: f"{drawn[0]}=({drawn[1]} {drawn[2]})"),
        _NAMES.map(lambda name: f'{name}=("${{{name}[@]}}" "${{{name}[@]}}")'),
        _NAMES.map(lambda name: f"{name}=${name}${name}"),
        _NAMES.map(lambda name: f"{name}() {{ {name}; {name}; }}; {name}"),
        st.just(":(){ :|:& };:"),
        st.tuples(_NAMES, _ATOMS).map(lambda drawn: f"export {drawn[0]}={drawn[1]}"),
        st.tuples(_NAMES, _ATOMS).map(lambda drawn: f"(( {drawn[0]} = {drawn[1]} ))"),
        st.tuples(_ATOMS, _ATOMS).map(lambda drawn: f"echo {drawn[0]} {drawn[1]}"),
        st.tuples(_ATOMS).map(lambda drawn: f"source {drawn[0]}"),
        st.tuples(_NAMES, _ATOMS).map(lambda drawn: f"IFS=, read -ra {drawn[0]} <<< {drawn[1]}"),
        st.tuples(_NAMES, _ATOMS).map(lambda drawn: f"mapfile -t {drawn[0]} <<< {drawn[1]}"),
        st.tuples(_NAMES, _ATOMS).map(lambda drawn: f"printf -v {drawn[0]} '%s%03d' {drawn[1]}"),
        st.tuples(_NAMES, _ATOMS, _ATOMS).map(lambda drawn: f"{drawn[0]}[{drawn[1]}]={drawn[2]}"),
        st.just("touch pwned"),
        st.just("$(touch pwned)"),
    ),
    _blocks,
    max_leaves=8,
)


def scripts() -> st.SearchStrategy[str]:
    """Scripts of some statements, most with a training command behind them."""
    last_lines = st.sampled_from([SCRIPT, SCRIPT, "torchrun pretrain_gpt.py --num-layers $A", ""])
    return st.tuples(st.lists(_STATEMENTS, max_size=4), last_lines).map(
        lambda drawn: "\n".join([*drawn[0], drawn[1]])
    )
