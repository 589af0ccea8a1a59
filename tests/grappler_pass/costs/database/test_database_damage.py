"""A damaged cost database is set aside, and another begun."""

import contextlib
import os
import pathlib
import random
import sqlite3

import pytest

from grappler_pass.costs.database.price_database import CostDatabase
from tests.costs_examples import (
    ROWS,
    full_content,
    is_sound,
    keep,
    sizes_in,
)

LENGTHS = (15, 16, 17, 71, 99, 100, 101, 4095, 4096, 4097, 8192, 12288, 16384, 20001)


@pytest.mark.parametrize("length", [*LENGTHS, *range(-40000, 0, 7919), -4096])
def test_a_database_cut_off_is_set_aside_and_begun_anew(path, caplog, length):
    path.write_bytes(full_content()[:length])
    damaged = path.read_bytes()
    database = CostDatabase(path)
    sizes_in(database)
    keep(database, 10**6)
    assert 10**6 in sizes_in(CostDatabase(path))
    assert is_sound(path)
    assert pathlib.Path(f"{path}.broken").read_bytes() == damaged
    assert len(caplog.records) == 1
    assert ".broken" in caplog.text


@pytest.mark.parametrize("seed", range(12))
def test_pages_of_noise_never_stop_a_job(path, seed):
    chance = random.Random(seed)
    content = bytearray(full_content())
    for _ in range(1 + seed % 4):
        place = chance.randrange(100, len(content) - 300)
        content[place : place + 300] = chance.randbytes(300)
    path.write_bytes(content)
    database = CostDatabase(path)
    sizes_in(database)
    keep(database, 10**6)
    assert 10**6 in sizes_in(CostDatabase(path))
    assert is_sound(path)


def test_damage_under_way_is_noticed_and_repaired(path, caplog):
    path.write_bytes(full_content())
    database = CostDatabase(path)
    assert len(sizes_in(database)) == ROWS
    os.truncate(path, 20001)
    keep(database, 10**6)
    assert 10**6 in sizes_in(CostDatabase(path))
    assert len(caplog.records) == 1


@pytest.mark.parametrize("content", [b"notes, not a database\n" * 9, bytes(9000)])
def test_a_file_that_is_no_database_is_set_aside_whole(path, content):
    for number in range(2):
        path.write_bytes(content)
        database = CostDatabase(path)
        keep(database, number)
        assert sizes_in(CostDatabase(path)) == {number}
        assert pathlib.Path(f"{path}.broken").read_bytes() == content


@pytest.mark.parametrize("body", ["'noise'", "'{}'", "NULL", "7", "x'ff'"])
def test_a_row_of_noise_is_read_as_if_it_were_not_there(path, caplog, body):
    keep(CostDatabase(path), 1, 2)
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute(f"UPDATE rows SET body = CAST({body} AS TEXT) WHERE number = 1")
    database = CostDatabase(path)
    assert sizes_in(database) == {2}
    keep(database, 1)
    assert sizes_in(database) == {1, 2}
    assert not caplog.records


def test_a_database_of_somebody_else_keeps_what_is_in_it(path, caplog):
    with contextlib.closing(sqlite3.connect(path)) as foreign, foreign:
        foreign.execute("CREATE TABLE costs (device)")
        foreign.execute("INSERT INTO costs VALUES ('theirs')")
    keep(CostDatabase(path), 1)
    assert sizes_in(CostDatabase(path)) == {1}
    with contextlib.closing(sqlite3.connect(path)) as foreign:
        assert foreign.execute("SELECT * FROM costs").fetchall() == [("theirs",)]
    assert not caplog.records
