"""The models that fuzzing starts from, and every input that once broke something."""

from pathlib import Path

import onnx

CORPUS = Path(__file__).parent / "corpus"
GOLDEN = CORPUS.parent.parent / "golden"
OF_GOLDEN = (
    "net_residual",
    "net_se",
    "lstm_fwd",
    "iqcat_three",
    "linear_3d",
    "conv2d_k3p1",
    "layernorm_2d",
    "requant_8to16",
)


def content(path: Path) -> bytes:
    """The bytes that a file of the corpus stands for: ONNX text is parsed, anything else is taken as it is."""
    if path.suffix == ".txt":
        made: bytes = onnx.parser.parse_model(path.read_text()).SerializeToString(deterministic=True)
        return made
    return path.read_bytes()


def corpus() -> dict[str, bytes]:
    """Every input of the corpus, by name."""
    return {path.name: content(path) for path in sorted(CORPUS.iterdir()) if path.suffix in (".txt", ".bin")}


def seeds() -> dict[str, bytes]:
    """The corpus, and a few models of the golden vectors."""
    return corpus() | {name: (GOLDEN / f"{name}.onnx").read_bytes() for name in OF_GOLDEN}
