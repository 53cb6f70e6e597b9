"""The deployment side where torch is not installed, or is kept away."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.hostile import dialect

SOURCE = Path(__file__).resolve().parent.parent / "src" / "linger"
PACKAGES = ("graph", "checks", "runtime", "verification", "reporting")
TORCH_COMMANDS = ("analyse", "model_argument")
"""Files of the command line that read checkpoints and torch models."""

WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "onnxscript", "safetensors", "sklearn", "matplotlib"):
            raise ModuleNotFoundError(f"{name} is kept away", name=name)

sys.meta_path.insert(0, NoTorch())
"""


def modules():
    """Every module of the deployment side."""
    files = [file for package in PACKAGES for file in sorted((SOURCE / package).rglob("*.py"))]
    files += [f for f in sorted((SOURCE / "cli").glob("*.py")) if f.stem not in TORCH_COMMANDS]
    files += sorted((SOURCE / "ops").glob("*.py"))
    names = [".".join(file.relative_to(SOURCE.parent).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names]


def run(code, *arguments):
    """The last line that a process without torch prints."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH + code, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


def test_there_is_no_torch_where_there_must_not_be():
    if os.environ.get("LINGER_REQUIRE_NO_TORCH") == "1":
        assert importlib.util.find_spec("torch") is None


def test_every_module_of_the_deployment_side_imports_without_torch():
    assert len(modules()) > 80
    code = "import importlib\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint('torch' in sys.modules)"
    assert run(code, *modules()) == "False"


USE = """
import json
from pathlib import Path
import linger
from linger.verification.feeds import generated_feeds

path = Path(sys.argv[1])
session = linger.Session(path)
(y,) = session.run(None, generated_feeds(session, 0))
mended = linger.fix_dequant(path, True)
done = {
    "session": str(y.dtype),
    "fix_dequant": [mended.ok, mended.path.name],
    "parser_dequant": type(linger.parser_dequant(path.read_bytes(), False)).__name__,
}
if hasattr(linger, "check"):
    done["check"] = linger.check(path).ok
if hasattr(linger, "compare"):
    done["compare"] = linger.compare(path, mended.path).ok
if hasattr(linger, "vectors"):
    done["vectors"] = linger.vectors(path, path.with_name("vectors")) is not None

import linger.cli
for command in ("inspect", "run", "verify", "fix"):
    sys.argv = ["linger", command, str(path)]
    try:
        linger.cli.main()
    except SystemExit as end:
        done[command] = end.code or 0
print(json.dumps(done))
"""


MISSING = """
import re
import linger
for name in ("init", "wb_analyse", "Dumper", "NormalizeConv2d", "record"):
    try:
        getattr(linger, name)
    except linger.UsageError as error:
        assert re.match(f"linger.{name} needs (torch|safetensors), which is not installed", str(error)), error
    else:
        raise AssertionError(name)
try:
    linger.onnx.export
except linger.UsageError as error:
    assert "linger.onnx.export needs torch" in str(error)

import contextlib, pathlib, tempfile
import linger.cli
sys.stderr = sys.stdout
with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
    for name in ("x.pth", "x.py"):
        pathlib.Path(name).touch()  # a file that is not there would be told first
    for arguments in (["weights", "x.pth"], ["layers", "x.py:net", "--shape", "1x2"]):
        sys.argv = ["linger", "analyse", *arguments]
        try:
            linger.cli.main()
        except SystemExit as end:
            assert end.code == 2, end.code
"""


def test_what_needs_torch_says_so_in_a_sentence():
    # whichever of the two is imported first
    assert run(MISSING).replace("safetensors", "torch") == (
        "linger: linger analyse needs torch, which is not installed. "
        "Install linger with the extra 'torch': pip install 'linger-nn[torch]'."
    )


def test_a_file_is_run_and_mended_without_torch(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(dialect().SerializeToString())
    done = json.loads(run(USE, path))
    assert done["session"] == "float32"
    assert done["fix_dequant"] == [True, "m_fix.onnx"]
    assert done["parser_dequant"] == "Model"
    assert all(done.get(name, True) for name in ("check", "compare", "vectors"))
    assert [done[command] for command in ("inspect", "run", "verify", "fix")] == [0, 0, 0, 0]
