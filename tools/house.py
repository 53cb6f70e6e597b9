# SPDX-License-Identifier: Apache-2.0
"""Measure the architecture: `python tools/house.py [SOURCE_TREE]`, by default the `src/linger` beside this file.

Most measures only read the files. The walks and the public names (`walks.py`) import the tree in a process of its own, so
that one version of this script can measure any commit; they need torch, and `--static` leaves them out.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path

import networkx as nx
from radon.complexity import add_inner_blocks, cc_visit_ast

FILES_LIMIT = 20
COMPLEXITY_LIMIT = 10
SHARED_LINES = 6
OPEN_MODULES = ("errors", "version", "cli", "__main__")
# The largest value that a measure may have. Every folder but `ops`, which has one file per op, has FILES_LIMIT.
TARGETS = {
    "import cycles": 0,
    "files": 347,
    "lines": 90_611,  # 89 111, and what faster forms of exact integers may take
    "complexity over 10, %": 1.9,
    "bare Any, %": 8,
    "public classes": 449,
    "tests that import internals, %": 30,
    "names in dir(linger)": 60,
    "walk forward, files": 10,
    "walk forward, hops": 58,
    "walk verify, files": 40,  # of these 6 write the graph that `linger.Session` runs, which is proven too
    "walk export, files": 39,
    "walk repair, files": 27,
    "walk repair and check, files": 34,
    "walk linger c, files": 47,
    "walk linger quantize, files": 137,
    "walk linger quantize, loads": 1,  # its own file is read, and searched for hostile content, once
}


@dataclass
class House:
    """Numbers by the name of the measure, and the places behind them by kind."""

    measures: dict[str, float] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def add_shares(self, name: str, parts: Counter[str], wholes: Counter[str]) -> None:
        """Add a share in percent, for the whole tree and for each package."""
        self.measures[f"{name}, %"] = percent(parts.total(), wholes.total())
        for package in sorted(wholes):
            self.measures[f"{name} in {package}, %"] = percent(parts[package], wholes[package])

    def missed(self) -> list[str]:
        """The measures that are over their target."""
        return [name for name, value in self.measures.items() if value > target_of(name)]


@dataclass(frozen=True)
class Source:
    """One parsed file: its path inside the tree, its folder and first folder, its dotted name and its lines."""

    path: str
    folder: str
    package: str
    module: str
    lines: list[str]
    tree: ast.Module


def percent(part: int, whole: int) -> float:
    """A share in percent with one decimal."""
    return round(100 * part / whole, 1) if whole else 0.0


def target_of(name: str) -> float:
    """The largest value that a measure may have; infinite where it is only informative."""
    if name.startswith("files in ") and name != "files in ops":
        return FILES_LIMIT
    return TARGETS.get(name, float("inf"))


def read_sources(root: Path) -> list[Source]:
    """Parse every Python file of a tree; files at the top are in the folder and package `(top)`."""
    sources = []
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        text = file.read_text(encoding="utf-8")
        module = ".".join((root.name, *path.with_suffix("").parts)).removesuffix(".__init__")
        folder = "(top)" if path.parent == Path() else path.parent.as_posix()
        package = folder.partition("/")[0]
        sources.append(Source(path.as_posix(), folder, package, module, text.splitlines(), ast.parse(text)))
    if not sources:
        raise SystemExit(f"{root}: there are no Python files. Give the folder of the package, for example src/linger.")
    return sources


def measure_sizes(house: House, sources: list[Source]) -> None:
    """Count the files, all their lines, and the Python files directly in each folder, `__init__.py` included."""
    folders = Counter(source.folder for source in sources)
    house.measures["files"] = len(sources)
    house.measures["lines"] = sum(len(source.lines) for source in sources)
    house.measures |= {f"files in {folder}": folders[folder] for folder in sorted(folders)}
    house.places["folders"] = [name.removeprefix("files in ") for name in house.missed()]


def measure_heads(house: House, sources: list[Source]) -> None:
    """Count the share of lines above the first code of a file: the license, the module's docstring and the imports."""
    heads = 0
    for source in sources:
        code = [node for node in source.tree.body if not is_head(node)]
        starts = [node.lineno for node in (*code[:1], *getattr(code[0] if code else None, "decorator_list", ()))]
        heads += len("\n".join(source.lines[: min(starts) - 1] if code else source.lines).rstrip().splitlines())
    house.measures["headers and imports, %"] = percent(heads, sum(len(source.lines) for source in sources))


def is_head(node: ast.stmt) -> bool:
    """Whether a statement is a docstring, an import, or a block of imports for the type checker."""
    return is_text(node) or is_typing_block(node) or isinstance(node, ast.Import | ast.ImportFrom)


