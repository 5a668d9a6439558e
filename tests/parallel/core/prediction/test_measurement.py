"""The form of a measured step."""

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.prediction.measurement import (
    Call,
    Kind,
    Measurement,
    Module,
    Operation,
    Parameter,
    Phase,
    Tensor,
    Timings,
    parse,
    parse_timings,
    to_text,
)

STEP = Measurement(
    framework="torch 2.13.0",
    device="cpu",
    modules=(Module("", "Linear"),),
    parameters=(Parameter("weight", 0, (4, 2), "float32", 32, state_bytes=64),),
    operations=(Operation("aten.mm", ((3, 2), (2, 4)), "float32", 48, 104),),
    calls=(Call(0, 0, Phase.FORWARD),),
    tensors=(Tensor(48, Kind.ACTIVATION, 0, 2, 0),),
)
TIMINGS = Timings(device="cpu", forward_s=0.1, backward_s=0.2, optimizer_s=0.05, modules={"": (0.1, 0.2)})


def test_a_measurement_is_read_as_it_was_written() -> None:
    assert parse(to_text(STEP)) == STEP
    assert parse_timings(to_text(TIMINGS)) == TIMINGS


@pytest.mark.parametrize("text", [b"", b"\xff", b"{}", to_text(TIMINGS)])
def test_another_text_is_refused(text: bytes) -> None:
    with pytest.raises(ParallelError, match="not a measurement"):
        parse(text)


def test_another_version_is_refused() -> None:
    with pytest.raises(ParallelError, match="has version 9"):
        parse(to_text(STEP).replace(b'"version":2', b'"version":9'))
