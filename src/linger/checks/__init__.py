# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a file (check), and putting it right (repair). Never imports torch."""