def is_text(node: ast.stmt) -> bool:
    """Whether a statement is a text that stands alone: a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_typing_block(node: ast.stmt) -> bool:
    """Whether a statement is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def measure_imports(house: House, sources: list[Source]) -> None:
    """Find import cycles (strongly connected components of the import graph), and imports hidden in `import_module`.

    Imports inside functions count. Imports for the type checker count, as they do in the import contracts: whoever reads
    one file needs the other. A literal `import_module("linger.…")` counts as an import and, separately, as a hidden one.
    """
    graph = nx.DiGraph()
    modules = {source.module for source in sources}
    hidden = []
    for source in sources:
        # A package with a __getattr__ loads its public names on first use. The imports that show these names to the type
        # checker are its table of contents: the package itself uses none of them.
        is_lazy = any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in source.tree.body)
        for node in (n for top in source.tree.body if not (is_lazy and is_typing_block(top)) for n in ast.walk(top)):
            graph.add_edges_from((source.module, target) for target in imported_modules(node, modules))
            name = dynamic_import(node)
            if name.partition(".")[0] in modules:
                hidden.append(f"{source.path}:{getattr(node, 'lineno', 0)} -> {name}")
                # An f-string loads whatever is in a folder (the commands, the ops) and so depends on none of it.
                graph.add_edges_from([(source.module, name)] if name in modules else [])
    cycles = sorted(sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1)
    house.measures["import cycles"] = len(cycles)
    house.measures["modules in import cycles"] = sum(map(len, cycles))
    house.measures["hidden imports"] = sum("*" not in place for place in hidden)
    house.places |= {"cycles": [", ".join(cycle) for cycle in cycles], "hidden imports": hidden}


def imported_modules(node: ast.AST, modules: set[str]) -> list[str]:
    """The modules of the tree that an import statement names; `from package import module` names the module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name in modules]
    if isinstance(node, ast.ImportFrom) and node.module in modules:
        inner = (f"{node.module}.{alias.name}" for alias in node.names)
        return [name if name in modules else node.module for name in inner]
    return []


def dynamic_import(node: ast.AST) -> str:
    """The literal name in a call of `import_module` or `__import__`, with * for the open parts of an f-string, or ""."""
    if not isinstance(node, ast.Call) or not node.args:
        return ""
    if ast.unparse(node.func).rpartition(".")[2] not in {"import_module", "__import__"}:
        return ""
    name = node.args[0]
    pieces = name.values if isinstance(name, ast.JoinedStr) else [name]
    return "".join(str(piece.value) if isinstance(piece, ast.Constant) else "*" for piece in pieces)


def measure_complexity(house: House, sources: list[Source]) -> None:
    """Count the functions and methods with a cyclomatic complexity over 10, as radon counts it, in percent of all.

    Radon leaves an inner function out of the one around it. Here one that is over 10 counts as well, but in percent of the
    functions and methods only, so that small inner functions do not lower the share.
    """
    over: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    places = []
    for source in sources:
        blocks = cc_visit_ast(source.tree)
        inner = add_inner_blocks(blocks)
        high = [b for b in inner if b.letter != "C" and b.complexity > COMPLEXITY_LIMIT]  # C: a class as a whole
        totals[source.package] += sum(block.letter != "C" for block in blocks)
        over[source.package] += len(high)
        places += [(f.complexity, f"{source.path}:{f.lineno} {f.name}") for f in high]
    house.add_shares("complexity over 10", over, totals)
    house.places["complexity"] = [f"{number} {place}" for number, place in sorted(places, reverse=True)]


def measure_classes(house: House, sources: list[Source]) -> None:
    """Count the classes whose name has no leading underscore, inner ones included."""
    classes = [
        f"{source.path}:{node.lineno} {node.name}"
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    house.measures["public classes"] = len(classes)
    house.places["public classes"] = classes


def measure_tests(house: House, root: Path) -> None:
    """Count the test files that import anything of the package but its public names, in percent of all.

    Public is what the package or a subpackage with a stub (`__init__.pyi`) offers, and the modules in OPEN_MODULES.
    """
    stubs = (stub.parent.relative_to(root.parent).parts for stub in root.rglob("__init__.pyi"))
    public = {".".join(parts) for parts in stubs} | {f"{root.name}.{name}" for name in OPEN_MODULES}
    files = sorted((root.parent.parent / "tests").rglob("test_*.py"))
    inside = []
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        modules = {name for node in ast.walk(tree) for name in modules_named(node)}
        if any(name.partition(".")[0] == root.name and name not in public for name in modules):
            inside.append(file.relative_to(root.parent.parent).as_posix())
    house.measures["tests that import internals, %"] = percent(len(inside), len(files))
    house.places["tests that import internals"] = inside


def modules_named(node: ast.AST) -> list[str]:
    """The modules that an import statement names as such."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


def measure_any(house: House, sources: list[Source]) -> None:
    """Count the annotations of parameters and results that are exactly `Any`, in percent of all of them."""
    bare: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    places = []
    for source in sources:
        written = [ast.unparse(annotation) for annotation in annotations_of(source.tree)]
        number = sum(text in {"Any", "typing.Any", "'Any'"} for text in written)
        totals[source.package] += len(written)
        bare[source.package] += number
        places += [(number, source.path)] if number else []
    house.add_shares("bare Any", bare, totals)
    house.places["bare Any"] = [f"{number} {path}" for number, path in sorted(places, reverse=True)]


