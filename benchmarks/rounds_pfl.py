"""FedAvg on Fashion-MNIST with Apple's simulator pfl, one round per line of standard input.

Prints one JSON line when everything is prepared, {"ready": true, "pfl": VERSION}; then, for every line that arrives on
standard input, runs one round and prints {"cpu": SECONDS, "accuracy": SHARE}: the process's CPU time of the round,
evaluation included, and the sample-weighted test accuracy of the new global model.

A round: every client trains two epochs (batches of 64, SGD 0.05) from the global model, the server averages the models
weighted by their numbers of training samples, and the average is evaluated on the test samples of all clients.

Set up as pfl's own image classification benchmark is: data in memory, ``WeightByDatapoints``, a central SGD optimizer
with learning rate 1, and evaluation by ``CentralEvaluationCallback``. (Evaluation by validation users would oblige pfl
to evaluate each client's training data too, before and after training.) pfl does not shuffle a client's samples: the
batches are those of the split's order in every epoch.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from pathlib import Path

import numpy as np
import pfl
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

CLIENTS = 10
BATCH = 64


class Network(nn.Sequential):
    """The convolutional network (582,026 parameters), with the two methods that pfl calls."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(1024, 512),
            nn.ReLU(inplace=True),
            nn.Linear(512, 10),
        )

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """What a client minimises."""
        return nn.functional.cross_entropy(self(images), labels)

    @torch.no_grad()
    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Weighted]:
        """What the evaluation adds up over the batches."""
        correct = (self(images).argmax(1) == labels).sum().item()
        return {"accuracy": Weighted(correct, len(labels))}


class FedAvg(FederatedAveraging):
    """FedAvg that counts from 1: in round 0 pfl always evaluates the training data, and never the central test data."""

    def __init__(self) -> None:
        super().__init__()
        self._current_central_iteration = 1


class Rounds(CentralEvaluationCallback):
    """Evaluates and reports after every round, then holds the next one until a line arrives."""

    def __init__(self, test: PyTorchTensorDataset, warmup: bool) -> None:
        super().__init__(test, NNEvalHyperParams(local_batch_size=BATCH))
        self._warmup = warmup
        self._start = 0.0

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Without a warm-up, holds the first round too."""
        self._initial = model.get_parameters()
        if not self._warmup:
            say(ready=True, pfl=pfl.__version__)
            if not self._wait():
                raise SystemExit
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Evaluates the new global model; after the warm-up round, puts the initial one back."""
        _, metrics = super().after_central_iteration(aggregate_metrics, model, central_iteration=central_iteration)
        cpu = time.process_time() - self._start
        if self._warmup:
            self._warmup = False
            model.set_parameters(self._initial)
            say(ready=True, pfl=pfl.__version__)
        else:
            say(cpu=cpu, accuracy=metrics["Central val | accuracy"].overall_value)
        return not self._wait(), metrics

    def _wait(self) -> bool:
        """Waits for a line, then starts the clock; False at the end of the input."""
        line = sys.stdin.readline()
        self._start = time.process_time()
        return bool(line)


def say(**message: object) -> None:
    """Prints a line of JSON."""
    print(json.dumps(message), flush=True)


def read_idx(folder: Path, kind: str, header: int) -> np.ndarray:
    """The bytes of the training file and of the test file of one kind, one after the other."""
    parts = [gzip.decompress((folder / f"{part}-{kind}-ubyte.gz").read_bytes()) for part in ("train", "t10k")]
    return np.concatenate([np.frombuffer(part, np.uint8, offset=header) for part in parts])


def load(folder: Path, split: Path) -> tuple[list[PyTorchTensorDataset], PyTorchTensorDataset]:
    """The clients' training data, and the test data of all clients together."""
    images = read_idx(folder, "images-idx3", 16).reshape(-1, 1, 28, 28)
    labels = read_idx(folder, "labels-idx1", 8)

    def dataset(indices: np.ndarray, user: str | None = None) -> PyTorchTensorDataset:
        pixels = torch.from_numpy(images[indices]).float() / 127.5 - 1
        return PyTorchTensorDataset((pixels, torch.from_numpy(labels[indices]).long()), user_id=user)

    with np.load(split) as lists:
        train = [dataset(lists[f"train{client}"], str(client)) for client in range(CLIENTS)]
        test = dataset(np.concatenate([lists[f"test{client}"] for client in range(CLIENTS)]))
    return train, test


def main() -> None:
    """Prepares everything and hands over to pfl's own loop."""
    parser = argparse.ArgumentParser(description="FedAvg on Fashion-MNIST with pfl, one round per line of input.")
    parser.add_argument("--images", type=Path, required=True, help="folder of Fashion-MNIST's four idx .gz files")
    parser.add_argument("--split", type=Path, required=True, help="npz file of index lists train0.. and test0..")
    parser.add_argument("--warmup", action="store_true", help="first run one untimed round, then undo it")
    parser.add_argument("--channels-last", action="store_true", help="the layout that suits a CPU; not pfl's default")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    np.random.seed(options.seed)

    train, test = load(options.images, options.split)
    clients = FederatedDataset(train.__getitem__, get_user_sampler("minimize_reuse", range(CLIENTS)))
    network = Network()
    if options.channels_last:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    FedAvg().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=sys.maxsize,
            evaluation_frequency=sys.maxsize,  # of the clients' own data, that is: never
            train_cohort_size=CLIENTS,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=clients, val_data=clients, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(
            network,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(local_num_epochs=2, local_learning_rate=0.05, local_batch_size=BATCH),
        callbacks=[Rounds(test, options.warmup)],
        send_metrics_to_platform=False,  # would print them
    )


if __name__ == "__main__":
    main()
