"""Running a pass the way every pass must hold: twice, on a model whose interface and numbers stay."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from linger.checks import repair_rules
from tests.support.onnx_text import content

# where each pass lives is of no matter to the tests of passes that are rules
cancel_dq_q = repair_rules.RULES["cancel_dq_q"].apply
complete_types = repair_rules.RULES["complete_types"].apply
correct_types = repair_rules.RULES["correct_types"].apply
fill_float_islands = repair_rules.RULES["fill_float_islands"].apply
fix_versions = repair_rules.RULES["fix_versions"].apply
insert_dequant = repair_rules.RULES["insert_dequant"].apply
inline_functions = repair_rules.RULES["inline_functions"].apply
merge_duplicates = repair_rules.RULES["merge_duplicates"].apply
merge_initializers = repair_rules.RULES["merge_initializers"].apply
name_nodes = repair_rules.RULES["name_nodes"].apply
own_parameters = repair_rules.RULES["own_parameters"].apply
remove_dead_code = repair_rules.RULES["remove_dead_code"].apply
remove_dequant = repair_rules.RULES["remove_dequant"].apply
remove_identity = repair_rules.RULES["remove_identity"].apply
rescale_dequant = repair_rules.RULES["rescale_dequant"].apply
sort_nodes = repair_rules.RULES["sort_nodes"].apply
split_shared_zero_points = repair_rules.RULES["split_shared_zero_points"].apply

LEVELS = ("DISABLE_ALL", "ENABLE_EXTENDED", "ENABLE_ALL")


def parsed(text):
    """A model from whole ONNX text, functions included."""
    return ir.from_proto(onnx.parser.parse_model(text))


def interface(model):
    """Names, types and shapes of inputs and outputs, in order."""
    values = (*model.graph.inputs, *model.graph.outputs)
    return [(value.name, str(value.type), str(value.shape)) for value in values]


def computed(model, feeds, level="DISABLE_ALL"):
    """The outputs in stock ONNX Runtime."""
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {name: np.asarray(x) for name, x in feeds.items()})


def applied(function, model, **feeds):
    """The changes of a pass, as rows. With feeds, the numbers before and after must be the same, bit for bit.

    At each level, and not from one to another: integer kernels round otherwise than float ops, and some saturate.
    """
    before = [computed(model, feeds, level) for level in LEVELS] if feeds else []
    outside = interface(model)
    changes = function(model)
    once = content(model)
    assert interface(model) == outside
    assert function(model).rows() == []
    assert content(model) == once
    for level, numbers in zip(LEVELS, before, strict=bool(feeds)):
        for old, new in zip(numbers, computed(model, feeds, level), strict=True):
            assert old.dtype == new.dtype
            np.testing.assert_array_equal(old, new)
    return changes.rows()


def graph_text(model):
    """The main graph as text, without node names, spaces collapsed; inner graphs included."""
    proto = ir.to_proto(model)
    waiting = [proto.graph, *proto.functions]
    for graph in waiting:
        for node in graph.node:
            node.ClearField("name")
            waiting += [a.g for a in node.attribute if a.HasField("g")]
    text = onnx.printer.to_text(proto)
    return " ".join(text.split())


def body_of(model):
    """The nodes of the main graph, from the first brace to the last, as one line."""
    text = graph_text(model)
    return text[text.index("{") + 1 : text.rindex("}")].strip()
