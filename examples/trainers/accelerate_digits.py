# SPDX-License-Identifier: Apache-2.0
"""Digits trained by Accelerate: five epochs in float, three as integers; writes accelerate_digits.onnx and proves it.

python examples/trainers/accelerate_digits.py
"""

import accelerate
import torch
from digits_data import DigitsNet, picture, prove, training_data

import linger

accelerate.utils.set_seed(0)
accelerator = accelerate.Accelerator(cpu=True)
model = linger.init(linger.trace_layers(DigitsNet(), picture()))  # the transformation
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
together, optimizer, data = accelerator.prepare(model, optimizer, training_data())
schedule = linger.Schedule(model, float_steps=5 * len(data), freeze_ranges=7 * len(data))
together.train()
for _ in range(8):
    for pictures, labels in data:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.cross_entropy(together(pictures), labels))
        optimizer.step()
        schedule.step()  # the callback
if accelerator.is_main_process:
    prove(accelerator.unwrap_model(together), "accelerate_digits.onnx")
