# SPDX-License-Identifier: Apache-2.0
"""Small mistakes in a source file: every one that its syntax tree offers, and a draw of some of them by a seed.

Left alone is what has no behavior of its own: docstrings, annotations, messages (what is raised, warned, logged or formatted),
`__all__`, blocks for type checkers, assertions, and the samples of an op, which are the contract test's data.
"""

from __future__ import annotations

import ast
import copy
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: Mapping[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
OPPOSITES = {
    one: other
    for pair in (("min", "max"), ("any", "all"), ("floor", "ceil"), ("minimum", "maximum"), ("amin", "amax"))
    for one, other in (pair, pair[::-1])
}
SYMMETRIC = {"min", "max", "gcd", "lcm", "minimum", "maximum", "isinstance", "issubclass", "hypot", "function", "layer"}
"""The order of their arguments is nothing: also of the names that an op binds."""
WITHOUT_EFFECT_HERE = {"strict", "encoding", "errors", "stacklevel", "newline"}
"""Keywords whose default does the same wherever everything is right, or on this machine."""
NO_BEHAVIOUR = {"dataclass", "overload", "TypeVar", "ParamSpec", "NewType", "warn", "cast", "field"}
LOGGING = {"debug", "info", "warning", "error", "exception", "critical"}
LOGGERS = {"logger", "_logger", "log", "_log", "logging"}

Alternatives = Iterator[tuple[str, ast.AST]]


@dataclass(frozen=True)
class Mutation:
    """One mistake: in the file `path` (below src/linger), `after` stands in the place of `before`."""

    path: str
    line: int
    text: str
    """The line of the source on which it begins, without its margins."""
    kind: str
    before: str
    after: str
    function: str
    """The outermost function or method around it, such as `Session.run`; empty outside of functions."""
    span: tuple[int, int]
    """Where it is in the file, in bytes."""
    insertion: str

    @property
    def place(self) -> str:
        """File and line, as an editor opens it."""
        return f"src/linger/{self.path}:{self.line}"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What stays the same when lines move."""
        return self.path, self.text, self.before, self.after

    def apply(self, source: str) -> str:
        """The file with the mistake in it."""
        data = source.encode()
        start, end = self.span
        return (data[:start] + self.insertion.encode() + data[end:]).decode()


def mutations_of(path: str, source: str, defaults: Mapping[str, set[str]] | None = None) -> list[Mutation]:
    """Every mutation of a file; keywords are dropped where `defaults` has the function with a default for it."""
    return list(_Walk(path, source, {} if defaults is None else defaults).of_file())


def draw(root: Path, count: int, seed: int, only: tuple[str, ...] = ()) -> list[Mutation]:
    """Mutations of the tree `root`, each another: packages by their lines, then a file by its lines, a line, one of its kinds."""
    files = {f.relative_to(root).as_posix(): f.read_text(encoding="utf-8") for f in sorted(root.rglob("*.py"))}
    defaults = defaults_of(files.values())
    if only:
        files = {path: text for path, text in files.items() if path.startswith(only)}
    chance = random.Random(seed)
    paths, sizes = list(files), [text.count("\n") for text in files.values()]
    known: dict[str, dict[int, list[Mutation]]] = {}
    found: dict[tuple[str, str, str, str], Mutation | None] = {}
    left = count
    for _ in range(100 * count):
        if left == 0:
            break
        # by lines, file by file, is also package by package
        path = chance.choices(paths, sizes)[0]
        if path not in known:
            known[path] = {}
            for mutation in mutations_of(path, files[path], defaults):
                known[path].setdefault(mutation.line, []).append(mutation)
        if known[path]:
            mutation = chance.choice(known[path][chance.choice(list(known[path]))])
            if mutation.key not in found:
                found[mutation.key] = mutation if _is_another(mutation, files[path]) else None
                left -= found[mutation.key] is not None
    return [mutation for mutation in found.values() if mutation is not None]


def at_line(root: Path, path: str, line: str) -> list[Mutation]:
    """Every mutation that begins on a line of the file `path` below `root`."""
    defaults = defaults_of(file.read_text(encoding="utf-8") for file in sorted(root.rglob("*.py")))
    source = (root / path).read_text(encoding="utf-8")
    found = mutations_of(path, source, defaults)
    return [m for m in found if m.line == int(line) and _is_another(m, source)]


def defaults_of(sources: Iterable[str]) -> dict[str, set[str]]:
    """The parameters with a default, by the names of functions and of classes whose fields they are."""
    found: dict[str, set[str]] = {}
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                positional, own = [*node.args.posonlyargs, *node.args.args], node.args
                with_default = {a.arg for a in positional[len(positional) - len(own.defaults) :]}
                with_default |= {a.arg for a, d in zip(own.kwonlyargs, own.kw_defaults, strict=True) if d is not None}
                found.setdefault(node.name, set()).update(with_default)
            elif isinstance(node, ast.ClassDef):
                fields = {s.target.id for s in node.body if _is_field_with_default(s)}
                found.setdefault(node.name, set()).update(fields)
    return found


def _is_field_with_default(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.AnnAssign) and statement.value is not None and isinstance(statement.target, ast.Name)
    )


def _is_another(mutation: Mutation, source: str) -> bool:
    """Whether it is Python, and not the same program."""
    try:
        tree = ast.parse(mutation.apply(source))
    except SyntaxError:
        return False
    return ast.dump(tree) != ast.dump(ast.parse(source))


class _Walk:
    """One walk through a file, statement by statement."""

    def __init__(self, path: str, source: str, defaults: Mapping[str, set[str]]) -> None:
        self.path, self.defaults = path, defaults
        self.tree = ast.parse(source)
        self.lines = source.encode().splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def of_file(self) -> Iterator[Mutation]:
        yield from self._of_node(self.tree, "", None)

    def _of_node(self, node: ast.AST, function: str, returns: str | None) -> Iterator[Mutation]:
        for child in _children(node):
            if _has_no_behavior(child):
                continue
            inside, gives = function, returns
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = _joined(node, function, child)
                gives = ast.unparse(child.returns) if getattr(child, "returns", None) is not None else None
            for kind, other in self._alternatives(child, returns):
                yield self._mutation(child, kind, other, function)
            yield from self._of_node(child, inside, gives)

    def _alternatives(self, node: ast.AST, returns: str | None) -> Alternatives:
        if isinstance(node, ast.Return):
            yield from _returned(node, returns)
        elif isinstance(node, ast.Call):
            yield from self._called(node)
        elif type(node) in _KINDS:
            yield from _KINDS[type(node)](node)
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            yield from _forced(node)

    def _called(self, node: ast.Call) -> Alternatives:
        name = _name(node.func)
        if name in OPPOSITES:
            other = copy.deepcopy(node)
            _rename(other, OPPOSITES[name])
            yield "opposite function", other
        if name not in SYMMETRIC:
            for i, (one, two) in enumerate(zip(node.args, node.args[1:], strict=False)):
                if not any(isinstance(a, ast.Starred) for a in (one, two)) and ast.dump(one) != ast.dump(two):
                    other = copy.deepcopy(node)
                    other.args[i], other.args[i + 1] = other.args[i + 1], other.args[i]
                    yield "arguments swapped", other
        for i, keyword in enumerate(node.keywords):
            if keyword.arg is None or keyword.arg in WITHOUT_EFFECT_HERE:
                continue
            if name not in self.defaults or keyword.arg in self.defaults[name]:
                other = copy.deepcopy(node)
                del other.keywords[i]
                yield "keyword dropped", other

    def _mutation(self, node: ast.AST, kind: str, other: ast.AST, function: str) -> Mutation:
        target: ast.AST = node
        if kind == "condition forced":  # the condition's place, not that of all it guards
            target, other = node.test, other.test  # type: ignore[attr-defined]
        new = ast.unparse(other)
        before = ast.unparse(target)
        insertion = new
        is_atom = isinstance(other, ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript | ast.stmt)
        if type(other) is not type(target) and not is_atom:
            insertion = f"({new})"
        line = target.lineno  # type: ignore[attr-defined]
        start = self.starts[line - 1] + target.col_offset  # type: ignore[attr-defined]
        end = self.starts[target.end_lineno - 1] + target.end_col_offset  # type: ignore[attr-defined]
        text = self.lines[line - 1].decode().strip()
        return Mutation(self.path, line, text, kind, before, new, function, (start, end), insertion)


def _joined(parent: ast.AST, function: str, child: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    """The name of the outermost function: what is defined inside of one runs, at most, when that does."""
    if isinstance(parent, ast.Module):
        return child.name
    if isinstance(parent, ast.ClassDef) and function.count(".") == 0:
        return f"{function}.{child.name}"
    return function or child.name


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that are computed: no annotations; decorators only where they are told something."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_comment") or (name == "body" and _is_for_type_checkers(node)):
            continue
        if isinstance(node, ast.Call) and name == "args" and _name(node.func) in ("isinstance", "issubclass"):
            yield node.args[0]
        elif isinstance(value, list):
            yield from (
                p for p in value if isinstance(p, ast.AST) and getattr(p, "arg", None) not in WITHOUT_EFFECT_HERE
            )
        elif isinstance(value, ast.AST):
            yield value


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING"


def _has_no_behavior(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.expr_context):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
        return True
    if isinstance(node, ast.ClassDef):
        return any(_name(base) == "Protocol" for base in node.bases)
    if isinstance(node, ast.FunctionDef):
        names = {_name(d) for d in node.decorator_list}
        return bool(names & {"overload", "abstractmethod"}) or node.name.startswith("_sample")
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(_name(t) in ("__all__", "__version__", "samples") for t in targets) or _is_type(node.value)
    return isinstance(node, ast.Call) and _is_message(node)


def _is_type(value: ast.expr | None) -> bool:
    """A name for a type: `Array = NDArray[Any]`."""
    return isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name) and value.value.id[0].isupper()


def _is_message(call: ast.Call) -> bool:
    name = _name(call.func)
    if name in NO_BEHAVIOUR or name.endswith(("Error", "Warning")):
        return True
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return name in LOGGING and owner is not None and _name(owner) in LOGGERS


def _name(node: ast.AST) -> str:
    """The last name of an expression: `floor` of `np.floor`, of `floor(x)` too."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _rename(call: ast.Call, name: str) -> None:
    if isinstance(call.func, ast.Attribute):
        call.func.attr = name
    elif isinstance(call.func, ast.Name):
        call.func.id = name


def _compared(node: ast.Compare) -> Alternatives:
    for i, operator in enumerate(node.ops):
        for other in COMPARISONS[type(operator)]:
            changed = copy.deepcopy(node)
            changed.ops[i] = other()
            yield "comparison", changed
    for i, side in enumerate(node.comparators):
        if isinstance(side, ast.Constant) and isinstance(side.value, str):
            changed = copy.deepcopy(node)
            changed.comparators[i] = ast.Constant(f"{side.value}_")
            yield "name changed", changed


def _joined_conditions(node: ast.BoolOp) -> Alternatives:
    changed = copy.deepcopy(node)
    changed.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
    yield "and, or", changed
    for i in range(len(node.values)):
        rest = [copy.deepcopy(v) for j, v in enumerate(node.values) if j != i]
        yield "condition dropped", rest[0] if len(rest) == 1 else ast.BoolOp(copy.copy(node.op), rest)


def _calculated(node: ast.BinOp) -> Alternatives:
    texts = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Dict)
    for side in (node.left, node.right):
        if isinstance(side, texts) and not (isinstance(side, ast.Constant) and isinstance(side.value, int | float)):
            return  # it would fail at once
    if type(node.op) in ARITHMETIC:
        changed = copy.deepcopy(node)
        changed.op = ARITHMETIC[type(node.op)]()
        yield "arithmetic", changed


