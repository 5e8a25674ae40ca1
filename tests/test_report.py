"""The page in a real browser, and the tables and files behind it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs

from learn2pfed.errors import Learn2pFedError
from learn2pfed.experiments.registry import configure, differences, find
from learn2pfed.report.docs import with_tables
from learn2pfed.report.html import write_report
from learn2pfed.report.tables import Table, mean_std, tables
from learn2pfed.results.records import Detail, Details, Results, Row, versions
from learn2pfed.results.store import read_details, read_results, write_whole


def rows(algorithm: str, *values: float, setting: str = "1") -> list[Row]:
    return [
        Row(
            setting=setting,
            algorithm=algorithm,
            seed=seed,
            metric=metric,
            value=value,
            seconds=1.0,
            bytes_up=1000,
            bytes_down=500_000,
        )
        for metric in ("RMSE", "MSE")
        for seed, value in enumerate(values)
    ]


def made(name: str = "polynomial") -> Results:
    found = rows("Learn2pFed", 0.5, 0.7) + rows("Local-Only", 1.0, 1.0)
    return Results(experiment=name, preset="quick", versions=versions(), config={"noise": 0.1}, rows=found)


DETAILS = Details(
    details=[
        Detail(
            setting="1",
            algorithm=algorithm,
            seed=0,
            series={
                "pull": [[1.0, 2.0, 3.0, 0.1]] * 2,
                "pull_start": [1.0] * 4,
                "history": [3.0, 2.0, 1.5],
                "models": [[0.0, -6.0, 18.0, -12.0]] * 2,
                "truth": [[0.0, -6.0, 18.0, -11.0]] * 2,
                "rows": [{"x": [0.1, 0.2], "y": [0.0, 1.0]}, {"x": [0.5, 0.6], "y": [0.0, 1.0]}],
            },
        )
        for algorithm in ("Learn2pFed", "Local-Only")
    ]
)


def test_tables_are_means_and_deviations_over_seeds() -> None:
    rmse, mse, cost = tables(made())
    assert rmse.body == (("Local-Only", "1.00 ± 0"), ("Learn2pFed", "0.600 ± 0.14"))
    assert mse.head == ("MSE", "setting 1")
    assert cost.body[1] == ("Learn2pFed", "1.00", "1.0 kB", "0.5 MB")
    assert mean_std([2.0]) == "2"
    assert mean_std([2.5]) == "2.50"
    assert Table("t", ("a", "b"), (("x", "1"),)).markdown() == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_the_quality_table_takes_medians_of_ratios() -> None:
    every = made("quality").rows + rows("REML (limit)", 0.5, 0.5) + rows("Learn2pFed (exact inner)", 0.5, 0.5)
    (first, *_) = tables(made("quality").model_copy(update={"rows": every}))
    assert first.body == (("1", "2", "1.200", "1.200", "1.200", "Local-Only"),)


def test_documents_get_their_tables_and_say_where_they_lack_a_place() -> None:
    text = "before\n<!-- tables:polynomial -->\nold\n<!-- /tables -->\nmore <!-- tables:layers --> kept\nafter"
    new = with_tables(text, made())
    assert "0.600 ± 0.14" in new
    assert "old" not in new
    assert new.startswith("before")
    assert new.endswith("more <!-- tables:layers --> kept\nafter")
    one = with_tables("<!-- tables:polynomial MSE -->\n<!-- /tables -->", made())
    assert one.count("| MSE |") == 1
    assert "RMSE" not in one
    assert with_tables(new, made()) == new
    with pytest.raises(Learn2pFedError, match="no place for polynomial"):
        with_tables("nothing here", made())


def test_the_page_says_how_it_was_made() -> None:
    experiment = find("polynomial")
    changes: dict[str, object] = {"noise": 0.3, "settings": "1,2", "learn2pfed.lam_spread": None}
    config = configure(experiment, "quick", changes).model_dump(mode="json")
    said = ["--set settings=1,2", "--set noise=0.3", "--set learn2pfed.lam_spread=none"]
    assert differences(experiment, "quick", config) == said
    assert differences(experiment, "quick", configure(experiment, "quick", {}).model_dump(mode="json")) == []


def test_files_appear_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "a" / "b.txt", "one")
    assert (tmp_path / "a" / "b.txt").read_text() == "one"

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(Learn2pFedError, match="No space left"):
        write_whole(tmp_path / "a" / "b.txt", "two")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.txt"]
    assert (tmp_path / "a" / "b.txt").read_text() == "one"


def test_damaged_records_are_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"experiment": "polynomial", "rows": [{"value": NaN}]}')
    with pytest.raises(Learn2pFedError, match="is not a results file"):
        read_results(tmp_path)
    (tmp_path / "details.json").write_text("{")
    with pytest.raises(Learn2pFedError, match="is damaged"):
        read_details(tmp_path)


CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs a browser: apt-get install chromium chromium-driver (Debian)"
)
def test_the_page_opens_without_a_network_and_answers_the_mouse(tmp_path: Path) -> None:
    from selenium import webdriver
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    page = write_report(tmp_path, made(), DETAILS)
    fetched = ("<script src", '<link rel="stylesheet', "<img src", "@import")
    assert not [mark for mark in fetched if mark in page.read_text().replace(get_plotlyjs(), "")]
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "disable-dev-shm-usage",
        f"user-data-dir={tmp_path / 'profile'}",
        "window-size=1300,1000",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(str(DRIVER)))
    try:
        driver.get(page.as_uri())
        WebDriverWait(driver, 30).until(lambda d: d.find_elements(By.CSS_SELECTOR, "#learning .scatterlayer path"))
        plot = driver.find_element(By.CSS_SELECTOR, "#learning .nsewdrag")
        ActionChains(driver).scroll_to_element(plot).move_to_element(plot).pause(0.3).move_by_offset(2, 1).perform()
        WebDriverWait(driver, 20).until(lambda d: d.find_elements(By.CSS_SELECTOR, "#learning .hoverlayer .hovertext"))
        before = driver.execute_script("return document.querySelector('#learning .js-plotly-plot').layout.xaxis.range")
        drag = ActionChains(driver).move_to_element_with_offset(plot, -60, 0).click_and_hold()
        drag.move_by_offset(90, 20).release().perform()
        WebDriverWait(driver, 20).until(
            lambda d: (
                d.execute_script("return document.querySelector('#learning .js-plotly-plot').layout.xaxis.range")
                != before
            )
        )
        shown = driver.find_element(By.TAG_NAME, "body").text
        assert "0.600 ± 0.14" in shown
        assert "Learned Λ against its start" in shown
        complaints = [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        assert not complaints
    finally:
        driver.quit()
