"""The findings of one subject of `linger.check`, without those that other subjects have about the same model."""

import onnx
import onnx_ir as ir

from linger.checks.findings import parameters, schemas, structure
from linger.checks.findings.schemas import without_weights
from linger.checks.findings.structure import problem_of

__all__ = ["findings_of", "problem_of", "without_weights"]

SUBJECTS = {
    "dequants": schemas.dequant_findings,
    "input ranges": parameters.input_range_findings,
    "names": structure.name_findings,
    "numbers": parameters.number_findings,
    "Q/DQ": schemas.qdq_findings,
    "saturation": schemas.saturation_findings,
    "scales": parameters.scale_findings,
    "schemas": schemas.schema_findings,
    "sizes": structure.size_findings,
    "structure": structure.structure_findings,
    "tensors": structure.tensor_findings,
    "usage": structure.usage_findings,
}


def findings_of(subject, model, **settings):
    """What `linger.check` finds on one subject in a model (onnx_ir or a ModelProto)."""
    proto = model if isinstance(model, onnx.ModelProto) else ir.to_proto(model)
    checked = structure.CheckedModel.of(ir.from_proto(proto) if model is proto else model)
    light = without_weights(proto)
    if subject == "propagation":
        return list(schemas.propagation_findings(checked, light))
    if subject == "onnx":
        return list(schemas.onnx_verdict(light, checked, **settings))
    if subject == "settings":
        return list(schemas.setting_findings(light, checked))
    return list(SUBJECTS[subject](checked, **settings))
