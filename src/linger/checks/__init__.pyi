# SPDX-License-Identifier: Apache-2.0
"""The public names of linger.checks and where each lives: read by type checkers, and by linger.lazy_exports on import."""

from linger.checks import repair_rules as repair_rules
from linger.checks.limits.target_findings import target_findings as target_findings
from linger.checks.proto_repair import repair_proto as repair_proto
