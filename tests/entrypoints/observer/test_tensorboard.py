"""TensorBoard's event files become metrics: those of torch and of TensorFlow, while they grow, and damaged ones."""

from __future__ import annotations

import base64
import itertools
import os
import struct
from pathlib import Path

import pytest

from herringbone_contract.events.format import Point
from herringbone_entry.observer.event_files import MAX_RECORD_BYTES, DamagedError, EventParser, masked_crc
from herringbone_entry.observer.tensorboard import RunNames, TensorBoard

# Written by torch.utils.tensorboard (tensorboard 2.21): `loss`, `lr` as a double tensor, a text, `loss`.
TORCH = base64.b64decode(
    "SAAAAAAAAAD+kkidCdplan/lwNpBGg1icmFpbi5FdmVudDoyUi4KLHRlbnNvcmJvYXJkLnN1bW1hcnkud3JpdGVyLmV2ZW50X2ZpbGVfd3JpdGVy"
    "0ddwABoAAAAAAAAAEpvYLQmnbWp/5cDaQRAKKg0KCwoEbG9zcxUAAAA/SsYzMS4AAAAAAAAAxctX+gmLbmp/5cDaQRAKKiEKHwoCbHJCDAgCMggA"
    "AAAAAADQP0oLCgkKB3NjYWxhcnNjUvrCNgAAAAAAAABPV4zvCRtvan/lwNpBEAEqKQonCg50L3RleHRfc3VtbWFyeUILCAcSBBICCAFCAXhKCAoG"
    "CgR0ZXh05puqqhoAAAAAAAAAEpvYLQlNb2p/5cDaQRAUKg0KCwoEbG9zcxUAAIA+wCy6Jg=="
)
# Written by tf.summary.scalar (TensorFlow 2.21): `loss` of steps 0 to 2.
TENSORFLOW = base64.b64decode(
    "PgAAAAAAAADZ0kDnCQAAAHPlwNpBGg1icmFpbi5FdmVudDoyUiQKInRlbnNvcmZsb3cuY29yZS51dGlsLmV2ZW50c193cml0ZXKWKMvwLAAAAAAA"
    "AAD0rsxFCcEcXnPlwNpBKiEKHwoEbG9zc0IKCAESACIEAACAP0oLCgkKB3NjYWxhcnN8n6CjLgAAAAAAAADFy1f6CT0qXnPlwNpBEAEqIQofCgRs"
    "b3NzQgoIARIAIgQAAAA/SgsKCQoHc2NhbGFyc6v7qaMuAAAAAAAAAMXLV/oJqTBec+XA2kEQAiohCh8KBGxvc3NCCggBEgAiBKuqqj5KCwoJCgdz"
    "Y2FsYXJzn+fqXA=="
)
TORCH_TIME = 1795397117.66


def values(scalars) -> list[tuple[str, float, int]]:
    return [(scalar.tag, round(scalar.value, 4), scalar.step) for scalar in scalars]


def record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", masked_crc(length)) + content + struct.pack("<I", masked_crc(content))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (TORCH, [("loss", 0.5, 10), ("lr", 0.25, 10), ("loss", 0.25, 20)]),
        (TENSORFLOW, [("loss", 1.0, 0), ("loss", 0.5, 1), ("loss", 0.3333, 2)]),
    ],
)
def test_scalars_of_both_writers_are_read_at_any_cut(data: bytes, expected) -> None:
    assert values(EventParser().feed(data)) == expected
    parser = EventParser()
    assert values(scalar for byte in data for scalar in parser.feed(bytes([byte]))) == expected


def test_long_and_damaged_records_are_left_out() -> None:
    image = record(b"\x00" * (MAX_RECORD_BYTES + 1))
    garbage = record(b"\xff" * 50) + record(b"") + record(b"\x2a\x7f\x00") + record(b"\x2b")
    damaged = bytearray(TORCH)
    damaged[110] ^= 0xFF
    parser = EventParser()
    assert values(parser.feed(image[:70_000]) + parser.feed(image[70_000:] + garbage + damaged)) == [
        ("lr", 0.25, 10),
        ("loss", 0.25, 20),
    ]
    assert len(parser._buffer) == 0
    with pytest.raises(DamagedError):
        parser.feed(b"no framing at all")


