"""Dialect graphs as ONNX text, for repairs and checks."""

import re

from tests.support.onnx_text import parse, printed

DOMAINS = ', "thinker": 1'


def quantizing(body, *, inputs="float[n] x", outputs="float[n] y", extra="", domains=DOMAINS, opset=13):
    """A sorted model with dialect nodes; `Q16(x)` is a Quant at scale 16, `DQ16(x)` a Dequant."""
    model = parse(short(body), inputs=inputs, outputs=outputs, extra=extra, domains=domains, opset=opset)
    model.graph.sort()
    return model


def short(body):
    body = re.sub(r"\bQ(\d+)\((\w+)\)", r"thinker.Quant <data_bits: int = 8, scale_x: float = \1.0> (\2)", body)
    body = re.sub(r"\bDQ(\d+)\((\w+)\)", r"thinker.Dequant <scale_o: float = \1.0> (\2)", body)
    return re.sub(
        r"\bADD(\d+)\((\w+), (\w+)\)",
        r"thinker.iqAdd <scale_x: float = \1.0, scale_y: float = \1.0, scale_o: float = \1.0> (\2, \3)",
        body,
    )


def lines(model):
    """The nodes as short text: `Q16(x)`, `DQ16(x)`, `ADD16(x,y)` for the usual ones."""
    return [_shortened(line) for line in printed(model)]


def _shortened(line):
    line = re.sub(r"thinker\.Quant<data_bits:int=8,scale_x:float=(\d+)>", r"Q\1", line)
    line = re.sub(r"thinker\.Dequant<scale_o:float=(\d+)>", r"DQ\1", line)
    line = re.sub(r"thinker\.iqAdd<scale_x:float=(\d+),scale_y:float=\1,scale_o:float=\1>", r"ADD\1", line)
    return re.sub(r"\[\w+\](?=\w+=)", "", line)
