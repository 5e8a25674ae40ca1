"""Networks as functions of flat vectors, the optimisers, the tasks, and one's own modules."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from learn2pfed.algorithms.base import Outcome
from learn2pfed.algorithms.fedavg import FedAvg
from learn2pfed.algorithms.fedper import FedPer, FedPerSettings
from learn2pfed.algorithms.local import Batch, Local, LocalSettings, Optimizer
from learn2pfed.data.federated import Samples
from learn2pfed.engines.plain import run_plain
from learn2pfed.engines.rounds import Simulator, run_rounds
from learn2pfed.errors import Learn2pFedError
from learn2pfed.models.modules import LSTM, build
from learn2pfed.models.network import Network, attach
from learn2pfed.tasks import Classification, Regression, Task

SHAPES = {"linear": (4,), "mlp": (4,), "lstm": (5,), "lenet": (3, 16, 16), "cnn-10-20": (1, 12, 12)}

SMALL = {"mlp": {"hidden": (6, 5)}, "lstm": {"hidden": 3}}


def network(name: str, n_outputs: int = 1, seed: int = 0) -> Network:
    return build(name, SHAPES[name], n_outputs, seed, **SMALL.get(name, {})).to(torch.float64)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clients(sizes: tuple[int, ...] = (9, 4, 2, 6), n_features: int = 4) -> Samples:
    return Samples.join([(f"c{i}", draw(n, n_features, seed=i), draw(n, seed=99 + i)) for i, n in enumerate(sizes)])


def at_home(network: Network, task: Task, n: int = 1, axis: bool = False) -> Local:
    """Clients whose rows do not matter."""
    return Local(network, task, torch.empty(0), torch.empty(0), (0,) * n, (1,) * n, tuple(range(n)), axis, 0, 0, 1)


def set_parameters(module: nn.Module, network: Network, flat: Tensor) -> None:
    views = network.unflatten(flat)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(views[name])


# networks by name


@pytest.mark.parametrize(
    ("name", "shape", "count", "in_head"),
    [
        ("lenet", (3, 32, 32), 62_006, 850),
        ("cnn-10-20", (1, 28, 28), 10_290, 5_010),
        ("cnn-32-64", (1, 28, 28), 582_026, 5_130),
        ("linear", (4,), 50, 50),
        ("mlp", (4,), 5 * 32 + 33 * 32 + 330, 330),
        ("lstm", (96,), 4 * 32 * (1 + 32 + 2) + 330, 330),
    ],
)
def test_networks_have_the_parameters_they_should(name: str, shape: tuple[int, ...], count: int, in_head: int) -> None:
    found = build(name, shape, 10)
    assert (found.n_parameters, int(found.is_head.sum())) == (count, in_head)
    assert found.scores(found.start, torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize("shape", [(7,), (7, 2)], ids=str)
def test_the_lstm_reads_a_series_to_its_end(shape: tuple[int, ...]) -> None:
    own = LSTM(1 if len(shape) == 1 else shape[1], 2, hidden=3).double()
    X = draw(4, *shape)
    series, (h, c) = X if X.ndim == 3 else X[..., None], torch.zeros(2, 4, 3, dtype=torch.float64)
    weights = dict(own.series.named_parameters())
    for x in series.unbind(1):
        driven = x @ weights["weight_ih_l0"].T + weights["bias_ih_l0"] + weights["bias_hh_l0"]
        i, f, g, o = (driven + h @ weights["weight_hh_l0"].T).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    torch.testing.assert_close(own(X), own.head(h), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("start", "count"), [("head", 850), ("layers.1", 11_014), ("layers.0", 59_134)])
def test_a_head_may_begin_at_any_layer(start: str, count: int) -> None:
    whole = build("lenet", (3, 32, 32), 10)
    found = attach(whole.module, start)
    assert int(found.is_head.sum()) == count
    assert torch.equal(found.start, whole.start)
    body, head = found.cut(found.start)
    assert torch.equal(found.join(body, head), found.start)


def test_a_head_begins_at_a_layer_that_there_is() -> None:
    with pytest.raises(
        Learn2pFedError, match=r"no layer 'fc3' with parameters; there are convolutions.0, conv.*, head"
    ):
        attach(build("lenet", (3, 32, 32), 10).module, "fc3")
    with pytest.raises(Learn2pFedError, match=r"'convolutions' is no layer but has some: start at conv.*0, conv.*1\.$"):
        attach(build("lenet", (3, 32, 32), 10).module, "convolutions")
    with pytest.raises(Learn2pFedError, match=r"no layer 7 with parameters; there are 0, 2"):
        attach(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)), 7)  # type: ignore[arg-type]
    with pytest.raises(Learn2pFedError, match=r"Linear has no layers with names to start at: put it into"):
        attach(nn.Linear(3, 2), "fc3")
    with pytest.raises(Learn2pFedError, match=r"attach takes an nn.Module, got str"):
        attach("lenet", "fc3")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("def net(shape, n):\n    raise KeyError('fc3')", "called with .* it says: KeyError: 'fc3'"),
        ("def net(shape, n):\n    return shape.fc3", "it says: AttributeError: "),
        ("def net(shape, n):\n    assert False", r"it says: AssertionError\.$"),
        ("def net(shape, n:\n", r"can't be imported \(SyntaxError: "),
        ("import os\nos.nowhere", r"can't be imported \(AttributeError: "),
        ("import sys\nsys.exit(0)", r"can't be imported \(SystemExit: 0"),
        ("import sys\ndef net(shape, n):\n    sys.exit()", "it says: SystemExit"),
        ("nothing", r"can't be imported \(NameError: name 'nothing'"),
    ],
)
def test_a_fault_in_ones_own_file_is_one_sentence(
    code: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"net_{hashlib.sha256(code.encode()).hexdigest()[:8]}"
    (tmp_path / f"{name}.py").write_text(code)
    with pytest.raises(Learn2pFedError, match=complaint):
        build(f"{name}:net", (3,), 2)


def test_a_seed_gives_the_same_network_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, again, other = (network("mlp", seed=seed).start for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


# flat vectors


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
def test_vectors_and_parameters_go_forth_and_back(name: str, lead: tuple[int, ...]) -> None:
    net = network(name)
    flat = draw(*lead, net.n_parameters)
    assert torch.equal(net.flatten(net.unflatten(flat)), flat)
    assert torch.equal(net.join(*net.cut(flat)), flat)
    assert net.cut(flat)[1].shape == (*lead, int(net.is_head.sum()))
    for parameter, view in net.unflatten(net.start).items():
        assert torch.equal(view, net.module.get_parameter(parameter)), parameter


def test_a_common_body_joins_the_heads_of_many() -> None:
    net = network("mlp")
    flat = draw(3, net.n_parameters)
    (body, _), (_, heads) = net.cut(flat[0]), net.cut(flat)
    joined = net.join(body, heads)
    assert torch.equal(joined[:, net.is_head], flat[:, net.is_head])
    assert torch.equal(joined[:, ~net.is_head], flat[:1, ~net.is_head].expand(3, -1))


def test_filters_lie_in_memory_with_their_channels_last() -> None:
    views = network("cnn-10-20").unflatten(network("cnn-10-20").start)
    assert views["convolutions.1.weight"].shape == (20, 10, 5, 5)
    assert views["convolutions.1.weight"].is_contiguous(memory_format=torch.channels_last)


def test_a_network_is_a_copy_and_its_start_is_its_own() -> None:
    module = nn.Sequential(nn.Linear(2, 1))
    net = Network(module, head="0")
    start = net.start.clone()
    nn.init.zeros_(module[0].weight)
    assert torch.equal(net.start, start)
    assert module[0].weight.requires_grad
    assert net.to(torch.float64).dtype == torch.float64
    assert net.dtype == torch.float32


def test_features_are_what_the_head_receives() -> None:
    for name in SHAPES:
        net, X = network(name, 2), draw(3, *SHAPES[name])
        head = {key.removeprefix("head."): v for key, v in net.unflatten(net.start).items() if key.startswith("head.")}
        scores = net.features(net.start, X) @ head["weight"].T + head["bias"]
        torch.testing.assert_close(net.scores(net.start, X), scores, rtol=0, atol=1e-14)


# gradients and steps


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("task", [Regression(), Classification(3)], ids=lambda task: task.metric)
def test_a_gradient_is_that_of_an_ordinary_module(name: str, task: Task) -> None:
    net = network(name, task.n_outputs)
    X, x = draw(6, *SHAPES[name]), net.start + 0.1 * draw(net.n_parameters)
    y = draw(6) if isinstance(task, Regression) else torch.arange(6) % 3
    module = net.module.requires_grad_(True)
    set_parameters(module, net, x)
    mean = nn.functional.mse_loss if isinstance(task, Regression) else nn.functional.cross_entropy
    found = torch.autograd.grad(mean(module(X).squeeze(-1), y), list(module.parameters()))
    expected = net.flatten(dict(zip(net.shapes, found, strict=True)))
    local, batch = at_home(net, task), Batch(X, y)
    torch.testing.assert_close(local.gradient(x, batch), expected, rtol=0, atol=1e-13)
    for part in ("body", "head"):
        expected_part = torch.where(net.mask(part), expected, 0.0)
        torch.testing.assert_close(local.gradient(x, batch, part), expected_part, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_many_clients_have_the_gradients_of_each(name: str) -> None:
    net, sizes = network(name), (5, 2, 1)
    x, X, y = draw(3, net.n_parameters), draw(3, 5, *SHAPES[name]), draw(3, 5)
    present = torch.arange(5) < torch.tensor(sizes)[:, None]
    weight = present / present.sum(-1, keepdim=True).double()
    assert net.runs_for_all_at_once(X[0])
    found = at_home(net, Regression(), 3, axis=True).gradient(x, Batch(X, y, weight))
    alone = at_home(net, Regression())
    expected = [alone.gradient(x[i], Batch(X[i, :n], y[i, :n])) for i, n in enumerate(sizes)]
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=1e-13)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["sgd", "sgd with momentum", "adam"])
def test_optimisers_are_torchs(kind: str, decay: float) -> None:
    momentum = 0.9 if "momentum" in kind else 0.0
    optimizer = Optimizer("adam" if kind == "adam" else "sgd", 0.05, momentum, decay)
    expected = draw(2, 4).requires_grad_()
    if kind == "adam":
        torchs: torch.optim.Optimizer = torch.optim.Adam([expected], 0.05, weight_decay=decay)
    else:
        torchs = torch.optim.SGD([expected], 0.05, momentum, weight_decay=decay)
    x = expected.detach().clone()
    memory = optimizer.fresh(x)
    for step in range(20):
        gradient = x.sin() + draw(2, 4, seed=step)
        x, memory = optimizer.step(x, gradient, memory)
        expected.grad = gradient
        torchs.step()
    torch.testing.assert_close(x, expected.detach(), rtol=0, atol=1e-12)


# one's own modules


class Recurrent(nn.Module):
    """What torch cannot run for several clients at once."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.series = nn.LSTM(1, 3, 2, batch_first=True, dropout=dropout)
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.series(x[..., None])[0][:, -1])
        return scores


