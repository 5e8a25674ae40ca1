"""The conversation: two engines that agree, bytes that are counted, replies that get lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from learn2pfed.algorithms.base import Outcome, Spec
from learn2pfed.algorithms.learn2pfed import Learn2pFed
from learn2pfed.data.federated import cohort
from learn2pfed.engines.messages import decode, encode, receive, size
from learn2pfed.engines.plain import run_plain
from learn2pfed.engines.simulation import run_simulation
from learn2pfed.errors import DivergenceError, Learn2pFedError, MessageError
from learn2pfed.unrolled.network import zero_state
from learn2pfed.unrolled.settings import GROUPS, Settings
from learn2pfed.unrolled.softmax import Softmax
from learn2pfed.unrolled.training import welcome
from tests.conftest import random_data, random_labels

SHORT = {"n_epochs": 6, "n_warmup": 2, "n_cells": 4, "refit_cells": 40, "n_repeats": 3}

VARIANTS = {
    "default": Settings(**SHORT),
    "no carried adjoint": Settings(**SHORT, carry_adjoint=False),
    "everything learned": Settings(**SHORT, learn=GROUPS, sharing="mixed"),
    "a Θ per cell": Settings(**SHORT, learn=GROUPS, sharing="mixed", tied=False),
    "a Λ per client": Settings(**SHORT, learn=GROUPS, sharing="per-client"),
    "local gradient": Settings(**SHORT, gradient="local", learn=("lam", "rho", "eta", "theta")),
    "holdout": Settings(**SHORT, supervision="holdout"),
    "train": Settings(**SHORT, supervision="train"),
    "nothing learned": Settings(**SHORT, learn=()),
    "no scaling": Settings(**SHORT, scaling=False),
    "one cell": Settings(**SHORT | {"n_cells": 1}),
    "paper": Settings.paper(n_epochs=6),
    "exact refit": Settings(**SHORT, refit="exact"),
    "exact refit, everything learned": Settings(**SHORT, refit="exact", learn=GROUPS, sharing="mixed"),
    "predictive": Settings(**SHORT, objective="predictive"),
    "predictive, everything learned": Settings(
        **SHORT, objective="predictive", learn=GROUPS, sharing="mixed", tied=False
    ),
    "predictive, local gradient": Settings(
        **SHORT, objective="predictive", gradient="local", learn=("lam", "rho", "eta", "theta")
    ),
    "some take part": Settings(**SHORT, join=0.5),
    "some take part, everything learned": Settings(**SHORT, join=0.5, learn=GROUPS, sharing="mixed"),
    "some take part, a Λ per client, a Θ per cell": Settings(
        **SHORT, join=0.5, learn=GROUPS, sharing="per-client", tied=False
    ),
    "some take part, exact refit": Settings(**SHORT, join=0.5, refit="exact"),
    "some take part, predictive": Settings(**SHORT, join=0.5, objective="predictive"),
    "some take part, redrawn": Settings.paper(n_epochs=6, join=0.5),
    "one takes part": Settings(**SHORT, join=0.25),
    "some learn, some take part": Settings(**SHORT, join=0.5, n_learners=2),
    "some learn": Settings(**SHORT, n_learners=2),
    "some learn, exact refit": Settings(**SHORT, n_learners=2, refit="exact"),
}


@pytest.mark.parametrize(("name", "fewest"), [*((name, 2) for name in VARIANTS), ("default", 1)])
def test_both_engines_give_the_same(name: str, fewest: int) -> None:
    algorithm, data = Learn2pFed(VARIANTS[name]), random_data(sizes=[20, 5, 9, fewest])
    agree(run_simulation(algorithm, data), run_plain(algorithm, data))


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(
    "changes", [{}, {"learn": GROUPS, "sharing": "mixed"}, {"n_learners": 2}, {"join": 0.5}], ids=str
)
def test_both_engines_classify_alike(n_classes: int, changes: dict[str, object]) -> None:
    data = random_labels(n_classes, sizes=[20, 5, 9, 1])
    algorithm = Learn2pFed(Settings(**SHORT, **changes), Softmax(n_classes, (0.0, 0.1, 0.1)))
    agree(run_simulation(algorithm, data), run_plain(algorithm, data))


def test_an_exact_refit_is_for_squared_loss() -> None:
    with pytest.raises(Learn2pFedError, match="needs squared loss"):
        Learn2pFed(Settings(refit="exact"), Softmax(2, (0.1,)))


def test_an_exact_refit_is_where_many_cells_end() -> None:
    data = random_data(sizes=[20, 5, 9, 1])
    cells, exact = (
        run_simulation(Learn2pFed(Settings(**SHORT | {"refit_cells": 20_000}, refit=refit, tolerance=1e-13)), data)
        for refit in ("cells", "exact")
    )
    torch.testing.assert_close(cells.models, exact.models, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(cells.global_model, exact.global_model, rtol=1e-7, atol=1e-8)
    assert exact.traffic.bytes_up < cells.traffic.bytes_up


def agree(fused: Outcome, plain: Outcome) -> None:
    torch.testing.assert_close(fused.models, plain.models, rtol=0, atol=1e-10)
    torch.testing.assert_close(fused.global_model, plain.global_model, rtol=0, atol=1e-10)
    assert fused.history == pytest.approx(plain.history, abs=1e-10, rel=1e-10)
    for key, value in plain.insight.items():
        torch.testing.assert_close(fused.insight[key], value, rtol=1e-10, atol=0)
    assert fused.traffic == plain.traffic
    assert plain.traffic.bytes_up > 0
    assert not plain.missing


def test_the_local_gradient_sends_no_adjoints_and_is_another_gradient() -> None:
    data = random_data()
    exact, local = (
        run_plain(Learn2pFed(Settings(**SHORT, gradient=gradient, carry_adjoint=False)), data)
        for gradient in ("exact", "local")
    )
    assert local.traffic.n_exchanges < exact.traffic.n_exchanges
    assert not torch.equal(local.insight["lam"], exact.insight["lam"])


def test_same_seed_same_result_to_the_last_bit() -> None:
    data = random_data()
    for chosen in (Settings(**SHORT), Settings.paper(n_epochs=5)):
        one, two = (run_simulation(Learn2pFed(chosen), data) for _ in range(2))
        assert torch.equal(one.models, two.models)
        other = run_simulation(Learn2pFed(chosen.model_copy(update={"seed": 1})), data)
        assert not torch.equal(one.models, other.models)


def kinds(chosen: Settings) -> list[str]:
    """The exchanges of a run by number, nobody missing."""
    epoch = ["epoch", *["cell"] * chosen.n_cells, "loss", *["adjoint"] * chosen.n_cells, "learn"]
    return ["describe", "prepare", *epoch * chosen.n_epochs, "refit"]


def test_who_comes_for_the_first_time_starts_from_w() -> None:
    """Then z - v + w = 0, so that its dual variable is still 0 after eq. (9)."""
    client = random_data().clients[0]
    algorithm = Learn2pFed(Settings(**SHORT))
    one, first = torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.int64)
    state = algorithm.enter(0, client)
    n_splits, _, k = state.now.v.shape
    state, _ = algorithm.handle("prepare", state, client, {"scale": one.expand(k), "conditioning": one})
    state, _ = algorithm.handle("epoch", state, client, {"lam": torch.zeros(1, k).double(), "epoch": first})
    state, _ = algorithm.handle("cell", state, client, {"w": one.expand(n_splits, k), "cell": first})
    assert (state.now.alpha == 0).all()
    there, heard = zero_state(1, 3, k), torch.tensor([False, True, False])
    welcome(there, one.expand(1, k), heard, torch.tensor([0, 1]))
    assert there.v[0].tolist() == [[1.0] * k, [0.0] * k, [0.0] * k]
    assert heard.tolist() == [True, True, False]


@pytest.mark.parametrize("join", [1.0, 0.5])
@pytest.mark.parametrize("kind", ["epoch", "cell", "loss", "adjoint", "learn"])
def test_a_reply_lost_in_one_epoch_leaves_the_client_in_the_run(kind: str, join: float) -> None:
    """The run goes on without it for that epoch, and in the end it has its own model again."""
    data, chosen = random_data(), Settings(**SHORT | {"n_epochs": 12, "refit_cells": 4000, "join": join})
    length = 2 * chosen.n_cells + 3
    epoch = next(e for e in range(4, 12) if 1 in cohort(4, join, 0, e))
    number = kinds(chosen).index(kind, 2 + epoch * length)
    whole = run_plain(Learn2pFed(chosen), data)
    outcome = run_plain(Learn2pFed(chosen), data, wire=lambda n, i, reply: None if (n, i) == (number, 1) else reply)
    assert outcome.missing == {1: 1}
    assert len(outcome.history) == chosen.n_epochs
    torch.testing.assert_close(outcome.models, whole.models, rtol=0.05, atol=0.02)
    assert not torch.equal(outcome.models, whole.models)


@pytest.mark.parametrize("kind", ["describe", "prepare", "refit"])
def test_a_step_without_which_there_is_no_part_is_asked_again(kind: str) -> None:
    data, chosen = random_data(), Settings(**SHORT)
    number = kinds(chosen).index(kind)
    whole = run_plain(Learn2pFed(chosen), data)
    once = run_plain(Learn2pFed(chosen), data, wire=lambda n, i, reply: None if (n, i) == (number, 2) else reply)
    torch.testing.assert_close(once.models, whole.models)
    assert once.missing == {2: 1}
    never = run_plain(Learn2pFed(chosen), data, wire=lambda n, i, reply: None if i == 2 and n >= number else reply)
    torch.testing.assert_close(never.models[2], never.global_model)
    assert not torch.allclose(never.models[1], never.global_model)
    assert len(never.insight["lam"]) == 3


def test_a_damaged_reply_counts_as_missing() -> None:
    def wire(number: int, client: int, reply: bytes) -> bytes:
        return reply[:-1] if client == 3 and number > 10 else reply

    outcome = run_plain(Learn2pFed(Settings(**SHORT)), random_data(), wire=wire)
    assert set(outcome.missing) == {3}


def test_nobody_answers() -> None:
    with pytest.raises(DivergenceError, match="No client gave a usable answer to 'describe' in epoch 0"):
        run_plain(Learn2pFed(Settings(**SHORT)), random_data(), wire=lambda *_: None)


@pytest.mark.parametrize("run", [run_plain, run_simulation])
def test_divergence_is_named_on_both_engines(run: Callable[..., Outcome]) -> None:
    wild = Settings(**SHORT | {"n_epochs": 30}, learn=GROUPS, learning_rate=80.0, decay=False, carry_adjoint=False)
    with pytest.raises(DivergenceError, match=r"epoch \d+"):
        run(Learn2pFed(wild), random_data())


def test_progress_is_told_every_epoch_on_both_engines() -> None:
    for run in (run_plain, run_simulation):
        seen: list[int] = []
        run(Learn2pFed(Settings(**SHORT)), random_data(), progress=lambda epoch, _, seen=seen: seen.append(epoch))
        assert seen == [1, 2, 3, 4, 5, 6]


SPECS = {"w": Spec((2,)), "cell": Spec((1,), torch.int64)}
GOOD = {"w": torch.zeros(2, dtype=torch.float64), "cell": torch.tensor([1])}


def test_a_message_survives_the_wire_bit_by_bit() -> None:
    message = {"w": torch.tensor([0.1, -1e-300], dtype=torch.float64), "cell": torch.tensor([7])}
    back = receive(encode(message), SPECS)
    assert torch.equal(back["w"], message["w"])
    assert torch.equal(back["cell"], message["cell"])
    assert len(encode(message)) == size(SPECS)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (GOOD | {"w": torch.zeros(3, dtype=torch.float64)}, "bytes came where at most"),
        (GOOD | {"w": torch.zeros(1, dtype=torch.float64)}, r"'w' came as \(1,\)"),
        (GOOD | {"w": torch.zeros(2)}, "float32"),
        (GOOD | {"w": torch.tensor([0.0, torch.nan], dtype=torch.float64)}, "not finite"),
        ({"w": GOOD["w"]}, r"a message with \['w'\]"),
    ],
)
def test_a_bad_message_is_refused_with_a_reason(message: dict[str, torch.Tensor], reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        receive(encode(message), SPECS)


def test_bytes_that_are_no_message_are_refused() -> None:
    for blob in (b"", b"junk", b"\x80\x04K\x01.", encode(GOOD)[:-3]):
        with pytest.raises(MessageError, match="is not safetensors"):
            decode(blob)


def test_a_client_refuses_what_is_out_of_turn() -> None:
    algorithm, data = Learn2pFed(Settings(**SHORT)), random_data()
    state = algorithm.enter(0, data.clients[0])
    scale = torch.ones(3, dtype=torch.float64)
    state, _ = algorithm.handle("prepare", state, data.clients[0], {"scale": scale, "conditioning": scale[:1]})
    w = torch.zeros(6, 3, dtype=torch.float64)
    with pytest.raises(MessageError, match="cell 2 came where cell 1 was due"):
        algorithm.handle("cell", state, data.clients[0], {"w": w, "cell": torch.tensor([2])})
    with pytest.raises(MessageError, match="kind 'gossip' came"):
        algorithm.expects("gossip", state)
    said = {"total": w, "weight": scale[:1], "loss": scale[:1], "cell": torch.tensor([1])}
    with pytest.raises(MessageError, match="adjoint of cell 1"):
        algorithm.handle("adjoint", state, data.clients[0], said)


def test_an_epoch_that_broke_off_leaves_no_adjoint_behind() -> None:
    """A client lost between two cells of the way back starts the next epoch with a clean adjoint."""
    algorithm, data = Learn2pFed(Settings(**SHORT | {"n_cells": 2})), random_data()
    client, ones = data.clients[0], torch.ones(3, dtype=torch.float64)
    said = {"lam": ones[None], "epoch": torch.tensor([0]), "scale": ones, "conditioning": ones[:1], "loss": ones[:1]}
    state = algorithm.enter(0, client)
    for kind in ("prepare", "epoch"):
        state, _ = algorithm.handle(kind, state, client, said)
    w = torch.ones(6, 3, dtype=torch.float64)
    for cell in (1, 2):
        state, _ = algorithm.handle("cell", state, client, {"w": w, "cell": torch.tensor([cell])})
    back = {"total": w, "weight": ones[:1], "loss": ones[:1], "cell": torch.tensor([2])}
    broken, _ = algorithm.handle("adjoint", state, client, back)
    assert all(part.abs().max() > 0 for part in broken.bar)
    after, _ = algorithm.handle("epoch", broken, client, said)
    assert all((part == 0).all() for part in after.bar)
    whole, _ = algorithm.handle("adjoint", broken, client, back | {"cell": torch.tensor([1])})
    kept, _ = algorithm.handle("epoch", whole, client, said)
    assert all(part.abs().max() > 0 for part in kept.bar)


def test_handlers_are_pure() -> None:
    algorithm, data = Learn2pFed(Settings(**SHORT)), random_data()
    state = algorithm.enter(0, data.clients[0])
    ones = torch.ones(3, dtype=torch.float64)
    state, _ = algorithm.handle("prepare", state, data.clients[0], {"scale": ones, "conditioning": ones[:1]})
    said = {"w": torch.ones(6, 3, dtype=torch.float64), "cell": torch.tensor([1])}
    first, reply = algorithm.handle("cell", state, data.clients[0], said)
    second, again = algorithm.handle("cell", state, data.clients[0], said)
    assert torch.equal(first.now.v, second.now.v)
    assert torch.equal(reply["total"], again["total"])
    assert len(state.trail) == 0
