# SPDX-License-Identifier: Apache-2.0
"""The report as one self-contained HTML page, and the verdict that stands at its top."""

from linger.reporting.page.rendering import inline_frame, render_page
from linger.reporting.page.verdict import LEVELS, NOT_READY, Verdict, verdict_of

__all__ = ["LEVELS", "NOT_READY", "Verdict", "inline_frame", "render_page", "verdict_of"]
