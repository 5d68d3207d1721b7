"""A training run that can be recalled: handwritten digits, a small network, numpy, and the checkpoint hook.

    python examples/trainer/train.py --storage /tmp/digits --steps 400 --out /tmp/digits.json

Whatever happens in between (checkpoints on request, SIGTERM, a new start from the checkpoint), the weights at the end
are bit for bit those of a run that nobody disturbed: everything that a step depends on is either in the checkpoint
(weights, momentum, the generator of the dropout) or follows from the step itself (the order of the batches).

Exit codes: 0 done; 143 stopped by SIGTERM at a step boundary, so that nobody takes the run for a finished one.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from gpubank.hook import Hook

Array = NDArray[np.float64]

STOPPED: Final = 143
"""Exit code of a run that SIGTERM ended, as a shell reports it."""

CLASSES: Final = 10
TEST_IMAGES: Final = 297


@dataclass(frozen=True)
class Recipe:
    """What a run computes; a checkpoint of another recipe is refused."""

    seed: int
    hidden: int
    batch: int
    rate: float
    momentum: float = 0.9
    dropout: float = 0.1


@dataclass(frozen=True)
class Digits:
    """The images and labels, split once and for all."""

    images: Array
    labels: NDArray[np.int64]
    test_images: Array
    test_labels: NDArray[np.int64]

    @classmethod
    def load(cls) -> "Digits":
        """Read the 1,797 images of 8 x 8 that come with scikit-learn."""
        images, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(labels))
        images, labels = images[order] / 16.0, labels[order].astype(np.int64)
        return cls(images[TEST_IMAGES:], labels[TEST_IMAGES:], images[:TEST_IMAGES], labels[:TEST_IMAGES])


class Network:
    """One hidden layer, trained by momentum with dropout."""

    def __init__(self, recipe: Recipe, inputs: int) -> None:
        self.recipe = recipe
        self.random = np.random.default_rng([recipe.seed, 1])
        self.weights: dict[str, Array] = {
            "w1": self.random.normal(0.0, (2.0 / inputs) ** 0.5, (inputs, recipe.hidden)),
            "b1": np.zeros(recipe.hidden),
            "w2": self.random.normal(0.0, (2.0 / recipe.hidden) ** 0.5, (recipe.hidden, CLASSES)),
            "b2": np.zeros(CLASSES),
        }
        self.velocity = {name: np.zeros_like(value) for name, value in self.weights.items()}

    def train_step(self, images: Array, labels: NDArray[np.int64]) -> float:
        """Learn from one batch; return its loss."""
        keep = 1.0 - self.recipe.dropout
        mask = (self.random.random((len(labels), self.recipe.hidden)) < keep) / keep
        hidden, chances = self._forward(images, mask)
        rows = np.arange(len(labels))
        loss = float(-np.log(chances[rows, labels] + 1e-12).mean())
        chances[rows, labels] -= 1.0
        error = chances / len(labels)
        back = (error @ self.weights["w2"].T) * mask * (hidden > 0)
        self._update("w2", hidden.T @ error)
        self._update("b2", error.sum(axis=0))
        self._update("w1", images.T @ back)
        self._update("b1", back.sum(axis=0))
        return loss

    def evaluate(self, images: Array, labels: NDArray[np.int64]) -> tuple[float, float]:
        """Return loss and accuracy."""
        _, chances = self._forward(images, np.ones((1, 1)))
        loss = float(-np.log(chances[np.arange(len(labels)), labels] + 1e-12).mean())
        return loss, float((chances.argmax(axis=1) == labels).mean())

    def save(self, folder: Path, step: int) -> None:
        """Write everything that the next step depends on."""
        arrays = {**self.weights, **{f"velocity.{name}": value for name, value in self.velocity.items()}}
        for name, value in arrays.items():
            np.save(folder / f"{name}.npy", value)
        state = {"step": step, "recipe": asdict(self.recipe), "random": self.random.bit_generator.state}
        (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")

    def load(self, folder: Path) -> int:
        """Continue from a checkpoint; return its step. Raises ValueError if another recipe wrote it."""
        state: dict[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        if state["recipe"] != asdict(self.recipe):
            raise ValueError(f"checkpoint {str(folder)!r} is of recipe {state['recipe']}; use another --storage")
        for name in self.weights:
            self.weights[name] = np.load(folder / f"{name}.npy", allow_pickle=False)
            self.velocity[name] = np.load(folder / f"velocity.{name}.npy", allow_pickle=False)
        self.random.bit_generator.state = state["random"]
        return int(state["step"])

    def sha256(self) -> str:
        """Return a hash of every bit of the weights."""
        digest = hashlib.sha256()
        for name in sorted(self.weights):
            value = np.ascontiguousarray(self.weights[name])
            digest.update(f"{name} {value.dtype.str} {value.shape}\n".encode())
            digest.update(value.tobytes())
        return digest.hexdigest()

    def _forward(self, images: Array, mask: Array) -> tuple[Array, Array]:
        hidden = np.maximum(images @ self.weights["w1"] + self.weights["b1"], 0.0) * mask
        scores = hidden @ self.weights["w2"] + self.weights["b2"]
        scores -= scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        return hidden, chances / chances.sum(axis=1, keepdims=True)

    def _update(self, name: str, gradient: Array) -> None:
        self.velocity[name] = self.recipe.momentum * self.velocity[name] - self.recipe.rate * gradient
        self.weights[name] = self.weights[name] + self.velocity[name]


def batch_at(step: int, recipe: Recipe, images: int) -> NDArray[np.int64]:
    """Return the images of one step; every epoch has an order of its own, which follows from seed and epoch."""
    epoch, position = divmod(step, images // recipe.batch)
    order = np.random.default_rng([recipe.seed, 2, epoch]).permutation(images)
    return order[position * recipe.batch : (position + 1) * recipe.batch]


def train(hook: Hook, network: Network, digits: Digits, options: argparse.Namespace) -> bool:
    """Train up to the last step; False if SIGTERM ended it earlier."""
    latest = hook.latest()
    start = network.load(latest.path) if latest is not None else 0
    tell(f"resumed from step {start} ({latest.id})" if latest is not None else "started from step 0")
    for step in range(start, options.steps):
        chosen = batch_at(step, network.recipe, len(digits.labels))
        loss = network.train_step(digits.images[chosen], digits.labels[chosen])
        done = step + 1
        if options.step_time:
            time.sleep(options.step_time)
        if done % options.log_every == 0:
            tell(f"step {done} of {options.steps}: loss {loss:.4f}")
        request = hook.requested(done)
        if request is not None:
            saved = hook.save(done, lambda folder: network.save(folder, done), request)  # noqa: B023 - called at once
            tell(f"checkpoint at step {done} {'written' if saved else 'failed'}: {request.reason or 'asked for'}")
        elif options.save_every and done % options.save_every == 0:
            hook.save(done, lambda folder: network.save(folder, done))  # noqa: B023 - called at once
        if hook.stopping:
            tell(f"stopped by SIGTERM after step {done}")
            return bool(done == options.steps)
    return True


def write_result(path: Path, network: Network, digits: Digits, steps: int) -> None:
    """Write the weights as `<path>.npz` and what they are worth as JSON, each at once."""
    loss, accuracy = network.evaluate(digits.test_images, digits.test_labels)
    weights = path.with_suffix(".npz")
    scratch = weights.with_name(f".{weights.name}.tmp.npz")
    np.savez(scratch, allow_pickle=False, **network.weights)
    os.replace(scratch, weights)
    result = {
        "steps": steps,
        "loss": loss,
        "accuracy": accuracy,
        "weightsSha256": network.sha256(),
        "weights": weights.name,
    }
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(scratch, path)
    tell(f"done: loss {loss:.4f}, accuracy {accuracy:.4f}, weights {result['weightsSha256']}")


def tell(line: str) -> None:
    """Say where the run is."""
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run to the end, or to SIGTERM."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits, recallable at every step.")
    parser.add_argument("--storage", help="folder of the checkpoints; by default GPUBANK_HOOK_STORAGE")
    parser.add_argument("--steps", type=int, default=400, help="steps of the whole run")
    parser.add_argument("--step-time", type=float, default=0.0, metavar="SECONDS", help="sleep after each step")
    parser.add_argument("--save-every", type=int, default=0, metavar="STEPS", help="checkpoints of its own; 0 for none")
    parser.add_argument("--log-every", type=int, default=50, metavar="STEPS", help="steps between two lines of log")
    parser.add_argument("--out", type=Path, help="JSON file for the result; the weights go beside it as .npz")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=32, help="units of the hidden layer")
    parser.add_argument("--batch", type=int, default=50, help="images per step")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate")
    options = parser.parse_args(arguments)

    digits = Digits.load()
    recipe = Recipe(seed=options.seed, hidden=options.hidden, batch=options.batch, rate=options.rate)
    network = Network(recipe, digits.images.shape[1])
    # One thread: the order of additions in a matrix product, and so its last bit, may depend on their number.
    with (
        threadpool_limits(limits=1),
        Hook.from_env(**({"storage": options.storage} if options.storage else {})) as hook,
    ):
        if not train(hook, network, digits, options):
            return STOPPED
    if options.out is not None:
        write_result(options.out, network, digits, options.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
