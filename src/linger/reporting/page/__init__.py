# SPDX-License-Identifier: Apache-2.0
"""The report as one self-contained HTML page."""

from linger.reporting.page.rendering import inline_frame, render_page

__all__ = ["inline_frame", "render_page"]
