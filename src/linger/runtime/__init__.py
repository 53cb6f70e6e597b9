# SPDX-License-Identifier: Apache-2.0
"""Run a file: in stock ONNX Runtime (`Session`) or with the numpy reference (`Reference`). Never imports torch."""