class Scaled(nn.Module):
    """With a parameter that is a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 1)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scale * self.head(x)
        return scores


class Tied(nn.Module):
    """Two layers with the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.relu(self.two(torch.relu(self.one(x)))))
        return scores


class Idle(nn.Module):
    """With a layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(x)
        return scores


class Frozen(nn.Module):
    """With a layer that is not to be learned."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed, self.head = nn.Linear(4, 3).requires_grad_(False), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.fixed(x)))
        return scores


class Centred(nn.Module):
    """In which the score of a row depends on the other rows of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(x - x.mean(0))
        return scores


def both(algorithm: FedAvg | FedPer, data: Samples) -> Tensor:
    """The models, where both engines give the same."""
    found = run_rounds(algorithm, data).models
    torch.testing.assert_close(found, run_plain(algorithm, data).models, rtol=0, atol=1e-10)
    return found


def test_ones_own_module_shares_its_body_and_keeps_its_head() -> None:
    torch.manual_seed(0)
    net = Network(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double(), head="2")
    algorithm = FedPer(FedPerSettings(n_rounds=3, batch_size=4), net, Regression())
    assert Simulator(algorithm, clients()).axis
    bodies, heads = net.cut(both(algorithm, clients()))
    assert torch.equal(bodies, bodies[:1].expand_as(bodies))
    assert (heads[0] != heads[1]).all()


def test_what_cannot_run_for_all_at_once_runs_one_by_one() -> None:
    torch.manual_seed(0)
    algorithm = FedPer(FedPerSettings(n_rounds=2, batch_size=4), Network(Recurrent().double()), Regression())
    assert not Simulator(algorithm, clients()).axis
    assert torch.isfinite(both(algorithm, clients())).all()


def test_a_module_that_mixes_rows_is_refused() -> None:
    torch.manual_seed(0)
    algorithm = FedAvg(LocalSettings(n_rounds=2, batch_size=4), Network(Centred().double()), Regression())
    for run in (run_rounds, run_plain):
        with pytest.raises(Learn2pFedError, match="mixes the rows of a batch"):
            run(algorithm, clients())


@pytest.mark.parametrize("name", SHAPES)
def test_who_runs_for_all_at_once(name: str) -> None:
    assert network(name).runs_for_all_at_once(draw(2, *SHAPES[name])) == (name in ("linear", "mlp"))


@pytest.mark.parametrize("kind", [Scaled, Tied, Idle, Frozen])
def test_any_module_learns_as_torch_would_have_it_learn(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module, data = kind().double(), clients((5,))
    how = LocalSettings(n_rounds=1, batch_size=9, epochs=4, optimizer="sgd", lr=0.1)
    net = Network(module)
    found = run_rounds(FedAvg(how, net, Regression()), data).models[0]
    assert len(found) == sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        (module(data.X).squeeze(-1) - data.y).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(net.scores(found, data.X), module(data.X).detach(), rtol=0, atol=1e-12)


# bad input

OWN: dict[str, Callable[[], nn.Module]] = {
    r"Layer '1' \(BatchNorm1d\) keeps running statistics": lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)),
    r"Layer '1' \(.*\) mixes": lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)),
    "^InstanceNorm1d keeps running": lambda: nn.InstanceNorm1d(2, affine=True, track_running_stats=True),
    r"Layer '1' \(Dropout\) draws at random": lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)),
    r"Layer '2' \(Dropout2d\) draws at random": lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Dropout2d(0.1)),
    "Layer 'series' .* draws at random": lambda: Recurrent(dropout=0.5),
    "ReLU has no parameters": nn.ReLU,
    r"part called 'head'; there are 0, 2\.": lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)),
}


@pytest.mark.parametrize("reason", OWN)
def test_a_module_that_cannot_be_learned_is_refused(reason: str) -> None:
    with pytest.raises(Learn2pFedError, match=reason):
        Network(OWN[reason]())


def test_dropout_that_never_drops_is_let_in() -> None:
    assert Network(nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.0)), head="0").n_parameters == 3


BUILDS: dict[str, tuple[str, tuple[int, ...], dict[str, object]]] = {
    "no model 'resnet'; there are linear, mlp, lstm, lenet, cnn-10-20, cnn-32-64": ("resnet", (3, 32, 32), {}),
    "'mlp' does not take {'depth': 3}": ("mlp", (4,), {"depth": 3}),
    "'lenet' does not take {'hidden': 3}": ("lenet", (3, 32, 32), {"hidden": 3}),
    r"takes images .* got samples of shape \(4,\)": ("lenet", (4,), {}),
    "^Images of 11 x 28 pixels are too small": ("cnn-10-20", (1, 11, 28), {}),
    "15 x 15 pixels are too small": ("lenet", (3, 15, 15), {}),
}


def test_an_lstm_without_units_is_refused() -> None:
    with pytest.raises(Learn2pFedError, match="at least one unit, got 0"):
        build("lstm", (5,), 1, hidden=0)
    with pytest.raises(Learn2pFedError, match="at least one unit, got -1"):
        build("mlp", (5,), 1, hidden=(3, -1))


@pytest.mark.parametrize("reason", BUILDS)
def test_a_network_that_cannot_be_is_refused(reason: str) -> None:
    name, shape, options = BUILDS[reason]
    with pytest.raises(Learn2pFedError, match=reason):
        build(name, shape, 10, **options)


TARGETS: dict[str, tuple[Task, Tensor]] = {
    r"floating-point type, got torch.int64: .*y\.float\(\)": (Regression(), torch.tensor([0, 1])),
    "Regression needs finite": (Regression(), torch.tensor([0.0, torch.inf])),
    "targets 0 to 2 as torch.int64, got torch.int64 from 1 to 3": (Classification(3), torch.tensor([1, 3])),
    "got torch.int64 from -1 to 0": (Classification(3), torch.tensor([-1, 0])),
    "got torch.float64": (Classification(3), torch.tensor([0.0, 1.0], dtype=torch.float64)),
}


@pytest.mark.parametrize("reason", TARGETS)
def test_targets_of_another_task_are_refused(reason: str) -> None:
    task, y = TARGETS[reason]
    data = Samples.join([("a", draw(2, 4), y)])
    algorithm = FedAvg(LocalSettings(n_rounds=1), network("mlp", task.n_outputs), task)
    with pytest.raises(Learn2pFedError, match=reason):
        run_rounds(algorithm, data)


def test_a_single_class_is_refused() -> None:
    with pytest.raises(Learn2pFedError, match="at least two classes, got 1"):
        Classification(1)


ROWS: dict[str, list[tuple[str, Tensor, Tensor]]] = {
    r"'b' has samples of shape \(3,\) where 'a' has \(4,\)": [("a", draw(2, 4), draw(2)), ("b", draw(2, 3), draw(2))],
    r"'a' has samples of shape|'b' has samples": [("a", draw(2, 1, 4, 4), draw(2)), ("b", draw(2, 1, 4, 5), draw(2))],
    "'a' has 2 rows of features but 3 targets": [("a", draw(2, 4), draw(3))],
    r"'a': X must be \(rows, features\)": [("a", draw(2), draw(2))],
    "'a' appears twice": [("a", draw(2, 4), draw(2)), ("a", draw(2, 4), draw(2))],
    "'b' has no rows": [("a", draw(2, 4), draw(2)), ("b", draw(0, 4), draw(0))],
    "There are no clients": [],
}


@pytest.mark.parametrize("reason", ROWS)
def test_clients_that_do_not_fit_are_refused(reason: str) -> None:
    with pytest.raises(Learn2pFedError, match=reason):
        Samples.join(ROWS[reason])


SAMPLES: dict[str, tuple[int, Task, Tensor]] = {
    r"gives \(1, 2\) for one sample where \(1, 1\)": (2, Regression(), draw(3, 4)),
    r"gives \(1, 2\) for one sample where \(1, 3\) is needed: let it give a row of 3 outputs for each sample\.$": (
        2,
        Classification(3),
        draw(3, 4),
    ),
    r"does not take samples of shape \(5,\) \(.*\): choose one that is made for them\.$": (1, Regression(), draw(3, 5)),
    "samples are torch.float32 and the network is torch.float64": (1, Regression(), draw(3, 4).float()),
    "missing or infinite values": (1, Regression(), draw(3, 4).index_fill(0, torch.tensor([1]), torch.nan)),
}


@pytest.mark.parametrize("reason", SAMPLES)
@pytest.mark.parametrize("run", [run_rounds, run_plain])
def test_samples_that_the_network_cannot_take_are_refused(reason: str, run: Callable[..., Outcome]) -> None:
    n_outputs, task, X = SAMPLES[reason]
    data = Samples.join([("a", X, draw(3) if isinstance(task, Regression) else torch.arange(3))])
    with pytest.raises(Learn2pFedError, match=reason):
        run(FedAvg(LocalSettings(n_rounds=1), network("linear", n_outputs), task), data)
