"""Who gets which images: the rules, the parts, the files, and what is refused."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learn2pfed.data import dirichlet
from learn2pfed.data.dirichlet import RULES, shares, stratified
from learn2pfed.data.images import Images, load_images
from learn2pfed.data.partition import PARTS, Partition, filled_up, partition, samples
from learn2pfed.data.sources import FASHION
from learn2pfed.errors import Learn2pFedError

LABELS = np.random.default_rng(0).integers(0, 10, 3000)


def all_rows(made: Partition) -> np.ndarray:
    return np.concatenate([rows for _, rows in made.lists()])


def test_the_names_of_the_rules() -> None:
    assert set(RULES) == {"dirichlet", "pfllib", "fl-bench"}


@settings(deadline=None, max_examples=60)
@given(
    rule=st.sampled_from(sorted(RULES)),
    n_clients=st.integers(1, 8),
    beta=st.floats(0.3, 20),
    seed=st.integers(0, 10**6),
    n_images=st.none() | st.integers(300, 900),
    n_classes=st.integers(1, 12),
)
def test_every_image_goes_to_one_part_of_one_client(
    rule: str, n_clients: int, beta: float, seed: int, n_images: int | None, n_classes: int
) -> None:
    labels = np.random.default_rng(seed).integers(0, n_classes, 900)
    made = partition(labels, n_clients, beta, rule, seed, min_size=5, n_images=n_images)
    rows = all_rows(made)
    assert len(np.unique(rows)) == len(rows) == (n_images or 900)
    assert rows.min() >= 0
    assert rows.max() < 900
    assert len(made) == n_clients
    sizes = made.counts(labels).sum(0)
    for i, size in enumerate(sizes):
        assert size >= 5
        assert size == sum(len(getattr(made, part)[i]) for part in PARTS)
        assert all(len(getattr(made, part)[i]) for part in PARTS if part != "validation" or rule == "dirichlet")
    again = partition(labels, n_clients, beta, rule, seed, min_size=5, n_images=n_images)
    np.testing.assert_array_equal(rows, all_rows(again))


def test_another_seed_gives_another_partition() -> None:
    one, other = (partition(LABELS, 5, 0.5, seed=seed) for seed in (0, 1))
    assert not np.array_equal(one.counts(LABELS), other.counts(LABELS))


def test_some_images_are_drawn_from_all_of_them() -> None:
    one, other = (all_rows(partition(LABELS, 3, 100.0, seed=seed, n_images=600)) for seed in (0, 1))
    for rows in (one, other):
        assert abs(rows.mean() - 1500) < 150
    assert 60 < len(np.intersect1d(one, other)) < 200


def test_a_class_is_shuffled_before_it_is_cut() -> None:
    made = partition(np.zeros(900, dtype=np.int64), 3, 100.0)
    for parts in zip(made.train, made.validation, made.test, strict=True):
        assert abs(np.concatenate(parts).mean() - 450) < 100


def test_no_global_stream_is_touched_or_heard() -> None:
    np.random.seed(0)
    first = all_rows(partition(LABELS, 5, 0.5))
    drawn = np.random.random()
    np.random.seed(0)
    assert drawn == np.random.random()
    np.testing.assert_array_equal(first, all_rows(partition(LABELS, 5, 0.5)))


def test_counts_are_by_class_and_client() -> None:
    made = partition(LABELS, 4, 0.5)
    counts = made.counts(LABELS)
    assert counts.shape == (10, 4)
    np.testing.assert_array_equal(counts.sum(1), np.bincount(LABELS))
    own = np.concatenate([made.train[2], made.validation[2], made.test[2]])
    assert counts[7, 2] == (LABELS[own] == 7).sum()


def by_hand(labels: np.ndarray, n_clients: int, beta: float, capped: bool, rng: np.random.Generator) -> list[int]:
    """The sizes by the libraries' own way: lists that grow class after class."""
    rows: list[list[int]] = [[] for _ in range(n_clients)]
    for k in range(10):
        mine = [i for i, label in enumerate(labels) if label == k]
        p = [float(share) for share in rng.dirichlet([beta] * n_clients)]
        if capped:
            p = [share if len(rows[j]) < len(labels) / n_clients else 0.0 for j, share in enumerate(p)]
        total, reached, start = sum(p), 0.0, 0
        for j in range(n_clients):
            reached += p[j] / total
            end = len(mine) if j == n_clients - 1 else int(reached * len(mine))
            rows[j] += mine[start:end]
            start = end
    return [len(each) for each in rows]


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_shares_are_those_of_the_libraries(capped: bool, seed: int) -> None:
    sizes = np.bincount(LABELS)
    counts = shares(sizes, 7, 0.3, capped, np.random.default_rng(seed))
    assert counts.sum(0).tolist() == by_hand(LABELS, 7, 0.3, capped, np.random.default_rng(seed))
    np.testing.assert_array_equal(counts.sum(1), sizes)


