import socket

from herringbone_entry.channel import reserved_port


def test_a_port_is_kept_until_it_is_released():
    reserved = reserved_port.ReservedPort()
    with socket.socket() as other:
        try:
            other.bind(("", reserved.number))
        except OSError:
            pass
        else:
            raise AssertionError(f"{reserved.number} was free")
    reserved.release()
    with socket.socket() as other:
        other.bind(("", reserved.number))


def test_the_system_never_hands_the_port_out():
    first, last = reserved_port._ephemeral_range()
    for _ in range(20):
        reserved = reserved_port.ReservedPort()
        assert not first <= reserved.number <= last
        reserved.release()


def test_any_port_will_do_when_the_system_hands_out_all():
    assert reserved_port.numbers_left((1024, 65_535)) == (10_000, 65_535)
