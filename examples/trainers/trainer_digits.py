# SPDX-License-Identifier: Apache-2.0
"""Digits trained by the Hugging Face Trainer: five epochs in float, three as integers; writes trainer_digits.onnx and proves it.

python examples/trainers/trainer_digits.py
"""

import torch
from digits_data import BATCH, DigitsNet, picture, prove, training_data
from transformers import Trainer, TrainerCallback, TrainingArguments

import linger

torch.manual_seed(0)
data = training_data()
model = linger.init(linger.trace_layers(DigitsNet(), picture()))  # the transformation
schedule = linger.Schedule(model, float_steps=5 * len(data), freeze_ranges=7 * len(data))


class EachStep(TrainerCallback):
    """The callback."""

    def on_step_end(self, *_, **__):
        schedule.step()


def loss(scores, labels, **_):
    return torch.nn.functional.cross_entropy(scores, labels)


rows = [{"x": x, "labels": label} for x, label in data.dataset]
options = {"num_train_epochs": 8, "per_device_train_batch_size": BATCH, "learning_rate": 4e-3, "save_strategy": "no"}
plain = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "remove_unused_columns": False}
arguments = TrainingArguments("trainer-output", **options, **plain)
Trainer(model, arguments, train_dataset=rows, compute_loss_func=loss, callbacks=[EachStep()]).train()
prove(model, "trainer_digits.onnx")
