"""Whose memory keeps a copy, and how often a training saves into memory."""

from itertools import product

from herringbone_contract.memory.rules import interval, neighbours


def test_each_host_keeps_one_copy_and_leaves_its_domain_wherever_that_is_possible():
    for count in range(2, 7):
        hosts = [f"algo-{number}" for number in range(1, count + 1)]
        for racks in product("xyz", repeat=count):
            domains = dict(zip(hosts, racks, strict=True))
            found = neighbours(hosts, domains)
            assert sorted(found.values()) == sorted(hosts), (domains, found)
            assert all(host != other for host, other in found.items()), (domains, found)
            if max(racks.count(rack) for rack in racks) <= count / 2:
                assert all(domains[host] != domains[other] for host, other in found.items()), (domains, found)


def test_a_single_host_has_no_neighbour_and_hosts_without_labels_take_the_next():
    assert neighbours(["a"], {}) == {}
    assert neighbours(["a", "b", "c"], {}) == {"a": "b", "b": "c", "c": "a"}


def test_an_interval_keeps_the_share_and_does_not_follow_noise():
    current, changes = interval(0.004, 0.1), 0
    for blocked in (0.0035, 0.0041, 0.0033, 0.0039) * 10:
        found = interval(blocked, 0.1, current)
        changes += found != current
        assert blocked / (found * 0.1) <= 0.01
        current = found
    assert changes == 1
    assert interval(1.0, 0.0, 7) == 7
