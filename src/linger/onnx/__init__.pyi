# SPDX-License-Identifier: Apache-2.0
"""The public names of linger.onnx and where each lives: read by type checkers, and by linger.lazy_exports on import."""

from linger.onnx.comparison import compare as compare
from linger.onnx.exporter.export import export as export
from linger.onnx.exporter.export import export_debug as export_debug
from linger.onnx.operators.operator import attach_bodies as attach_bodies
from linger.onnx.operators.operator import operator as operator
from linger.onnx.operators.operator import translation_table as translation_table
