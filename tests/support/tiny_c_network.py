"""Hand-written folders as linger.c.export writes them: a network of two inputs, a stream, and broken ones."""

import hashlib
import json
from pathlib import Path

SCALE = 16.0

_HEADER = """
#ifndef TINY_H
#define TINY_H
#include <stdint.h>
#define TINY_ARENA_BYTES 16
#ifdef LINGER_PROOF
void linger_proof(int32_t tensor, const void *data, int32_t bytes);
#endif
void tiny_run(ARENA_const float *image, const int32_t *offset, float *scores, int8_t *raw);
void tiny_run_q(ARENA_const int8_t *image, const int32_t *offset, int8_t *scores, int8_t *raw);
#endif
"""

# y[c][p] = clamp(x[p]·w[c] + offset), kept as [p][c]; scores are sums over the pixels, raw is the first pixel
_SOURCE = """
#include "tiny.h"
extern const int8_t tiny_weights[3];
STATIC_ARENA
static int8_t clamp(int32_t v)
{
    return (int8_t)(v < -128 ? -128 : v > 127 ? 127 : v);
}
static int8_t quantized(float v)
{
    float scaled = v * 16.0f + 0.5f;
    int32_t whole = (int32_t)scaled;
    return clamp((float)whole > scaled ? whole - 1 : whole);
}
void tiny_run_q(ARENA_const int8_t *image, const int32_t *offset, int8_t *scores, int8_t *raw)
{
    int8_t *y = (int8_t *)arena;
    for (int p = 0; p < 4; p++) {
        for (int c = 0; c < 3; c++) {
            y[3 * p + c] = clamp(image[p] * tiny_weights[c] + offset[0]);
        }
    }
#ifdef LINGER_PROOF
    linger_proof(7, y, 12);
#endif
    for (int c = 0; c < 3; c++) {
        scores[c] = clamp(y[c] + y[3 + c] + y[6 + c] + y[9 + c]);
        raw[c] = y[c];
    }
#ifdef LINGER_PROOF
    {
        int8_t turned[3];
        turned[0] = scores[2];
        turned[1] = scores[0];
        turned[2] = scores[1];
        linger_proof(3, turned, 3);
    }
#endif
}
void tiny_run(ARENA_const float *image, const int32_t *offset, float *scores, int8_t *raw)
{
    int8_t x[4], q[3];
    for (int p = 0; p < 4; p++) {
        x[p] = quantized(image[p]);
    }
    tiny_run_q(PASS_x, offset, q, raw);
    for (int c = 0; c < 3; c++) {
        scores[c] = (float)q[c] / 16.0f;
    }
}
"""

_WEIGHTS = "#include <stdint.h>\nextern const int8_t tiny_weights[3];\nconst int8_t tiny_weights[3] = {1, -2, 3};\n"

_STREAM_HEADER = """
#ifndef ECHO_H
#define ECHO_H
#include <stdint.h>
typedef struct { int8_t last[2]; } echo_state;
void echo_reset(echo_state *state);
void echo_step(echo_state *state, ARENA_const float *frame, float *out);
void echo_step_q(echo_state *state, ARENA_const int8_t *frame, int8_t *out);
#ifdef LINGER_PROOF
void linger_proof(int32_t tensor, const void *data, int32_t bytes);
#endif
#endif
"""

# out = frame + the frame before, wrapped to a byte
_STREAM = """
#include "echo.h"
STATIC_ARENA
void echo_reset(echo_state *state)
{
    state->last[0] = 0;
    state->last[1] = 0;
}
void echo_step_q(echo_state *state, ARENA_const int8_t *frame, int8_t *out)
{
    int8_t *sum = (int8_t *)arena;
    for (int i = 0; i < 2; i++) {
        sum[i] = (int8_t)(frame[i] + state->last[i]);
        state->last[i] = frame[i];
        out[i] = sum[i];
    }
#ifdef LINGER_PROOF
    linger_proof(0, sum, 2);
#endif
}
void echo_step(echo_state *state, ARENA_const float *frame, float *out)
{
    int8_t x[2], q[2];
    for (int i = 0; i < 2; i++) {
        x[i] = (int8_t)(frame[i] * 16.0f);
    }
    echo_step_q(state, PASS_x, q);
    for (int i = 0; i < 2; i++) {
        out[i] = (float)q[i] / 16.0f;
    }
}
"""


def edge(name, c_name, shape, kind="float32", tensor=None):
    quantized = tensor and {"tensor": tensor, "type": "int8", "scale": SCALE}
    return {"name": name, "c_name": c_name, "shape": shape, "type": kind, "quantized": quantized}


def tiny_manifest(arena="static"):
    return {
        "format": "linger-c",
        "version": 1,
        "linger": "test",
        "name": "tiny",
        "arena": arena,
        "arena_bytes": 16,
        "sources": ["tiny.c", "tiny_weights.c"],
        "inputs": [edge("in/image*/", "image", [1, 1, 2, 2], tensor="x"), edge("offset", "offset", [1], "int32")],
        "outputs": [edge("scores\n", "scores", [1, 3], tensor="s"), edge("raw", "raw", [3], "int8")],
        "states": [],
        "tensors": [
            {"id": 7, "name": "y", "shape": [1, 3, 2, 2], "type": "int8", "order": [0, 2, 3, 1], "permutation": None},
            {"id": 3, "name": "s", "shape": [1, 3], "type": "int8", "order": [0, 1], "permutation": [2, 0, 1]},
        ],
        "model": {},
    }


def echo_manifest(arena="static"):
    return {
        **tiny_manifest(arena),
        "name": "echo",
        "sources": ["echo.c"],
        "inputs": [edge("frame", "frame", [1, 2], tensor="q")],
        "outputs": [edge("out", "out", [1, 2], tensor="sum")],
        "states": [{"name": "last"}],
        "tensors": [
            {"id": 0, "name": "sum", "shape": [1, 2], "type": "int8", "order": [0, 1], "permutation": None},
        ],
    }


def _with_arena(text, arena):
    if arena == "caller":
        return (
            text.replace("ARENA_const", "void *arena, const").replace("PASS_x", "arena, x").replace("STATIC_ARENA", "")
        )
    text = text.replace("STATIC_ARENA", "static int8_t arena[16];")
    return text.replace("ARENA_const", "const").replace("PASS_x", "x")


def write(folder: Path, manifest, files) -> Path:
    """Write the files and a manifest with their digests."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "files": digests}), encoding="utf-8")
    return folder


def tiny_files(arena="static"):
    return {
        "tiny.h": _with_arena(_HEADER, arena),
        "tiny.c": _with_arena(_SOURCE, arena),
        "tiny_weights.c": _WEIGHTS,
    }


def write_tiny(folder: Path, arena="static", *, manifest=None, change=lambda text: text) -> Path:
    """The network of two inputs; `change` edits its C file before the digests are made."""
    files = tiny_files(arena)
    files["tiny.c"] = change(files["tiny.c"])
    return write(folder, manifest or tiny_manifest(arena), files)


def write_echo(folder: Path, arena="static") -> Path:
    """The streaming network."""
    files = {"echo.h": _with_arena(_STREAM_HEADER, arena), "echo.c": _with_arena(_STREAM, arena)}
    return write(folder, echo_manifest(arena), files)