def test_a_cap_evens_sizes_out() -> None:
    spread = {
        rule: np.std([partition(LABELS, 6, 0.2, rule, seed, 10).counts(LABELS).sum(0) for seed in range(20)])
        for rule in RULES
    }
    assert spread["pfllib"] < 0.8 * spread["fl-bench"]


def test_a_small_beta_gives_few_classes_and_a_large_one_all() -> None:
    few, all_ = ((partition(LABELS, 5, beta, min_size=10).counts(LABELS) > 0).sum(0).mean() for beta in (0.05, 1000.0))
    assert few < 6
    assert all_ == 10


def test_the_parts_of_our_own_rule_are_shares_of_every_class() -> None:
    made = partition(LABELS, 3, 100.0)
    for i in range(3):
        n_train, n_validation, n_test = (len(getattr(made, part)[i]) for part in PARTS)
        n = n_train + n_validation + n_test
        assert n_test == round(0.2 * n)
        assert n_validation == round(0.15 * (n - n_test))
        for k in range(10):
            train, validation, test = ((LABELS[getattr(made, part)[i]] == k).sum() for part in PARTS)
            assert abs(test - 0.2 * (train + validation + test)) < 1
            assert abs(validation - 0.15 * (train + validation)) < 1


def test_what_is_judged_was_seen_in_training() -> None:
    for seed in range(10):
        made = partition(LABELS, 8, 0.1, seed=seed, min_size=10)
        for train, validation, test in zip(made.train, made.validation, made.test, strict=True):
            assert set(LABELS[validation]) | set(LABELS[test]) <= set(LABELS[train])


@pytest.mark.parametrize(
    ("labels", "share", "count"),
    [([0, 1, 2, 3], 0.2, 1), ([0] * 4 + [1], 0.2, 1), ([0] * 10 + [1], 0.9, 9), ([0], 0.5, 1), ([0, 0, 1, 1], 0.9, 2)],
)
def test_small_classes(labels: list[int], share: float, count: int) -> None:
    mask = stratified(share)(np.array(labels), np.random.default_rng(0))
    assert mask.sum() == count


def test_ties_between_classes_are_drawn() -> None:
    labels = np.arange(20) % 10  # two of each, of which four in all are held out
    masks = [stratified(0.2)(labels, np.random.default_rng(seed)) for seed in range(40)]
    assert all(mask.sum() == 4 for mask in masks)
    assert {int(label) for mask in masks for label in labels[mask]} == set(range(10))


@pytest.mark.parametrize(("rule", "rounded"), [("pfllib", np.ceil), ("fl-bench", np.floor)])
def test_the_libraries_test_on_a_quarter_whatever_the_classes(rule: str, rounded: np.ufunc) -> None:
    made = partition(LABELS, 7, 1.0, rule)
    assert not made.validates
    uneven = 0
    for train, test in zip(made.train, made.test, strict=True):
        assert len(test) == rounded((len(train) + len(test)) / 4)
        own = np.concatenate([train, test])
        counts = np.bincount(LABELS[own], minlength=10)
        uneven += int((abs(np.bincount(LABELS[test], minlength=10) - counts / 4) > 1).sum())
    assert uneven > 5  # by chance; not class by class


def test_the_least_sizes() -> None:
    assert RULES["dirichlet"].least(60_000, 100) == 40
    assert RULES["fl-bench"].least(60_000, 100) == 10
    assert RULES["pfllib"].least(60_000, 100) == 40
    assert RULES["pfllib"].least(1001, 100) == 6
    labels = np.arange(4000) % 10
    for rule, least in (("dirichlet", 40), ("pfllib", 40), ("fl-bench", 10)):
        smallest = min(partition(labels, 20, 0.3, rule, seed).counts(labels).sum(0).min() for seed in range(30))
        assert least <= smallest < 2 * least + 20


