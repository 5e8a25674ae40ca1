"""Bad rows are refused where they come in, by name."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from learn2pfed.data.federated import FederatedData
from learn2pfed.data.polynomial import polynomial
from learn2pfed.errors import Learn2pFedError
from learn2pfed.unrolled.settings import Settings

GOOD = ("north", [[1.0, 2.0], [1.0, 3.0]], [0.0, 1.0])
NAMES = ["one", "height"]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([], "There are no clients"),
        ([GOOD, ("south", np.empty((0, 2)), [])], "client 'south' has no rows"),
        ([GOOD, ("south", [[1.0, np.nan]], [0.0])], r"client 'south' has 1 missing or infinite value\(s\) in height"),
        ([GOOD, ("south", [[1.0, 0.0]], [np.inf])], "client 'south' has 1 missing .* in the target"),
        ([GOOD, ("south", [[1.0, 2.0, 3.0]], [0.0])], "client 'south' has 3 features where 2 are named"),
        ([GOOD, GOOD], "client 'north' appears twice"),
        ([GOOD, ("south", [[1.0, 2.0], [1.0]], [0.0, 1.0])], "client 'south': X is not a table of numbers"),
        ([GOOD, ("south", [["a", "b"]], [0.0])], "client 'south': X is not a table of numbers"),
        ([GOOD, ("south", [[1.0, 2.0]], [0.0, 1.0])], "client 'south' has 1 rows of features but 2 targets"),
        ([GOOD, ("south", [1.0, 2.0], [0.0])], r"client 'south': X must be \(rows, features\)"),
        ([("north", [[1.0, 0.0], [2.0, 0.0]], [0.0, 1.0])], "column 'height' is zero in every row"),
        ([("north", [[1.0, 2.0], [1.0, 2.0]], [0.0, 1.0])], "columns 'one' and 'height' say the same in every row"),
        ([("north", [[3.0, -6.0], [1.0, -2.0]], [0.0, 1.0])], "columns 'one' and 'height' say the same"),
    ],
)
def test_bad_rows(rows: list[tuple[str, object, object]], sentence: str) -> None:
    with pytest.raises(Learn2pFedError, match=sentence):
        FederatedData.build(rows, NAMES)


def test_a_feature_that_is_constant_for_one_client_only_is_fine() -> None:
    data = FederatedData.build([GOOD, ("south", [[1.0, 5.0], [1.0, 5.0]], [0.0, 1.0])], NAMES)
    assert data.sizes == (2, 2)


def test_the_same_seed_gives_the_same_data() -> None:
    one, two, other = polynomial(5, 1), polynomial(5, 1), polynomial(6, 1)
    assert (one.coefficients == two.coefficients).all()
    assert (one.data.clients[3].y == two.data.clients[3].y).all()
    assert not (one.coefficients == other.coefficients).all()


def test_there_are_three_settings() -> None:
    with pytest.raises(Learn2pFedError, match="setting: there are 1, 2 and 3, got 4"):
        polynomial(0, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_cells": 0},
        {"learning_rate": -0.1},
        {"lam_start": 0.0},
        {"rho_start": float("nan")},
        {"learn": ["lam", "nu"]},
        {"supervision": "test"},
        {"holdout": 1.0},
        {"n_folds": 1},
        {"theta_start": 2.0},
        {"unknown": 1},
    ],
)
def test_bad_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        Settings.model_validate(wrong)