def annotations_of(tree: ast.Module) -> Iterator[ast.expr]:
    """The annotations of all parameters and results in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield node.annotation
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            yield node.returns


def measure_duplicates(house: House, sources: list[Source]) -> None:
    """Count the pairs of places that share at least six equal lines in a row.

    Lines are compared without their indentation; imports, docstrings, comments, blank lines and lone brackets are left out
    first. A shared run counts once, however long it is; a run that overlaps itself does not count.
    """
    code = {source.path: code_lines(source) for source in sources}
    windows: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for path, lines in code.items():
        for start in range(len(lines) - SHARED_LINES + 1):
            windows[tuple(text for _, text in lines[start : start + SHARED_LINES])].append((path, start))
    pairs = []
    for (one, i), (two, j) in (pair for places in windows.values() for pair in combinations(places, 2)):
        is_inside_a_run = i > 0 and j > 0 and code[one][i - 1][1] == code[two][j - 1][1]
        if not is_inside_a_run and (one != two or j - i >= SHARED_LINES):
            pairs.append((f"{one}:{code[one][i][0]}", f"{two}:{code[two][j][0]}"))
    house.measures["duplicates, pairs of places"] = len(pairs)
    house.measures["duplicates not within ops"] = sum(not all(p.startswith("ops/") for p in pair) for pair in pairs)
    house.places["duplicates"] = sorted(" ~ ".join(pair) for pair in pairs)


def code_lines(source: Source) -> list[tuple[int, str]]:
    """The lines of a file that count for duplicates, each with its number."""
    left_out: set[int] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.stmt) and (is_text(node) or isinstance(node, ast.Import | ast.ImportFrom)):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    numbered = [(n, line.strip()) for n, line in enumerate(source.lines, 1) if n not in left_out]
    return [(n, text) for n, text in numbered if any(map(str.isalnum, text)) and not text.startswith("#")]


def measure_walks(house: House, root: Path) -> None:
    """Count files, hops and loaded model files of the walks in `walks.py`, and the public names, in a process of its own."""
    paths = os.pathsep.join([str(root.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve().with_name("walks.py")), str(root)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"The walks failed; --static leaves them out.\n{done.stderr}")
    measured = json.loads(done.stdout.splitlines()[-1])
    house.measures |= measured["names"]
    for name, (files, hops, loads) in measured["walks"].items():
        house.measures |= {f"walk {name}, files": len(files), f"walk {name}, hops": hops, f"walk {name}, loads": loads}
        house.places[f"walk {name}"] = files


def measure_files(root: Path) -> House:
    """All measures that do not import the tree."""
    house, sources = House(), read_sources(root)
    measure_sizes(house, sources)
    measure_heads(house, sources)
    measure_imports(house, sources)
    measure_complexity(house, sources)
    measure_any(house, sources)
    measure_classes(house, sources)
    measure_tests(house, root)
    measure_duplicates(house, sources)
    return house


def rows(houses: list[House]) -> Iterable[str]:
    """The table: a line per measure with a column per house, the target, and a mark where the last house misses it."""
    missed = houses[-1].missed()
    names = dict.fromkeys(name for house in houses for name in house.measures)
    kinds = [*dict.fromkeys(map(kind_of, names))]
    for name in sorted(names, key=lambda name: (kinds.index(kind_of(name)), name.removesuffix(", %"))):
        values = (house.measures.get(name) for house in houses)
        cells = "".join(f"{'-' if value is None else format(value, '.7g'):>10}" for value in values)
        target = f"   at most {target_of(name):g}" if target_of(name) < float("inf") else ""
        yield f"{name:<40}{cells}{target}{', missed' if name in missed else ''}"


def kind_of(name: str) -> str:
    """The name of a measure without its folder or package."""
    return name.removesuffix(", %").partition(" in ")[0]


def main() -> None:
    """Measure a tree and print the result."""
    parser = argparse.ArgumentParser(description="Measure the architecture of a source tree.")
    default = Path(__file__).resolve().parent.parent / "src" / "linger"
    parser.add_argument("tree", nargs="?", type=Path, default=default, help="the folder of the package, src/linger")
    parser.add_argument("--json", action="store_true", help="print JSON, which --compare reads")
    parser.add_argument("--compare", type=Path, metavar="BEFORE.json", help="print the numbers in this file beside")
    parser.add_argument("--offenders", action="store_true", help="list the places behind the numbers")
    parser.add_argument("--static", action="store_true", help="leave out the walks and the public names")
    given = parser.parse_args()
    root = given.tree.resolve()
    house = measure_files(root)
    if not given.static:
        measure_walks(house, root)
    if given.json:
        print(json.dumps(asdict(house), indent=1))
        return
    before = [House(**json.loads(given.compare.read_text(encoding="utf-8")))] if given.compare else []
    print("\n".join(rows([*before, house])))
    for kind, places in house.places.items() if given.offenders else ():
        print(f"\n{kind} ({len(places)})", *places, sep="\n  ")


if __name__ == "__main__":
    main()