def test_draws_that_leave_a_client_too_small_end_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirichlet, "DRAWS", 50)
    with pytest.raises(
        Learn2pFedError,
        match=r"3000 images can't be shared among 50 clients at beta = 0.01 with at least "
        r"40 each \(in 50 draws the smallest client had 0 at best\): take fewer clients, more images, a larger beta",
    ):
        partition(LABELS, 50, 0.01)
    with pytest.raises(Learn2pFedError, match=r"with at least 40 each \(that takes 4000\): take fewer clients"):
        partition(LABELS, 100, 0.5)


def test_a_draw_in_which_only_full_clients_have_a_share_counts_for_nothing() -> None:
    sizes = np.array([10, 10, 10])
    drawn = [shares(sizes, 2, 1e-6, True, np.random.default_rng(seed)) for seed in range(40)]
    assert {int(counts.sum()) for counts in drawn} == {0, 30}


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"n_clients": 0}, "n_clients = 0 can't be: give a whole number from 1 to 3000"),
        ({"beta": 0.0}, "beta = 0.0 is no positive number"),
        ({"beta": float("nan")}, "beta = nan is no positive number"),
        ({"rule": "dirichlett"}, "there is no rule 'dirichlett': did you mean 'dirichlet'"),
        ({"seed": -1}, "seed = -1 can't be: give a whole number at least 0"),
        ({"min_size": 3}, "min_size = 3 can't be: give a whole number from 4 to 3000"),
        ({"n_images": 3001}, "n_images = 3001 can't be: give a whole number from 1 to 3000"),
        ({"labels": LABELS / 2}, "labels: give one class, a whole number from 0, for each image"),
        ({"labels": LABELS - 1}, "labels: give one class, a whole number from 0, for each image"),
    ],
)
def test_bad_settings_are_refused(changed: dict[str, object], complaint: str) -> None:
    with pytest.raises(Learn2pFedError, match=complaint):
        partition(**({"labels": LABELS, "n_clients": 3, "beta": 1.0} | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES)
def test_what_is_saved_is_loaded(rule: str, tmp_path: Path) -> None:
    made = partition(LABELS, 12, 1.0, rule)
    made.save(tmp_path / "who.npz")
    loaded = Partition.load(tmp_path / "who.npz", 3000)
    assert [name for name, _ in loaded.lists()] == [name for name, _ in made.lists()]
    for (_, one), (_, other) in zip(made.lists(), loaded.lists(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [path.name for path in tmp_path.iterdir()] == ["who.npz"]
    with pytest.raises(Learn2pFedError, match=r"can't be written \(.*\): choose another place"):
        made.save(tmp_path / "none" / "who.npz")


GOOD = {"train0": [0, 1], "test0": [2], "train1": [3], "test1": [4, 5]}


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"test1": [4, 1]}, r"image 1 is twice in train0 and test1: give it to one client once"),
        ({"test1": [4, 4]}, "image 4 is twice in test1"),
        ({"test1": [4, 10]}, "test1 has image 10, but there are only 10, counted from 0"),
        ({"test1": [-1, 4]}, "test1 has image -1: places count from 0"),
        ({"train3": [6]}, "lacks test1|lacks train2"),
        ({"train2": [6]}, "lacks test2: give every client from 0 to 2 every part"),
        ({"validation1": [6]}, "lacks validation0"),
        ({"test1": []}, "test1 is no list of whole numbers"),
        ({"test1": np.empty(0, int)}, "test1 is empty: give every client at least one image"),
        ({"test1": [0.5]}, "test1 is no list of whole numbers"),
        ({"test1": [[4]]}, "test1 is no list of whole numbers"),
        ({"labels": [1]}, "holds 'labels': index lists are called train0, validation0, test0"),
        ({"train01": [6]}, "holds 'train01'"),
        ({"test1": np.array([{}])}, "is no .npz of index lists, or damaged"),
    ],
)
def test_bad_files_are_refused(changed: dict[str, object], complaint: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "who.npz", **{name: np.asarray(rows) for name, rows in (GOOD | changed).items()})
    with pytest.raises(Learn2pFedError, match=complaint):
        Partition.load(tmp_path / "who.npz", 10)