def _assigned(node: ast.AugAssign) -> Alternatives:
    if type(node.op) in ARITHMETIC and not isinstance(node.value, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp):
        changed = copy.deepcopy(node)
        changed.op = ARITHMETIC[type(node.op)]()
        yield "arithmetic", changed


def _turned(node: ast.UnaryOp) -> Alternatives:
    if isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield "sign or not dropped", copy.deepcopy(node.operand)


def _constant(node: ast.Constant) -> Alternatives:
    if isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node.value, int | float):
        yield "constant", ast.Constant(node.value + 1)
        if node.value >= 1:
            yield "constant", ast.Constant(node.value - 1)


def _sliced(node: ast.Slice) -> Alternatives:
    for name in ("lower", "upper"):
        bound = getattr(node, name)
        if bound is not None:
            changed = copy.deepcopy(node)
            setattr(changed, name, None)
            yield "slice bound", changed


def _left(node: ast.Break | ast.Continue) -> Alternatives:
    yield "break, continue", ast.Continue() if isinstance(node, ast.Break) else ast.Break()


def _stated(node: ast.Expr) -> Alternatives:
    if isinstance(node.value, ast.Call) and not _is_message(node.value):
        yield "call dropped", ast.Pass()


def _returned(node: ast.Return, returns: str | None) -> Alternatives:
    if node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None):
        return
    value = copy.deepcopy(node.value)
    if returns == "bool":
        yield "return value", ast.Return(ast.UnaryOp(ast.Not(), value))
    elif returns in ("int", "float") and not (isinstance(value, ast.Constant) and value.value == 0):
        yield "return value", ast.Return(ast.UnaryOp(ast.USub(), value))
    else:
        yield "return value", ast.Return(ast.Constant(None))


def _forced(node: ast.If | ast.IfExp | ast.While) -> Alternatives:
    if _is_for_type_checkers(node) or isinstance(node.test, ast.Constant):
        return
    for value in (False,) if isinstance(node, ast.While) else (True, False):
        changed = copy.copy(node)
        changed.test = ast.Constant(value)
        yield "condition forced", changed


_KINDS: Mapping[type[ast.AST], Callable[..., Alternatives]] = {
    ast.Compare: _compared,
    ast.BoolOp: _joined_conditions,
    ast.BinOp: _calculated,
    ast.AugAssign: _assigned,
    ast.UnaryOp: _turned,
    ast.Constant: _constant,
    ast.Slice: _sliced,
    ast.Break: _left,
    ast.Continue: _left,
    ast.Expr: _stated,
}


def kinds_of(mutations: list[Mutation]) -> Counter[str]:
    """How many of each kind."""
    return Counter(m.kind for m in mutations)
