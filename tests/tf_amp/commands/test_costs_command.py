"""`tf-amp costs`: shown, carried to another machine, merged, cleared; and mistakes."""

import json

import pytest

from grappler_pass.costs.database.exchange import (
    merge_exports,
    read_export,
    write_export,
)
from grappler_pass.costs.database.price_database import CostDatabase, costs_path
from grappler_pass.costs.database.price_list import Measured
from grappler_pass.costs.database.records import CostRow
from tests.costs_examples import (
    DEVICE,
    ROWS_OF_ALL_KINDS,
    TRANSPOSE,
    VERSION,
    measured,
    sample,
)
from tf_amp.commands import cli
from tf_amp.config import devices


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("TF_AMP_CACHE", str(folder))
    monkeypatch.setenv("COLUMNS", "80")
    return folder


@pytest.fixture
def database(cache):
    database = CostDatabase(costs_path(cache))
    database.put(ROWS_OF_ALL_KINDS)
    return database


@pytest.fixture
def costs(cache, capsys):
    def command(*arguments):
        code = cli.main(["costs", *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return command


def test_what_was_measured_is_shown_per_device_and_version(database, costs):
    code, out, _ = costs("show")
    lines = out.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("op") for line in lines) == 3
    row = next(line.split() for line in lines if "10x784" in line and "bfl" in line)
    assert row[:8] == [
        "MatMul",
        "32x784,",
        "10x784",
        "bfloat16",
        "1",
        "ms",
        "10%",
        "30",
    ]
    assert "graphs compared: 1, of which faster rewritten: 1" in out


def ops_in(out):
    names = ("MatMul", "Transpose", "Cast")
    return [line.split()[0] for line in out.splitlines() if line.startswith(names)]


def test_rows_are_sorted_filtered_and_limited(database, costs):
    args = ("show", "--tensorflow", VERSION, "--device", "all")
    assert ops_in(costs(*args)[1]) == ["MatMul", "MatMul", "Transpose", "MatMul"]
    for sort, first in (("seconds", "2 ms"), ("count", "30"), ("spread", "10%")):
        lines = costs(*args, "--sort", sort)[1].splitlines()
        assert first in next(line for line in lines if line.startswith("MatMul"))
    assert ops_in(costs("show", "--op", "trans*")[1]) == ["Transpose"]
    code, out, _ = costs("show", "--limit", 1)
    assert sorted(ops_in(out)) == ["Cast", "MatMul", "MatMul"]
    assert "... and 2 more: --limit 0 shows all" in out
    assert len(ops_in(costs("show", "--limit", 0)[1])) == 5
    code, out, _ = costs("show", "--op", "Conv2D")
    assert (code, "no measured costs of Conv2D in" in out) == (0, True)


def test_this_device_is_told_from_others(database, costs):
    cpu = devices.cost_key(devices.present_devices()[0])
    database.put([CostRow(cpu, VERSION, Measured(TRANSPOSE, "float32", sample()))])
    assert ops_in(costs("show", "--device", "this")[1]) == ["Transpose"]
    assert "1 row of this device removed" in costs("clear", "--device", "this")[1]
    assert set(database.rows()) == set(ROWS_OF_ALL_KINDS)


def test_an_empty_database_is_said_to_be_empty(costs, cache):
    code, out, _ = costs("show")
    assert (code, out) == (0, f"no measured costs in {costs_path(cache)}\n")
    assert costs("clear")[1].startswith("0 rows removed")
    assert not cache.exists()


def test_what_is_exported_is_imported_elsewhere(database, costs, tmp_path, monkeypatch):
    file = tmp_path / "costs.jsonl"
    assert costs("export", file)[0] == 0
    monkeypatch.setenv("TF_AMP_CACHE", str(tmp_path / "elsewhere"))
    code, out, _ = costs("import", file)
    assert code == 0
    assert "6 rows taken, 0 merged, 0 refused" in out
    assert set(CostDatabase(costs_path(tmp_path / "elsewhere")).rows()) == set(
        ROWS_OF_ALL_KINDS
    )
    assert "0 rows taken, 6 merged, 0 refused" in costs("import", file)[1]
    assert costs("export", file, "--tensorflow", "2.20.0")[0] == 0
    assert read_export(file).rows == (ROWS_OF_ALL_KINDS[4],)


def test_merging_keeps_the_better_supported_figure(costs, tmp_path):
    files = [tmp_path / name for name in ("a", "b", "ab", "ba")]
    poor, good = sample(1e-3, count=3), sample(2e-3, count=50)
    write_export(
        files[0], [*ROWS_OF_ALL_KINDS[:2], CostRow(DEVICE, "9", measured(1, poor))]
    )
    write_export(
        files[1], [*ROWS_OF_ALL_KINDS[1:3], CostRow(DEVICE, "9", measured(1, good))]
    )
    code, _, err = costs("merge", files[0], files[1], "--out", files[2])
    assert code == 0
    assert "3 and 3 rows made 4" in err
    assert costs("merge", files[1], files[0], "--out", files[3])[0] == 0
    assert files[2].read_bytes() == files[3].read_bytes()
    merged = read_export(files[2]).rows
    assert set(merged) == {
        *ROWS_OF_ALL_KINDS[:3],
        CostRow(DEVICE, "9", measured(1, good)),
    }
    again = merge_exports([read_export(files[2])] * 2)
    assert set(again) == set(merged)


def test_clearing_says_what_it_removed(database, costs):
    assert costs("clear", "--tensorflow", "2.20.0")[1] == (
        f"1 row of TensorFlow 2.20.0 removed from {database.path}\n"
    )
    assert "5 rows removed" in costs("clear")[1]
    assert database.rows() == []


def test_an_import_reports_what_it_refuses_and_why(costs, tmp_path):
    file = tmp_path / "costs.jsonl"
    write_export(file, ROWS_OF_ALL_KINDS)
    file.write_bytes(file.read_bytes()[:-20])
    code, out, err = costs("import", file)
    assert code == 0
    assert "5 rows taken, 0 merged, 1 refused" in out
    assert f"{file}:7: refused: not JSON" in err
    header = file.read_text().splitlines()[0]
    noise = "noise\n" * 50
    file.write_text(f"{header}\n{noise}")
    code, out, err = costs("import", file)
    assert code == 1
    assert "0 rows taken, 0 merged, 50 refused" in out
    assert f"{file}: 40 rows more refused" in err
    file.write_text(f"{header}\n")
    assert f"{file}: cut off, 6 rows missing" in costs("import", file)[2]


def test_mistakes_are_said_in_one_line_with_exit_code_2(costs, cache, tmp_path):
    later = tmp_path / "later"
    later.write_text('{"format": "tf-amp costs", "version": 2}')
    (tmp_path / "notes").write_text("notes")
    for arguments, part in (
        (("import", tmp_path / "missing"), "No such file"),
        (("import", tmp_path), "Is a directory"),
        (("import", tmp_path / "notes"), "is no export"),
        (("import", later), "export of version 2; this tf-amp reads version 1"),
        (("merge", later, "--out", tmp_path / "out"), "version 2"),
        (("export", tmp_path), "Is a directory"),
        (("export", tmp_path / "missing" / "file"), "No such file"),
    ):
        code, out, err = costs(*arguments)
        assert (code, out) == (2, "")
        assert part in err
        assert err.count("\n") == 1
    for arguments in (("show", "--limit", "-1"), ("show", "--sort", "color"), ()):
        with pytest.raises(SystemExit) as caught:
            costs(*arguments)
        assert caught.value.code == 2


def test_a_database_that_is_a_folder_or_foreign_is_an_error(costs, cache, tmp_path):
    file = tmp_path / "costs.jsonl"
    write_export(file, ROWS_OF_ALL_KINDS)
    costs_path(cache).mkdir(parents=True)
    for arguments in (
        ("show",),
        ("export", tmp_path / "x"),
        ("import", file),
        ("clear",),
    ):
        code, out, err = costs(*arguments)
        assert (code, out) == (2, "")
        assert f"{costs_path(cache)} cannot be used: unable to open" in err
        assert "TF_AMP_CACHE names another folder" in err
    assert not (tmp_path / "x").exists()


def test_the_key_of_a_device_names_what_decides_its_speed(monkeypatch, tmp_path):
    key = devices.cpu_key()
    name = devices.cost_key(devices.present_devices()[0])
    for part in (key.model, f"{key.threads} threads", "oneDNN o", *key.flags):
        assert part in name
    version = tmp_path / "version"
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release\n"
        "GCC version:  gcc version 12.3.0\n"
    )
    gpu = devices.Device("GPU", "/physical_device:GPU:0", "NVIDIA H200", (9, 0))
    for file, driver in ((version, "550.54.15"), (tmp_path / "none", "unknown")):
        devices._gpu_driver.cache_clear()
        monkeypatch.setattr(devices, "_GPU_DRIVER_FILE", file)
        assert devices.cost_key(gpu) == f"NVIDIA H200, driver {driver}"
    devices._gpu_driver.cache_clear()


def test_json_has_an_object_for_each_device_and_version(database, costs):
    code, out, _ = costs("show", "--json", "--sort", "seconds", "--limit", "2")
    tables = {(t["device"], t["tensorflow"]): t for t in json.loads(out)}
    assert code == 0 and len(tables) == 3
    table = tables[DEVICE, VERSION]
    assert [row["seconds"] for row in table["rows"]] == [2e-3, 1e-3]
    assert table["verdicts"] == 1
    assert table["rows"][1] == {
        "op": "MatMul",
        "inputs": [
            {"shape": [32, 784], "dtype": "bfloat16"},
            {"shape": [10, 784], "dtype": "bfloat16"},
        ],
        "dtype": "bfloat16",
        "seconds": 1e-3,
        "spread": 0.1,
        "count": 30,
        "when": 1.75e9,
    }
    assert json.loads(costs("show", "--json", "--op", "None")[1]) == []
