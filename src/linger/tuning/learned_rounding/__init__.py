# SPDX-License-Identifier: Apache-2.0
"""Learned rounding: integer weights by what they do to the output of a layer, not by what is nearest to each weight.

The goal is that of AdaRound (Nagel and others, Up or Down? Adaptive Rounding for Post-Training Quantization, 2020). It is reached
without gradients: errors are passed on to later columns by second moments of the inputs, as GPTQ does (Frantar and others, 2022).
"""
