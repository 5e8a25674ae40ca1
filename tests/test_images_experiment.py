"""run images: every method, what is trained on and what judges, what figures get, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learn2pfed.algorithms.whole_network import WholeNetworkSettings
from learn2pfed.data.images import Images
from learn2pfed.data.partition import PARTS
from learn2pfed.errors import Learn2pFedError
from learn2pfed.experiments import images as module
from learn2pfed.experiments import shared_images
from learn2pfed.experiments.base import Done, Task
from learn2pfed.experiments.images import METHODS, TITLES, ImagesConfig, ImagesExperiment
from learn2pfed.experiments.registry import configure, find, parse
from learn2pfed.experiments.resources import ResourcesConfig, ResourcesExperiment
from learn2pfed.experiments.shared_images import Setting, parts_of, study_of
from learn2pfed.experiments.sharing import SharingConfig, SharingExperiment
from learn2pfed.experiments.start_layer import StartLayerConfig, StartLayerExperiment
from learn2pfed.report.drawing import Panel
from learn2pfed.report.figures import figures
from learn2pfed.report.tables import tables
from learn2pfed.results.records import Details, Results
from learn2pfed.search import Choice, Span

N_IMAGES = 600


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Grey images of 12 x 12 pixels: each class brightens a place of its own."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(N_IMAGES) % 10)
    pixels = rng.integers(0, 120, (N_IMAGES, 12, 12))
    for c in range(10):
        pixels[labels == c, c : c + 3, 2:10] += 100

    def idx(values: np.ndarray) -> bytes:
        head = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape)
        return gzip.compress(head + values.astype(np.uint8).tobytes())

    made = tmp_path / "pictures"
    made.mkdir()
    for name, rows in (("train", slice(0, 300)), ("t10k", slice(300, None))):
        (made / f"{name}-images-idx3-ubyte.gz").write_bytes(idx(pixels[rows]))
        (made / f"{name}-labels-idx1-ubyte.gz").write_bytes(idx(labels[rows]))
    return str(made)


def config_of(folder: str, **changes: Any) -> ImagesConfig:
    small = {"data": (folder,), "betas": (5.0,), "clients": (3, 5), "n_joining": 3, "model": "cnn-10-20", "n_seeds": 1}
    return ImagesConfig.model_validate(small | {"n_rounds": 2, "some_rounds": 3} | changes)


def done(config: ImagesConfig) -> dict[Task, Done]:
    experiment = ImagesExperiment()
    return {task: experiment.run(config, task) for task in experiment.tasks(config)}


def test_every_method_runs_with_all_and_with_some_clients(folder: str) -> None:
    config = config_of(folder, n_images=200, min_size=10)
    found = done(config)
    assert len(found) == 2 * len(METHODS)
    assert [task.algorithm for task in found][: len(METHODS)] == list(TITLES.values())
    for task, one in found.items():
        by_metric = {row.metric: row.value for row in one.rows}
        assert 0 <= by_metric["accuracy"] <= 1
        alone = task.algorithm == "Local-Only"
        assert (by_metric["kB up a round"] == 0) == (by_metric["kB down a round"] == 0) == alone
        assert ("clients that never took part" in by_metric) == task.setting.endswith("5 clients")
    results = Results(
        experiment="images",
        preset="quick",
        versions={},
        config=config.model_dump(mode="json"),
        rows=[row for one in found.values() for row in one.rows],
    )
    drawn = figures(results, Details(details=[one.detail for one in found.values() if one.detail]))
    names = [figure.name for figure in drawn]
    assert names == ["methods", "bytes", "rounds", "partition", "confusion"]  # so few rounds learn no s
    cost = next(table for table in tables(results) if table.title == "Cost of a fit")
    assert len(cost.body) == 2 * len(METHODS)


def test_what_is_kept_of_the_first_trial(folder: str) -> None:
    config = config_of(folder, algorithms=("learn2pfed",), clients=(3,), n_seeds=2, n_rounds=9)
    first, second = done(config).values()
    assert second.detail is None
    assert first.detail is not None
    series = first.detail.series
    assert np.array(series["shares"]).shape == (9, 6)
    assert series["blocks"][-2:] == ["head.weight", "head.bias"]
    assert np.array(series["shares"]).std() > 0
    results = Results(experiment="images", preset="quick", versions={}, config=config.model_dump(), rows=first.rows)
    drawn = {figure.name: figure for figure in figures(results, Details(details=[first.detail]))}
    (panel,) = drawn["participation"].panels
    np.testing.assert_allclose(panel.values, 1 - np.array(series["shares"]).T)  # a row for every tensor
    assert np.sum(series["counts"]) == N_IMAGES
    assert series["sent"][-1] == pytest.approx((first.rows[0].bytes_up + first.rows[0].bytes_down) / 1e6)
    study = study_of(config, next(iter(config.names().values())), config.first_seed)
    confusion, values = np.array(series["confusion"]), {row.metric: row.value for row in first.rows}
    had = [np.bincount(client.y, minlength=10).tolist() for client in study.judged.clients]
    assert confusion.sum(2).tolist() == had
    own = confusion.diagonal(axis1=1, axis2=2).sum(1) / confusion.sum((1, 2))
    assert own.mean() == pytest.approx(values["accuracy"])
    weighted = np.average(own, weights=[len(rows) for rows in study.parts.test])
    assert weighted == pytest.approx(values["accuracy, weighted by samples"])
    assert abs(weighted - own.mean()) > 1e-6


def test_tuning_sees_no_image_of_the_table_and_the_table_trains_on_all_but_the_test_part(folder: str) -> None:
    config = config_of(folder)
    setting = next(iter(config.names().values()))
    few = config.model_copy(update={"n_images": 300, "min_size": 8})
    table = study_of(few, setting, 7)
    tuning = study_of(few, setting, 500, tuning=True)
    places = {
        study: {place for _, rows in parts.lists() for place in rows.tolist()}
        for study, parts in (("table", table.parts), ("tuning", tuning.parts))
    }
    assert not places["table"] & places["tuning"]
    assert (len(places["table"]), len(places["tuning"])) == (300, N_IMAGES // 10)
    assert len(tuning.judged.y) + len(tuning.train.y) == N_IMAGES // 10
    assert len(table.judged.y) + len(table.train.y) == 300
    judging = few.model_copy(update={"n_judged": 150})
    filled = study_of(judging, setting, 7)
    assert min(filled.judged.sizes) > max(table.judged.sizes)
    assert np.abs(np.array(filled.judged.sizes) - 50).max() < 10
    unknown = {image.numpy().tobytes() for part in (filled.train, tuning.train, tuning.judged) for image in part.X}
    assert not unknown & {image.numpy().tobytes() for image in filled.judged.X}
    again = study_of(judging.model_copy(update={"n_images": 40}), setting, 500, tuning=True)
    for_tuning = {image.numpy().tobytes() for part in (tuning.train, tuning.judged) for image in part.X}
    assert 8 < len(again.judged.y) <= 8 + 3 * 20
    assert {image.numpy().tobytes() for image in again.judged.X} <= for_tuning
    everything = study_of(config, setting, 7)
    reserved = {part: sum((rows % 10 == 0).sum() for rows in getattr(everything.parts, part)) for part in PARTS}
    assert reserved["train"] + reserved["test"] == N_IMAGES // 10
    assert reserved["test"] > 0
    assert len(everything.judged.y) + len(everything.train.y) == N_IMAGES - reserved["test"]


def test_a_run_leaves_who_had_what_and_another_takes_it(folder: str, tmp_path: Path) -> None:
    config = config_of(folder, n_images=300, min_size=8, n_seeds=2, n_rounds=9, some_rounds=9)
    experiment = ImagesExperiment()
    experiment.leave(config, tmp_path)
    left = sorted(path.name for path in (tmp_path / "partitions").iterdir())
    start = f"pictures-{hashlib.sha256(folder.encode()).hexdigest()[:8]}"
    assert left == [f"{start}-5-{end}.npz" for end in ("3-0", "3-1", "5-0", "5-1")]
    file = str(tmp_path / "partitions" / left[1])
    taken = config_of(folder, rule=file, clients=(3,), n_judged=500, n_rounds=9)  # its test parts stay as they are
    (setting,) = taken.names().values()
    here, there = study_of(taken, setting, 0), study_of(config, setting, 1)
    assert all(np.array_equal(a, b) for a, b in zip(here.parts.train, there.parts.train, strict=True))
    assert torch.equal(here.judged.X, there.judged.X)
    _, note = experiment.notes(taken)
    assert note.startswith(f"Who has what is as in {file} (SHA-256 ")
    assert experiment.notes(taken.model_copy(update={"rule": file.replace("-1.npz", "-0.npz")}))[1] != note
    assert len(experiment.notes(config)) == 1  # of the images alone
    assert experiment.notes(ImagesConfig()) == []
    assert "leave the file of index lists out" in experiment.untunable(taken)
    assert not experiment.untunable(config)
    with pytest.raises(Learn2pFedError, match=r"pictures-\w+-5-3-1\.npz is of 3 clients: set clients=3\."):
        experiment.tasks(config_of(folder, rule=file, clients=(4,)))
    with pytest.raises(Learn2pFedError, match=r"there is no file .*none\.npz"):
        experiment.tasks(config_of(folder, rule=str(tmp_path / "none.npz"), clients=(3,)))
    with pytest.raises(ValueError, match="is of one setting: give data, betas and clients one value each"):
        config_of(folder, rule=file)


def test_step_sizes_are_sought_where_these_networks_have_them(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, config = ImagesExperiment(), config_of(folder)
    spaces = experiment.tunable(config)
    assert list(spaces) == [f"own.{name}" for name in METHODS]
    assert spaces["own.fedavg-ft"]["ft_lr"] == spaces["own.learn2pfed"]["lr"] == Span(3e-4, 0.03)
    assert set(spaces["own.own-frequencies"]) == set(spaces["own.learn2pfed"]) == {"lr"}
    assert set(spaces["own.fixed-share"]) == {"lr", "share"}
    last = {key: space["final_epochs"] for key, space in spaces.items() if "final_epochs" in space}
    assert last == dict.fromkeys(("own.fedper", "own.fedrep", "own.ditto"), Choice((0, 1, 2, 5)))
    assert config.own["fedavg"]["lr"] == 2e-3
    monkeypatch.setattr(module, "TUNING_ROUNDS", 1)
    monkeypatch.setattr(module, "TUNING_CLIENTS", 4)
    seen: list[Any] = []
    study = module.study_of
    monkeypatch.setattr(module, "study_of", lambda *of, **how: seen.append(of) or study(*of, **how))
    two = config_of(folder, data=(folder, folder), betas=(50.0, 90.0), min_size=4, n_judged=7)
    assert 0 <= experiment.validate(two, "own.fedavg") <= 1
    assert 0 <= experiment.validate_again(two, "own.fedavg") <= 1
    draws = [(setting.beta, seed, small.n_judged) for small, setting, seed in seen]
    assert draws == [(beta, seed, None) for seed, beta in ((500, 50.0), (500, 90.0), *[(501, 50.0), (501, 90.0)] * 2)]


def test_the_best_trials_are_judged_on_all_that_nobody_trains_on_in_each_clients_mix(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TUNING_ROUNDS", 2), ("TUNING_CLIENTS", 3), ("TUNING_IMAGES", 45)):
        monkeypatch.setattr(module, name, value)
    made: list[Any] = []
    to_tune = module._to_tune
    monkeypatch.setattr(module, "_to_tune", lambda *of: made.append(to_tune(*of)) or made[-1])
    found = ImagesExperiment().validate_again(config_of(folder, betas=(0.5,), min_size=4), "own.fedavg-ft")
    ((algorithm, fitted, study),) = made
    unseen = set(range(0, N_IMAGES, 10)) - set(np.concatenate(study.parts.train).tolist())
    assert 15 < len(unseen) < 60
    wrong = []
    for i, model in enumerate(fitted.outcome.models):
        right = {}
        for c in range(10):
            rows = [row for row in sorted(unseen) if study.images.labels[row] == c]
            X = torch.from_numpy(study.images.pixels[rows]).float() / 127.5 - 1
            right[c] = (algorithm.network.scores(model, X).argmax(-1) == c).double().mean().item()
        own = study.images.labels[np.concatenate([study.parts.train[i], study.parts.test[i]])]
        wrong.append(1 - np.mean([right[c] for c in own.tolist() if not np.isnan(right[c])]))
    assert found == pytest.approx(np.mean(wrong))
    assert np.std(wrong) > 0


@pytest.mark.parametrize("name", ["images", "sharing", "start-layer"])
def test_every_client_of_the_quick_table_gets_images(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.arange(60_000) // 7 % 10
    monkeypatch.setattr(shared_images, "images_of", lambda source: Images(source, np.empty(0), labels, 10, 50_000))
    config: Any = configure(find(name), "quick", {})
    for setting in config.names().values():
        if setting.data != config.data[0]:
            continue  # with the same labels these are the same draws
        for seed in config.seeds:
            assert len(parts_of(config, setting, seed)) == setting.n_clients
        assert len(parts_of(config, setting._replace(n_clients=10), module.TUNING_SEED, tuning=True)) == 10


def test_all_that_is_missing_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARN2PFED_DATA", str(tmp_path))
    for experiment in (ImagesExperiment(), SharingExperiment(), StartLayerExperiment()):
        config = experiment.config_class.model_validate({"data": ("cifar10", "fashion-mnist")})
        both = "get with learn2pfed data get cifar10 and learn2pfed data get fashion-mnist"
        with pytest.raises(Learn2pFedError, match=both):
            experiment.tasks(config)


def test_the_rules_of_libraries_have_their_own_fewest_images(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.arange(2_000) % 10
    monkeypatch.setattr(shared_images, "images_of", lambda source: Images(source, np.empty(0), labels, 10, 1_800))
    setting = Setting("cifar10", 0.1, 10)
    config = ImagesConfig(data=("cifar10",), min_size=5)
    fewest = {
        rule: min(
            parts_of(config.model_copy(update={"rule": rule}), setting, seed).counts(labels).sum(0).min()
            for seed in range(10)
        )
        for rule in ("dirichlet", "pfllib", "fl-bench")
    }
    assert fewest["dirichlet"] < 40 <= fewest["pfllib"]
    assert fewest["fl-bench"] >= 10


def test_the_same_seed_gives_the_same_and_another_does_not(folder: str) -> None:
    config = config_of(folder, algorithms=("learn2pfed",), clients=(3,))
    task = ImagesExperiment().tasks(config)[0]
    one, again, other = (ImagesExperiment().run(config, task._replace(seed=seed)).rows for seed in (0, 0, 1))
    assert [row.value for row in one] == [row.value for row in again]
    assert [row.value for row in one] != [row.value for row in other]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": None}, "model: name a network for pictures: learn2pfed list models"),
        ({"model": "lenet"}, "too small for this network"),
        ({"n_images": 10_000}, r"n_images = 10,000: .*pictures has \d+ besides those for tuning: set n_images to that"),
        ({"head": "fc9"}, "no parameters in a part called 'fc9'; there are convolutions.0"),
        ({"clients": (16,)}, "600 images can't be shared among 16 clients"),
        ({"rule": "magic"}, "there is no rule 'magic'"),
        ({"data": ("nowhere",)}, "there are no images 'nowhere'"),
        ({"algorithms": ("magic",)}, "algorithms: unknown 'magic'"),
        ({"own": {"learn2pfed": {"private": ["tail"]}}}, "private: the network has no layer 'tail'"),
    ],
    ids=str,
)
def test_what_cant_be_is_refused_before_anything_runs(folder: str, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Learn2pFedError, match=complaint):
        ImagesExperiment().tasks(config_of(folder, **changes))


def test_a_fit_depends_on_its_own_method_and_setting_alone(folder: str) -> None:
    def behind(name: str, **changes: Any) -> Any:
        config = config_of(folder, **{"algorithms": ("fedavg", "ditto")} | changes).model_dump(mode="json")
        return ImagesExperiment().behind(config, Task("any", TITLES[name], 0))

    for changes in (
        {"n_seeds": 4},
        {"clients": (3,)},
        {"betas": (0.1, 5.0)},
        {"data": (folder, "cifar10")},
        {"algorithms": ("fedavg", "ditto", "fedper")},
        {"own": {"fedavg": {"lr": 0.5}}},
    ):
        assert behind("ditto", **changes) == behind("ditto")
    for changes in ({"own": {"ditto": {"lr": 0.5}}}, {"n_rounds": 3}, {"n_images": 100}, {"first_seed": 1}):
        assert behind("ditto", **changes) != behind("ditto")
    assert behind("ditto", algorithms=("ditto",)) == behind("ditto")  # alone, or beside others


def test_the_plug_in_starts_at_every_layer_with_either_backbone(folder: str) -> None:
    experiment = StartLayerExperiment()
    small = {"data": (folder,), "betas": (5.0,), "clients": (3,), "n_seeds": 1, "n_rounds": 2}
    config = StartLayerConfig.model_validate(small | {"model": "cnn-10-20", "starts": ("convolutions.1", "head")})
    found = {task.algorithm: experiment.run(config, task) for task in experiment.tasks(config)}
    ratios = {
        name: next(row.value for row in done.rows if row.metric == "shared ratio") for name, done in found.items()
    }
    assert list(found) == [
        "from convolutions.1, local",
        "from convolutions.1, shared",
        "from head, local",
        "from head, shared",
    ]
    assert ratios["from head, shared"] == ratios["from convolutions.1, shared"] == 1
    assert 0 < ratios["from head, local"] < ratios["from convolutions.1, local"] < 1
    with pytest.raises(
        Learn2pFedError, match=r"starts: The network has no layer 'fc3' with parameters; there are conv"
    ):
        experiment.tasks(config.model_copy(update={"starts": ("fc3",)}))


def test_layers_that_are_called_by_numbers_can_be_named() -> None:
    assert configure(find("start-layer"), "quick", {"starts": 1}).starts == ("1",)
    assert configure(find("start-layer"), "quick", {"starts": "1,head"}).starts == ("1", "head")
    assert configure(find("start-layer"), "quick", {"starts": ["0.10"]}).starts == ("0.10",)
    assert configure(find("polynomial"), "quick", {"head": 2}).model_dump()["head"] == "2"
    for name, setting in (("start-layer", "starts"), ("images", "head"), ("images", "own.learn2pfed.private")):
        with pytest.raises(Learn2pFedError, match=r'a layer whose name looks like 0.1 is written in quotes, "0.10"'):
            configure(find(name), "quick", {setting: parse("0.10")})
    own = configure(find("images"), "quick", {"own.learn2pfed.private": 3}).own["learn2pfed"]
    assert WholeNetworkSettings.of(**own).private == ("3",)


def test_s_held_and_learned_differ_in_s_alone(folder: str) -> None:
    experiment = SharingExperiment()
    small = {"data": (folder,), "betas": (5.0,), "clients": (3,), "n_seeds": 1, "model": "cnn-10-20", "n_rounds": 10}
    small |= {"own": {"learn2pfed": {"spread": 1.0}}}  # so that a few images tell tensors apart
    config = SharingConfig.model_validate(small | {"shares": (0.0, 0.4)})
    found = {task: experiment.run(config, task) for task in experiment.tasks(config)}
    assert [task.algorithm for task in found] == ["s = 0", "s = 0.4", "s learned", "s learned, head by parameter"]
    rows = [row for one in found.values() for row in one.rows]
    none, held, learned, fine = ({row.metric: row.value for row in one.rows} for one in found.values())
    assert (none["s"], held["s"]) == pytest.approx((0, 0.4))
    assert 0 < learned["s"] < 1
    assert learned["s"] != 0.5
    ups = [one["kB up a round"] for one in (none, held, learned, fine)]
    assert ups[0] == ups[1] < ups[2] < ups[3]  # by slopes
    assert held["s, std over blocks"] == 0 < learned["s, std over blocks"]
    assert fine["s, std over blocks"] > 0

    study = study_of(config, next(iter(config.names().values())), 0)
    forms = [form(study, 0).settings for form in experiment.forms(config).values()]
    alike = {"share": None, "head_blocks": "tensor"}
    assert len({form.model_copy(update=alike).model_dump_json() for form in forms}) == 1
    assert [form.head_blocks for form in forms] == ["tensor"] * 3 + ["parameter"]

    details = [one.detail for one in found.values() if one.detail]
    results = Results(experiment="sharing", preset="quick", versions={}, config=config.model_dump(), rows=rows)
    figure = next(figure for figure in figures(results, Details(details=details)) if figure.name == "sharing")
    (panel,) = figure.panels
    assert isinstance(panel, Panel)
    by_s, dot, other = panel.series
    assert list(zip(by_s.x, by_s.y, strict=True)) == [(one["s"], one["accuracy"]) for one in (none, held)]
    assert (dot.x, dot.y, dot.kind) == ([learned["s"]], [learned["accuracy"]], "dots")
    assert (other.x, other.y, other.kind) == ([fine["s"]], [fine["accuracy"]], "dots")
    assert other.colour != dot.colour


def test_forms_are_taken_over_whatever_else_is_run_beside_them() -> None:
    sharing, start_layer = SharingExperiment(), StartLayerExperiment()

    def behind(experiment: Any, **changes: Any) -> Any:
        config = configure(experiment, "quick", changes).model_dump(mode="json")
        return experiment.behind(config, Task("cifar10, 0.1, 10 clients", "s = 0.5", 0))

    for experiment in (sharing, start_layer):
        for changes in ({"n_seeds": 4}, {"data": ["fashion-mnist"]}, {"betas": [0.3]}, {"clients": [7]}):
            assert behind(experiment, **changes) == behind(experiment)
        for other in ({"n_rounds": 3}, {"n_images": 100}, {"first_seed": 1}):
            assert behind(experiment, **other) != behind(experiment)
    assert behind(sharing, shares=[0.3]) == behind(sharing) != behind(sharing, **{"own.learn2pfed.rho": 0.5})
    assert behind(start_layer, starts=["head"], backbones=["local"]) == behind(start_layer)


def test_images_of_ones_own_are_known_by_what_is_in_them(folder: str) -> None:
    config = config_of(folder, n_rounds=10, clients=(3,))
    (note,) = ImagesExperiment().notes(config)
    assert note == SharingExperiment().notes(config)[0]
    shared_images.images_of.cache_clear()
    file = Path(folder) / "t10k-labels-idx1-ubyte.gz"
    labels = bytearray(gzip.decompress(file.read_bytes()))
    labels[-1] = (labels[-1] + 1) % 10
    file.write_bytes(gzip.compress(bytes(labels)))
    (other,) = ImagesExperiment().notes(config)
    assert note.split(" and ")[0] == other.split(" and ")[0]
    assert note != other
    assert not ImagesExperiment().same_data([note], [other])
    assert not SharingExperiment().same_data([note, "another"], [other, "another"])
    assert ImagesExperiment().same_data([note], [note, "another"])  # which has settings beside those of the first
    shared_images.images_of.cache_clear()


def test_a_network_of_ones_own_is_known_by_what_is_in_its_file(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "nets_of_mine.py"
    file.write_text("from torch import nn\ndef small(shape, n):\n    return nn.Sequential(nn.Flatten())\n")
    config = config_of(folder, n_rounds=10, clients=(3,), model="nets_of_mine:small")
    before = ImagesExperiment().notes(config)
    assert "The network nets_of_mine:small is made in a file with the SHA-256 digest" in before[1]
    assert before[1:] == find("polynomial").notes(configure(find("polynomial"), "quick", {"model": config.model}))
    file.write_text(file.read_text().replace("Flatten()", "Flatten(), nn.Tanh()"))
    after = ImagesExperiment().notes(config)
    assert after[0] == before[0]
    assert not ImagesExperiment().same_data(before, after)


def test_rounds_too_few_to_learn_in_are_said(folder: str) -> None:
    few = (
        "{} rounds of {} epochs, {} taking part, are few for Learn2pFed: every client ends alone, "
        "from what is shared by then."
    )
    said = [few.format(2, 2, "all"), few.format(3, 2, "some")]
    assert ImagesExperiment().notes(config_of(folder))[1:] == said
    for share in (None, 0.3):  # which is of no form
        assert SharingExperiment().notes(config_of(folder, own={"learn2pfed": {"share": share}}))[1:] == said
    none = (
        "{}, have none in which s is learned (learn_from, learn_until), or clients take part too seldom by then, or "
        "there is no use for it (final_passes): it stays at one half."
    )
    seldom = none.format("3 rounds of 8 epochs, some taking part")  # 3 of 5 in 0.4 of 3 rounds: less than once
    assert ImagesExperiment().notes(config_of(folder, epochs=8))[1:] == [few.format(2, 8, "all"), seldom]
    assert ImagesExperiment().notes(config_of(folder, n_rounds=8, some_rounds=8))[1:] == [few.format(8, 2, "all")]
    assert ImagesExperiment().notes(config_of(folder, own={"learn2pfed": {"final_passes": 0}}))[1:] == [
        none.format("2 rounds of 2 epochs, all taking part"),
        none.format("3 rounds of 2 epochs, some taking part"),
    ]
    assert not ImagesExperiment().notes(config_of(folder, algorithms=("fedavg",)))[1:]
    assert not ImagesExperiment().notes(config_of(folder, own={"learn2pfed": {"share": 0.3}}))[1:]


def test_mistakes_are_shown_of_the_last_method_there_is(folder: str) -> None:
    config = config_of(folder, algorithms=("fedavg", "fedper"), clients=(3,))
    found = done(config)
    details = [one.detail for one in found.values() if one.detail]
    assert ["confusion" in detail.series for detail in details] == [False, True]
    details[0].series["confusion"] = details[1].series["confusion"]  # as a fit has that is taken over
    rows = [row for one in found.values() for row in one.rows]
    results = Results(experiment="images", preset="quick", versions={}, config=config.model_dump(), rows=rows)
    drawn = next(each for each in figures(results, Details(details=details)) if each.name == "confusion")
    assert "by what FedPer takes them for" in drawn.caption
    stopped = results.model_copy(update={"rows": [row for row in rows if row.algorithm != "FedPer"]})
    drawn = next(each for each in figures(stopped, Details(details=details)) if each.name == "confusion")
    assert "by what FedAvg takes them for" in drawn.caption  # the other's rows were not yet written


@pytest.mark.parametrize("n_judged", [None, 600])
def test_a_client_that_has_test_images_for_tuning_alone_is_named(folder: str, n_judged: int | None) -> None:
    ours: Any = {"betas": (1.0,), "clients": (45,), "min_size": 4, "n_judged": n_judged, "n_seeds": 1}
    ImagesExperiment().tasks(config_of(folder, **ours))
    complaint = r"45 clients, seed 3: client \d+ has no test images but some that are for tuning .*min_size"
    with pytest.raises(Learn2pFedError, match=complaint):  # whichever trial it is in
        ImagesExperiment().tasks(config_of(folder, **ours | {"n_seeds": 4}))
    sharing = SharingConfig.model_validate({"data": (folder,), "model": "cnn-10-20", **ours, "n_seeds": 4})
    with pytest.raises(Learn2pFedError, match=complaint):
        SharingExperiment().tasks(sharing)


def test_what_a_round_asks_of_a_client() -> None:
    experiment = ResourcesExperiment()
    names = ("local-only", "fedavg", "ditto", "learn2pfed")
    config = ResourcesConfig(data=("fashion-mnist",), n_rows=40, algorithms=names, epochs=1)
    found = {
        task.algorithm: {row.metric: row.value for row in experiment.run(config, task).rows}
        for task in experiment.tasks(config)
    }
    assert found["Ditto"]["GFLOP"] == pytest.approx(3 * found["FedAvg"]["GFLOP"])  # one epoch of w, two of v
    # an epoch on 35, and three gradients on the 5 that are set aside to learn s by
    assert found["Learn2pFed"]["GFLOP"] == pytest.approx(found["FedAvg"]["GFLOP"] * (38 + 3 * 2) / 40)
    # 40 images, forward and twice that backward but for the first layer's input
    first, second, head = 28 * 28 * 250 * 2, 10 * 10 * 250 * 20 * 2, 5000 * 2
    assert found["FedAvg"]["GFLOP"] == pytest.approx(40 * (2 * first + 3 * (second + head)) / 1e9, rel=1e-6)
    assert found["FedAvg"]["kB sent"] == pytest.approx(4 * 10.29, abs=0.2)
    assert found["Local-Only"]["kB sent"] == found["Local-Only"]["kB heard"] == found["FedAvg"]["MB kept"] == 0
    assert found["Ditto"]["MB kept"] == pytest.approx(3 * 4 * 0.01029, abs=1e-3)  # v and what Adam remembers
    one_image = 4 * (784 + 10 * 28 * 28) / 1e6  # itself and what the first layer makes of it
    assert 40 * one_image < found["FedAvg"]["MB at most"] < 40 * 5 * one_image
    with pytest.raises(Learn2pFedError, match="data: unknown 'mnist'; there are cifar10, fashion-mnist"):
        experiment.tasks(config.model_copy(update={"data": ("mnist",)}))
