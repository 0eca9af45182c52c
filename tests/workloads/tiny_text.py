"""A training job that has nothing to do with pictures: tell questions from statements, letter by letter.

An example of the Workload protocol for `autotune probe --workload tests.workloads.tiny_text:create`. It owns a
small transformer, its data and its two knobs, batch_size and gradient_checkpointing.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from autotune.device.session import DeviceSession
from autotune.ladder.plan import Plan, Recipe
from autotune.trial.workload import Job, Report

QUESTIONS = (
    "Where does the river meet the sea?",
    "Who left the gate open last night?",
    "How many lamps does the harbour need?",
    "Is the bread still warm?",
    "Why did the engine stop at the hill?",
    "Can you hear the rain on the roof?",
    "When will the ferry come back?",
    "Which of the two paths is shorter?",
)
STATEMENTS = (
    "The river meets the sea behind the dunes.",
    "Somebody left the gate open last night.",
    "The harbour needs forty lamps.",
    "The bread is still warm.",
    "The engine stopped because it ran dry.",
    "Rain falls on the roof all day.",
    "The ferry will come back at noon.",
    "The path along the wall is shorter.",
)
LETTERS = 128  # ASCII


def create(config: Mapping[str, Any]) -> "TinyText":
    """The factory. Keys, all optional: batch_size, gradient_checkpointing, width, layers, length, steps, seed,
    output_dir (where `train` writes its model)."""
    return TinyText(config)


class TinyText:
    """The workload. Making it uses no device."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.width = int(config.get("width", 64))
        self.layers = int(config.get("layers", 4))
        self.length = int(config.get("length", 64))
        self.steps = int(config.get("steps", 20))
        self.seed = int(config.get("seed", 0))
        self.batch_size = int(config.get("batch_size", 16))
        self.checkpointing = bool(config.get("gradient_checkpointing", False))
        self.output_dir = Path(config.get("output_dir", "."))

    def job(self) -> Job:
        plan = Plan.of(batch_size=self.batch_size, gradient_checkpointing=self.checkpointing)
        workload = {"family": "tiny-text", "width": self.width, "layers": self.layers, "length": self.length}
        return Job("tiny-text", workload, Recipe(plan, effective_batch=self.batch_size))

    def open(self, plan: Plan, device: DeviceSession) -> "TextSession":
        return TextSession(self, plan, device)

    def train(self, plan: Plan, device: DeviceSession, report: Report) -> Mapping[str, Any]:
        """Train and write `tiny-text.pt`; reports the loss of each step."""
        with device.scope():
            session = TextSession(self, plan, device)
            for number in range(1, self.steps + 1):
                session.step()
                report({"phase": "train", "step": number, "of": self.steps, "loss": session.loss})
            target = self.output_dir / "tiny-text.pt"
            _save(device.evict(session.model).state_dict(), target)
            session.close()
        return {"files": [str(target)], "steps": self.steps, "loss": session.loss}


class TextSession:
    """The model, its optimizer and one logical batch on the device."""

    phases_before: Sequence[str] = ()
    phases_after: Sequence[str] = ("evaluate",)

    def __init__(self, workload: TinyText, plan: Plan, device: DeviceSession) -> None:
        self.device = device
        self.plan = plan
        self.loss = float("nan")
        torch.manual_seed(workload.seed)
        with device.host():
            model = TextModel(workload.width, workload.layers, workload.length, plan.gradient_checkpointing)
            tokens, labels = _draw_batch(workload.batch_size, workload.length)
        self.model = device.place(model)
        self.tokens, self.labels = device.place(tokens), device.place(labels)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)

    def run_phase(self, name: str) -> None:
        """`evaluate`: the whole batch at once, without gradients."""
        with torch.no_grad():
            self.model(self.tokens)

    def step(self) -> None:
        """One optimizer step over the logical batch; each microbatch weighs as many samples as it holds."""
        total = 0.0
        self.optimizer.zero_grad(set_to_none=True)
        micro = self.plan.batch_size
        for tokens, labels in zip(self.tokens.split(micro), self.labels.split(micro), strict=True):
            loss = cross_entropy(self.model(tokens), labels) * (len(labels) / len(self.labels))
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.loss = total

    def close(self) -> None:
        self.device.evict(self.model)
        del self.optimizer, self.model, self.tokens, self.labels


class TextModel(nn.Module):
    """A pre-norm transformer over letters with a mean-pooled head: tokens [batch, length] -> logits [batch, 2]."""

    def __init__(self, width: int, layers: int, length: int, checkpointing: bool) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.letters = nn.Embedding(LETTERS, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.letters(tokens) + self.positions
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.checkpointing else block(hidden)
        return self.head(hidden.mean(dim=1))


def _draw_batch(size: int, length: int) -> tuple[Tensor, Tensor]:
    """`size` sentences as letters [size, length], without the mark that gives them away, and 1 for questions."""
    pairs = [pair for q, s in zip(QUESTIONS, STATEMENTS, strict=True) for pair in ((q, 1), (s, 0))]
    chosen = [pairs[index % len(pairs)] for index in range(size)]
    rows = [[ord(letter) for letter in text.rstrip("?.").ljust(length)[:length]] for text, _ in chosen]
    return torch.tensor(rows), torch.tensor([label for _, label in chosen])


def _save(state: Mapping[str, Tensor], target: Path) -> None:
    """Write beside the target, then rename: a half-written model never carries the final name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    torch.save(state, partial)
    partial.replace(target)
