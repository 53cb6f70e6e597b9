# SPDX-License-Identifier: Apache-2.0
"""Names of tensors and layers as names of files."""

from __future__ import annotations

import hashlib
import re

_UNSAFE = re.compile(r"[^\w.-]")
_LONGEST = 180
"""Bytes of a file name that a layer's name may take: a suffix and the atomic writer's additions fit into the usual 255."""


def file_stem(name: str) -> str:
    """A name as part of a file name: odd characters as %XX, a very long name cut and numbered by its hash.

    >>> file_stem("root.layer1.0.conv1"), file_stem("root.a/b c")
    ('root.layer1.0.conv1', 'root.a%2Fb%20c')
    """
    safe = _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode(errors="replace")), name)
    encoded = safe.encode()
    if len(encoded) <= _LONGEST:
        return safe
    return f"{encoded[:_LONGEST].decode(errors='ignore')}~{hashlib.sha256(encoded).hexdigest()[:8]}"
