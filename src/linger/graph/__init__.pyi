# SPDX-License-Identifier: Apache-2.0
"""The public names of linger.graph and where each lives: read by type checkers, and by linger.lazy_exports on import."""

from linger.graph.editing.edit import insert as insert
from linger.graph.editing.edit import remove as remove
from linger.graph.editing.edit import replace as replace
from linger.graph.editing.models import change_opset as change_opset
from linger.graph.editing.models import extract as extract
from linger.graph.editing.models import merge as merge
from linger.graph.editing.models import new_model as new_model
from linger.graph.editing.search import find as find
from linger.graph.files.model_io import load as load
from linger.graph.files.model_io import save as save
from linger.graph.network import Network as Network
from linger.graph.passes.constants import fold_constants as fold_constants
from linger.graph.passes.dequants import fill_float_islands as fill_float_islands
from linger.graph.qdq.qdq_node import island_findings as island_findings