def test_files_that_are_no_index_lists(tmp_path: Path) -> None:
    path = tmp_path / "who.npz"
    with pytest.raises(Learn2pFedError, match=r"there is no file .*who.npz"):
        Partition.load(path)
    whole = io.BytesIO()
    np.savez(whole, **{name: np.array(rows) for name, rows in GOOD.items()})
    one, none = io.BytesIO(), io.BytesIO()
    np.save(one, np.arange(3))
    np.savez(none)
    for content in (b"", b"text", whole.getvalue()[:-60], one.getvalue(), none.getvalue()):
        path.write_bytes(content)
        with pytest.raises(Learn2pFedError, match=r"is no .npz of index lists, or damaged|holds nothing"):
            Partition.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train0.npy", b"no array")
    with pytest.raises(Learn2pFedError, match=r"holds 'train0', which is no array: make it again"):
        Partition.load(path)
    path.write_bytes(whole.getvalue().replace(b"}", b" ", 1))  # a header that is none, and a sum that is wrong
    with pytest.raises(Learn2pFedError, match=r"is no .npz of index lists, or damaged"):
        Partition.load(path)
    path.write_bytes(whole.getvalue())
    assert len(Partition.load(path)) == 2
    assert len(Partition.load(str(path))) == 2  # type: ignore[arg-type]


def small_images() -> Images:
    pixels = (np.arange(3000, dtype=np.int64)[:, None, None, None] + np.array([0, 1]).reshape(1, 1, 1, 2)) % 256
    return Images("small", pixels.astype(np.uint8), LABELS, 10, 2500)


def test_samples_are_each_clients_images_from_minus_one_to_one() -> None:
    images, made = small_images(), partition(LABELS, 4, 1.0)
    for part in PARTS:
        lists = getattr(made, part)
        found = samples(images, made, part)
        assert found.names == ("client 0", "client 1", "client 2", "client 3")
        assert found.sizes == tuple(len(rows) for rows in lists)
        assert (found.X.dtype, found.y.dtype) == (torch.float32, torch.int64)
        for client, rows in zip(found.clients, lists, strict=True):
            np.testing.assert_allclose(client.X.numpy(), images.pixels[rows] / 127.5 - 1, atol=1e-6)
            np.testing.assert_array_equal(client.y.numpy(), LABELS[rows])
    train = samples(images, made, "train").X
    assert (float(train.min()), float(train.max())) == (-1, 1)


def test_samples_that_cannot_be() -> None:
    images, made = small_images(), partition(LABELS, 4, 1.0, "pfllib")
    with pytest.raises(Learn2pFedError, match="there is no part 'tests': did you mean 'test'"):
        samples(images, made, "tests")
    with pytest.raises(Learn2pFedError, match="no validation part: make one by with_validation"):
        samples(images, made, "validation")
    assert sum(samples(images, made.with_validation(LABELS, seed=0), "validation").sizes) > 300
    few = Images("few", images.pixels[:9], LABELS[:9], 10, 9)
    with pytest.raises(Learn2pFedError, match="has image 2999, but there are only 9, counted from 0"):
        samples(few, made, "train")


def test_the_real_images_are_shared_out() -> None:
    if not FASHION.cached:
        pytest.skip("learn2pfed data get fashion-mnist")
    images = load_images("fashion-mnist")
    made = partition(images.labels, 100, 0.1)
    assert made.counts(images.labels).sum() == 70_000
    assert samples(images, partition(images.labels, 3, 0.1, n_images=500), "test").X.shape[1:] == (1, 28, 28)


def test_test_parts_are_filled_up_in_each_clients_own_mix_by_images_that_nobody_has() -> None:
    among = np.flatnonzero(np.arange(len(LABELS)) % 10)
    made = partition(LABELS, 3, 0.5, n_images=600, among=among)
    found = filled_up(LABELS, made, 500, among, seed=4)
    taken = set(all_rows(made).tolist())
    counts = made.counts(LABELS).T
    assert counts.min() < 5 < counts.max()
    for i, (own, rows) in enumerate(zip(made.test, found, strict=True)):
        assert np.array_equal(rows[: len(own)], own)
        new = rows[len(own) :]
        assert len(np.unique(new)) == len(new) > 200
        assert not taken & set(new.tolist())
        assert set(new.tolist()) <= set(among.tolist())
        wanted = np.minimum(counts[i] / counts[i].sum() * (500 - len(own)), left_of(LABELS, among, taken))
        assert np.abs(np.bincount(LABELS[new], minlength=10) - wanted).max() <= 1
    again, other = (filled_up(LABELS, made, 500, among, seed) for seed in (4, 5))
    assert all(np.array_equal(one, two) for one, two in zip(found, again, strict=True))
    assert not np.array_equal(found[0], other[0])
    assert [len(rows) for rows in filled_up(LABELS, made, 1, among, 4)] == [len(rows) for rows in made.test]


def left_of(labels: np.ndarray, among: np.ndarray, taken: set[int]) -> np.ndarray:
    """Images of each class that nobody has."""
    return np.bincount(labels[np.setdiff1d(among, list(taken))], minlength=10)
