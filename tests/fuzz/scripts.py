"""A grammar of shell scripts that end in a training command, or never end."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.fuzz.material import SCRIPT

_NAMES = st.sampled_from(["A", "B", "TP", "ARGS", "f", "g", "1", "@", "#", "!", "?"])
_ATOMS = st.sampled_from(
    ["1", "-5", "9" * 40, "x", "''", '""', "$A", "${A}", "${A:-$B}", "${B[-5]}", "${B[@]}",
     "${#B[@]}", "${A%%.*}", "${A//x/y}", "$((A+1))", "$(( (9**64)**64 % 7 ))", "$((1/0))",
     "$(( 1 << 99 ))", "$(date)", "`hostname`", "<(ls)", "~", "*", "a{1..9}", "\\\n", "é",
     "$A$A", '"$A$A"', "${!A}", "$'\\x00'", "${A:?no}", "((", "))", "[[", "]]"]
)  # fmt: skip


def _blocks(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Statements around statements."""
    return st.one_of(
        st.tuples(_NAMES, inner).map(lambda own: f"{own[0]}() {{\n{own[1]}\n}}\n{own[0]}"),
        st.tuples(_ATOMS, inner, inner).map(
            lambda own: f"if [ {own[0]} = 1 ]; then\n{own[1]}\nelse\n{own[2]}\nfi"
        ),
        st.tuples(_ATOMS, inner).map(lambda own: f"for x in {own[0]}; do\n{own[1]}\ndone"),
        st.tuples(_ATOMS, inner).map(lambda own: f"while [[ {own[0]} ]]; do\n{own[1]}\ndone"),
        st.tuples(_ATOMS, inner).map(lambda own: f"case {own[0]} in\n*) {own[1]} ;;\nesac"),
        st.tuples(inner, inner).map(lambda own: f"{own[0]} && {own[1]}"),
        st.tuples(inner, inner).map(lambda own: f"{own[0]} | {own[1]} &"),
        inner.map(lambda own: f"({own})"),
        inner.map(lambda own: f"eval '{own}'"),
        inner.map(lambda own: f'bash -c "{own}"'),
        inner.map(lambda own: f"cat <<EOF > x.json\n{own}\nEOF"),
        st.tuples(inner, st.integers(2, 40)).map(lambda own: "\n".join([own[0]] * own[1])),
    )


_STATEMENTS = st.recursive(
    st.one_of(
        st.tuples(_NAMES, _ATOMS).map("=".join),
        st.tuples(_NAMES, _ATOMS).map(lambda own: f"{own[0]}+={own[1]}"),
        st.tuples(_NAMES, _ATOMS, _ATOMS).map(lambda own: f"{own[0]}=({own[1]} {own[2]})"),
        _NAMES.map(lambda name: f'{name}=("${{{name}[@]}}" "${{{name}[@]}}")'),
        _NAMES.map(lambda name: f"{name}=${name}${name}"),
        _NAMES.map(lambda name: f"{name}() {{ {name}; {name}; }}; {name}"),
        st.just(":(){ :|:& };:"),
        st.tuples(_NAMES, _ATOMS).map(lambda own: f"export {own[0]}={own[1]}"),
        st.tuples(_NAMES, _ATOMS).map(lambda own: f"(( {own[0]} = {own[1]} ))"),
        st.tuples(_ATOMS, _ATOMS).map(lambda own: f"echo {own[0]} {own[1]}"),
        st.tuples(_ATOMS).map(lambda own: f"source {own[0]}"),
        st.just("touch pwned"),
        st.just("$(touch pwned)"),
    ),
    _blocks,
    max_leaves=8,
)


def scripts() -> st.SearchStrategy[str]:
    """Scripts of some statements, most with a training command behind them."""
    ends = st.sampled_from([SCRIPT, SCRIPT, "torchrun pretrain_gpt.py --num-layers $A", ""])
    return st.tuples(st.lists(_STATEMENTS, max_size=4), ends).map(
        lambda own: "\n".join([*own[0], own[1]])
    )
