"""The list of rooms that a small use of the client enters."""

from scripts.trips import TRIPS, walk


def test_a_trip_names_each_room_once_in_its_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").touch()
    rooms, modules = walk(TRIPS["hyperparameter"], tmp_path)
    assert rooms[0] == "api"
    assert len(rooms) == len(set(rooms)) <= modules
    assert not {"backends", "events"} & set(rooms)