def test_no_cut_or_flipped_byte_breaks_the_parser() -> None:
    for position in range(0, len(TENSORFLOW), 3):
        for content in (TENSORFLOW[position:], TENSORFLOW[:position]):
            EventParser().feed(record(content))
            EventParser().feed(record(TORCH[84:][position % 26 :]))


def point(name: str, value: float, step: int) -> Point:
    return Point(pytest.approx(TORCH_TIME, abs=1), name, value, step, None, "tensorboard")


def test_files_are_read_as_they_grow_and_named_by_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "old").mkdir(parents=True)
    old = data / "old" / "events.out.tfevents.1.host"
    old.write_bytes(TORCH)
    os.utime(old, (900, 900))
    source = TensorBoard([f"{tmp_path}/tensorboard", f"{data}"], since=1000.0, clock=itertools.count().__next__)
    run = data / "runs" / "Nov23_10-11-12"
    run.mkdir(parents=True)
    file = run / "events.out.tfevents.2.host"
    file.write_bytes(TORCH[:200])
    assert source.poll(TORCH_TIME) == [point("loss", 0.5, 10), point("lr", 0.25, 10)]
    with file.open("ab") as more:
        more.write(TORCH[200:])
    # By this clock a search takes 1, so the next one comes after 100 more.
    points = [item for _ in range(99) for item in source.poll(TORCH_TIME + 1)]
    assert points == [point("loss", 0.25, 20)]
    other = tmp_path / "tensorboard" / "events.out.tfevents.3.host"
    other.parent.mkdir()
    other.write_bytes(TORCH)
    (run / "eval").mkdir()
    (run / "eval" / "events.out.tfevents.4.host").write_bytes(TORCH)
    names = [item.name for item in source.poll(TORCH_TIME + 2) if isinstance(item, Point)]
    assert names == ["tensorboard/loss", "tensorboard/lr", "tensorboard/loss", "eval/loss", "eval/lr", "eval/loss"]
    source.close()


def test_a_clock_that_is_wrong_by_a_year_is_not_believed(tmp_path: Path) -> None:
    source = TensorBoard([f"{tmp_path}"], since=0.0)
    (tmp_path / "events.out.tfevents.1.host").write_bytes(TORCH)
    assert {item.time for item in source.poll(TORCH_TIME + 3e7) if isinstance(item, Point)} == {TORCH_TIME + 3e7}
    source.close()


def test_links_and_other_kinds_of_files_are_left_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "events.out.tfevents.1.host").write_bytes(TORCH)
    data = tmp_path / "data"
    data.mkdir()
    source = TensorBoard([f"{data}"], since=0.0)
    (data / "folder").symlink_to(outside)
    (data / "events.out.tfevents.2.host").symlink_to(outside / "events.out.tfevents.1.host")
    os.mkfifo(data / "events.out.tfevents.3.host")
    (data / "events.out.tfevents.4.host").mkdir()
    (data / "events.out.tfevents.5.host").write_bytes(b"damaged from the start")
    (data / "events.out.tfevents.6.host").write_bytes(TORCH)
    assert len(source.poll(TORCH_TIME)) == 3
    assert source.poll(TORCH_TIME + 1) == []
    source.close()


def test_a_search_takes_a_hundredth_of_the_time(tmp_path: Path) -> None:
    times = iter([0.0, 0.1, 5.0, 10.2, 10.2, 10.3])
    source = TensorBoard([f"{tmp_path}"], since=0.0, clock=lambda: next(times))
    assert source.poll(TORCH_TIME) == []
    (tmp_path / "events.out.tfevents.1.host").write_bytes(TORCH)
    assert source.poll(TORCH_TIME) == []
    assert len(source.poll(TORCH_TIME)) == 3
    source.close()


def test_folders_of_keras_and_of_add_scalars() -> None:
    names = RunNames()
    assert names.name("/out/train", "epoch_loss") == "epoch_loss"
    assert names.name("/out/validation", "epoch_loss") == "validation/epoch_loss"
    names = RunNames()
    assert [names.name(folder, "loss") for folder in ("/out", "/out/loss_a")] == ["loss", "loss_a/loss"]
